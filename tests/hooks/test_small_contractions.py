"""What the hook for PySCF leaves to NumPy, as weft is no faster; PySCF itself is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.hooks import libraries

LARGE = np.ones((200, 100)), np.ones((100, 200))  # four million products
SMALL = np.ones((20, 10)), np.ones((10, 20))


def by_whom(equation: Any, *arrays: Any, options: dict[str, Any] | None = None, **keywords: Any) -> str:
    """Who is asked: "NumPy" where the function that stood there is."""

    def theirs(*_: Any, **__: Any) -> str:
        return "NumPy"

    found = libraries._instead_of(theirs, options or {})(equation, *arrays, **keywords)
    return "NumPy" if isinstance(found, str) else "weft"


@pytest.mark.parametrize(
    ("equation", "arrays", "whose"),
    [
        ("ab,bc->ac", SMALL, "NumPy"),
        ("ab,bc->ac", LARGE, "weft"),
        (" ab , bc -> ac", SMALL, "NumPy"),
        ("ab,bc", LARGE, "weft"),
        ("ab,cd->abcd", SMALL, "NumPy"),  # 40,000 products
        ("ab,bc,cd->ad", (*SMALL, np.ones((20, 20))), "NumPy"),
        ("ab,bc,cd->ad", (*SMALL, np.ones((20, 5000))), "weft"),
        ("...ab,bc->...ac", SMALL, "weft"),  # nobody counts what dots stand for
        ("ij,jk->ik", (np.ones((0, 3)), np.ones((3, 2))), "NumPy"),
        ("i,i->", ([1.0, 2.0], [3.0, 4.0]), "NumPy"),  # lists are short
    ],
)
def test_small_contractions_stay_with_numpy(equation: str, arrays: tuple[Any, ...], whose: str) -> None:
    assert by_whom(equation, *arrays) == whose


def test_with_options_all_are_weft_s() -> None:
    assert by_whom("ab,bc->ac", *SMALL, options={"specialize": "library"}) == "weft"


def test_numpy_s_own_keywords_and_forms() -> None:
    assert by_whom("ab,bc->ac", *LARGE, dtype=np.float32) == "NumPy"
    assert by_whom("ab->ba", LARGE[0]) == "NumPy"
    assert by_whom(SMALL[0], [0, 1], SMALL[1], [1, 2], [0, 2]) == "weft"  # labels as lists


def test_types_may_be_mixed_where_weft_is_asked() -> None:
    found = libraries._instead_of(np.einsum, {})("ab,bc->ac", LARGE[0].astype(np.float32), LARGE[1].astype(complex))
    assert found.dtype == np.complex128
    assert np.array_equal(found, LARGE[0] @ LARGE[1])

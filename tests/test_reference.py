"""The oracle against numpy.einsum, against plain Python loops, and its two ways of computing against each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from weft import reference
from weft.errors import ShapeError
from weft.oracle import sums
from weft.oracle.reference import wide
from weft_bench import cases
from weft_bench.cases import Case

LINEAR = [
    case
    for case in (cases.scaled(case, 1 << 14) for case in cases.every())
    if not (case.a_fn or case.b_fn or case.c_fn or case.epilogue or case.add or isinstance(case.precision, torch.dtype))
]


def plain(x: torch.Tensor) -> np.ndarray:
    return wide(x).resolve_conj().numpy()


def by_loops(case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The definition, one product after another."""
    notation, extents = case.notation, case.extents
    d = np.zeros(case.d_shape, dtype=np.result_type(a, b))
    for index in itertools.product(*map(range, extents.values())):
        at = dict(zip(extents, index, strict=True))
        where = [
            tuple(0 if extent == 1 else at[label] for label, extent in zip(term, x.shape, strict=True))
            for term, x in ((notation.inputs[0], a), (notation.inputs[1], b), (notation.output, d))
        ]
        d[where[2]] += a[where[0]] * b[where[1]]
    return d


# numpy.einsum knows 52 labels; the loops below cover what has more.
@pytest.mark.parametrize("case", [case for case in LINEAR if len(case.extents) <= 52], ids=str)
def test_agrees_with_numpy(case: Case) -> None:
    given = cases.operands(case)
    labels = {label: at for at, label in enumerate(case.extents)}
    terms = [[labels[label] for label in term] for term in (*case.notation.inputs, case.notation.output)]
    expected = np.einsum(plain(given.a), terms[0], plain(given.b), terms[1], terms[2])
    result = reference.contract(case.equation, given.a, given.b)
    assert result.dtype == torch.from_numpy(np.asarray(expected)).dtype
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in LINEAR if case.work <= 4096], ids=str)
def test_agrees_with_loops(case: Case) -> None:
    given = cases.operands(case, integers=True)
    result = reference.contract(case.equation, given.a, given.b)
    np.testing.assert_array_equal(result.numpy(), by_loops(case, plain(given.a), plain(given.b)))


@pytest.mark.parametrize(
    ("products", "elements", "matrices"),
    [(1, 1 << 28, 1 << 28), (16, 0, 0), (1, 64, 3)],
    ids=["matmul", "halves", "both"],
)
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_its_ways_agree(
    case: Case, products: int, elements: int, matrices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broadcasting, matrix products and halving give the same sums, exactly where the values are small integers."""
    small = cases.scaled(case, 256)
    given = cases.operands(small, integers=True)
    expected = reference.contract(small.equation, given.a, given.b)
    monkeypatch.setattr(sums, "_PRODUCTS", products)
    monkeypatch.setattr(sums, "_ELEMENTS", elements)
    monkeypatch.setattr(sums, "_MATRICES", matrices)
    assert torch.equal(reference.contract(small.equation, given.a, given.b), expected)


def test_functions_scalars_and_c() -> None:
    a, b, c = (torch.randn(5, 5, generator=torch.Generator().manual_seed(at)) for at in range(3))
    functions = {"a_fn": torch.exp, "b_fn": torch.sin, "c_fn": torch.abs, "epilogue": torch.tanh}
    result = reference.contract("mk,kn->mn", a, b, c=c, alpha=0.5, beta=-2.0, **functions)
    x, y, z = (t.double().numpy() for t in (a, b, c))
    np.testing.assert_allclose(result.numpy(), np.tanh(0.5 * np.exp(x) @ np.sin(y) - 2 * np.abs(z)), rtol=1e-13)


def test_c_is_not_read_without_beta() -> None:
    c = torch.full((2, 2), math.nan)
    assert torch.equal(reference.contract("mk,kn->mn", torch.eye(2), torch.eye(2), c=c, beta=0), torch.eye(2).double())


def test_precision_rounds_values() -> None:
    third = torch.tensor([1 / 3])
    result = reference.contract("k,k->", third, torch.ones(1), precision=torch.float16)
    assert result.item() == third.half().item()


def test_integer_sums_wrap() -> None:
    """Two factors of 2^16 make 2^32: 0 in int32, and 2^32 in int64."""
    x = torch.tensor([1 << 16, 1], dtype=torch.int32)
    assert reference.contract("k,k->", x, x).item() == 1
    assert reference.contract("k,k->", x, x, accumulate=torch.int64).item() == (1 << 32) + 1
    assert reference.contract("k,k->", x.long(), x.long()).item() == (1 << 32) + 1


def test_rounds_once_to_the_asked_type() -> None:
    x = torch.tensor([1.0, 2.0**-11, 2.0**-11])
    assert reference.contract("k,k->", x, torch.ones(3), out_dtype=torch.float16).item() == 1 + 2.0**-10


def test_out_may_be_c() -> None:
    c = torch.ones(2, 2)
    result = reference.contract("mk,kn->mn", torch.eye(2), torch.eye(2), c=c, out=c)
    assert result is c
    assert torch.equal(c, torch.ones(2, 2) + torch.eye(2))


def test_clashing_extents_are_named() -> None:
    with pytest.raises(ShapeError, match=r"'k' has extents 3 and 4"):
        reference.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(ShapeError, match=r"'k' stands twice in 'kk': 1 and 3"):
        reference.contract("kk,kn->n", torch.ones(1, 3), torch.ones(3, 2))

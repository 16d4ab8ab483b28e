"""`weft.matmul`: the tests of TNL's dense matrices, torch.matmul's rules for shapes, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.testing import assert_close, expectation, l2_norm, max_norm, poisoned, random_operand

STATES = [(False, False), (True, False), (False, True), (True, True)]
ORDERS = ["row-major", "column-major"]


def matrix(rows: int, columns: int, backend: Backend, seed: int, order: str = "row-major") -> torch.Tensor:
    """Whole numbers from -3 to 3, whose sums are exact."""
    layout = "permuted" if order == "column-major" else "contiguous"
    x = random_operand((rows, columns), torch.float32, seed, integers=True, layout=layout, device=backend.device)
    assert rows == 1 or columns == 1 or x.stride(0 if order == "column-major" else 1) == 1
    return x


SCENARIOS: dict[str, tuple[Any, Any]] = {
    "identity, left": (torch.eye(17), (17, 17)), "identity, right": ((17, 17), torch.eye(17)),
    "zero": ((9, 13), torch.zeros(13, 5)), "no rows": ((0, 3), (3, 4)), "no columns": ((3, 4), (4, 0)),
    "no sum": ((3, 0), (0, 4)), "nothing": ((0, 0), (0, 0)), "one element": ((1, 1), (1, 1)),
    **{f"{m} x {k} x {n}": ((m, k), (k, n)) for m, k, n in (
        (1, 40, 1), (40, 1, 40), (1, 19, 23), (23, 19, 1), (1, 1, 9)
    )},
}  # fmt: skip


class TestTnl:
    """The scenarios of TNL's unit tests, each for both orders of storage."""

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_scenario(self, name: str, order: str, backend: Backend) -> None:
        """Identities, zeros, nothing (an empty sum is zero), one element, and the thesis's thin shapes."""
        a, b = SCENARIOS[name]
        first, second = (
            matrix(*given, backend, seed, order=order) if isinstance(given, tuple) else given.to(backend.device)
            for seed, given in enumerate((a, b))
        )
        assert torch.equal(weft.matmul(first, second, backend=backend.name), first @ second)

    @pytest.mark.parametrize(("transpose_a", "transpose_b"), STATES)
    @pytest.mark.parametrize("order_a", ORDERS)
    @pytest.mark.parametrize("order_b", ORDERS)
    def test_states(
        self, transpose_a: bool, transpose_b: bool, order_a: str, order_b: str, backend: Backend
    ) -> None:
        """All four states, row- and column-major in any mix, the result in either order."""
        m, k, n = (9, 12, 7) if backend.interpreted else (19, 33, 27)
        shape_a, shape_b = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
        a, b = matrix(*shape_a, backend, 5, order=order_a), matrix(*shape_b, backend, 6, order=order_b)
        expected = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
        for layout in ("contiguous", "permuted", "padded"):
            guarded = poisoned((m, n), torch.float32, layout=layout, device=backend.device)
            result = weft.matmul(
                a, b, transpose_a=transpose_a, transpose_b=transpose_b, out=guarded.tensor, backend=backend.name
            )
            assert result is guarded.tensor
            guarded.check_guards()
            assert torch.equal(result, expected)

    @pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 4), (100, 50, 100), (50, 100, 50), (20, 80, 60), (300, 300, 300)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_small_and_large_within_the_bound(
        self, m: int, k: int, n: int, dtype: torch.dtype, quick_backend: Backend
    ) -> None:
        """Normal values: each element within its bound, and the norms of the difference, as TNL reports them."""
        a, b = (
            random_operand(shape, dtype, at, device=quick_backend.device) for at, shape in enumerate(((m, k), (k, n)))
        )
        result = weft.matmul(a, b, backend=quick_backend.name)
        reference, bound = expectation("mk,kn->mn", a, b)
        assert_close(result, reference, bound)
        assert max_norm(result, reference) <= float(bound.max())
        assert l2_norm(result, reference) <= float(bound.square().sum().sqrt())


class TestShapes:
    """Batches broadcast and vectors count as in torch.matmul."""

    @pytest.mark.parametrize(
        ("shape_a", "shape_b"),
        [
            *(((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4))),
            *(((2, 3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)), ((1, 3, 5), (2, 5, 4))),
            *(((2, 1, 3, 5), (4, 5, 3)), ((0, 3, 5), (5, 4)), ((2, 3, 0), (2, 0, 4))),
        ],
        ids=str,
    )
    def test_as_torch(self, shape_a: tuple[int, ...], shape_b: tuple[int, ...], backend: Backend) -> None:
        a, b = (
            random_operand(shape, torch.float32, at, integers=True, device=backend.device)
            for at, shape in enumerate((shape_a, shape_b))
        )
        result = weft.matmul(a, b, backend=backend.name)
        expected = torch.matmul(a, b)
        assert result.shape == expected.shape
        assert torch.equal(result, expected)

    @pytest.mark.parametrize(("transpose_a", "transpose_b"), STATES)
    def test_transposed_batches(self, transpose_a: bool, transpose_b: bool, quick_backend: Backend) -> None:
        a = random_operand((3, 4, 5), torch.float32, 1, integers=True, device=quick_backend.device)
        b = random_operand((3, 5, 6), torch.float32, 2, integers=True, device=quick_backend.device)
        given_a, given_b = a.mT.contiguous() if transpose_a else a, b.mT.contiguous() if transpose_b else b
        result = weft.matmul(
            given_a, given_b, transpose_a=transpose_a, transpose_b=transpose_b, backend=quick_backend.name
        )
        assert torch.equal(result, a @ b)

    def test_arrays_of_numpy(self) -> None:
        a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
        result = weft.matmul(a, b)
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, a @ b)
        out = np.zeros((2, 4))
        assert weft.matmul(a, b, out=out) is out
        assert np.array_equal(out, a @ b)


class TestOptions:
    def test_accumulates(self, backend: Backend) -> None:
        a, b, c = matrix(7, 9, backend, 1), matrix(9, 5, backend, 2), matrix(7, 5, backend, 3)
        expected = 2 * (a @ b) - c
        assert torch.equal(weft.matmul(a, b, alpha=2, beta=-1, c=c, backend=backend.name), expected)
        assert weft.matmul(a, b, alpha=2, beta=-1, c=c, out=c, backend=backend.name) is c
        assert torch.equal(c, expected)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


BAD: list[tuple[str, Any, Any, dict[str, Any], type[weft.WeftError], tuple[str, ...]]] = [
    ("inner extents", ones(2, 3), ones(4, 5), {}, weft.ShapeError, ("(2, 3)", "(4, 5)", "columns are 3", "rows 4")),
    ("transposed", ones(2, 3), ones(2, 5), {"transpose_b": True}, weft.ShapeError,
     ("(2, 3)", "(2, 5)", "b transposed", "columns are 3", "rows 5")),
    ("one does not broadcast", ones(2, 1), ones(4, 5), {}, weft.ShapeError, ("(2, 1)", "(4, 5)", "1", "4")),
    ("vectors", ones(3), ones(4), {}, weft.ShapeError, ("(3,)", "(4,)")),
    ("batches", ones(2, 3, 4), ones(3, 4, 5), {}, weft.ShapeError, ("(2, 3, 4)", "(3, 4, 5)", "batches")),
    ("scalar", ones(), ones(4, 5), {}, weft.ShapeError, ("()", "(4, 5)", "a is a scalar")),
    ("vector transposed", ones(3, 4), ones(4), {"transpose_b": True}, weft.ShapeError, ("b is a vector", "(3, 4)")),
    ("beta without c", ones(2, 3), ones(3, 4), {"beta": 2.0}, weft.ShapeError, ("beta=2.0", "c=out")),
    ("c of another shape", ones(2, 3), ones(3, 4), {"c": ones(4, 2), "beta": 1.0}, weft.ShapeError,
     ("(4, 2)", "(2, 4)")),
    ("out of another shape", ones(2, 3), ones(3, 4), {"out": ones(4, 2)}, weft.ShapeError, ("(4, 2)", "(2, 4)")),
    ("types", ones(2, 3), ones(3, 4).half(), {}, weft.DTypeError, ("float32", "float16")),
    ("list", [[1.0]], ones(1, 2), {}, weft.DTypeError, ("a is list",)),
    ("precision", ones(2, 3), ones(3, 4), {"precision": "fast"}, weft.DTypeError, ("'fast'",)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "a", "b", "options", "error", "words"), BAD, ids=[bad[0] for bad in BAD])
def test_error(
    name: str, a: Any, b: Any, options: dict[str, Any], error: type[weft.WeftError], words: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        weft.matmul(a, b, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "in matmul(" in str(caught.value)

"""`weft.matmul`: the tests of TNL's dense matrices, torch.matmul's rules for shapes, and the errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.testing import assert_close, expectation, l2_norm, layout_strides, max_norm, poisoned, random_operand

STATES = [(False, False), (True, False), (False, True), (True, True)]
ORDERS = ["row-major", "column-major"]


def matrix(
    rows: int,
    columns: int,
    backend: Backend,
    seed: int,
    *,
    order: str = "row-major",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Whole numbers from -3 to 3, whose sums are exact."""
    layout = "permuted" if order == "column-major" else "contiguous"
    x = random_operand((rows, columns), dtype, seed, integers=True, layout=layout, device=backend.device)
    assert rows == 1 or columns == 1 or x.stride(0 if order == "column-major" else 1) == 1
    return x


def stored(x: torch.Tensor, transposed: bool) -> torch.Tensor:
    """`x` as an operand that is passed transposed, in an order of its own."""
    return x.T.contiguous() if transposed else x


class TestTnl:
    """The scenarios of TNL's unit tests, each for both orders of storage."""

    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_identity(self, side: str, order: str, backend: Backend) -> None:
        a = matrix(17, 17, backend, 1, order=order)
        one = torch.eye(17, device=backend.device)
        result = weft.matmul(*(one, a) if side == "left" else (a, one), backend=backend.name)
        assert max_norm(result, a) == l2_norm(result, a) == 0

    @pytest.mark.parametrize("order", ORDERS)
    def test_zero(self, order: str, backend: Backend) -> None:
        a = matrix(9, 13, backend, 2, order=order)
        assert torch.equal(
            weft.matmul(a, torch.zeros(13, 5, device=backend.device), backend=backend.name),
            torch.zeros(9, 5, device=backend.device),
        )

    @pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
    def test_empty(self, m: int, k: int, n: int, backend: Backend) -> None:
        """An empty sum is zero."""
        a, b = torch.ones(m, k, device=backend.device), torch.ones(k, n, device=backend.device)
        result = weft.matmul(a, b, backend=backend.name)
        assert torch.equal(result, torch.zeros(m, n, device=backend.device))

    def test_single_element(self, backend: Backend) -> None:
        a, b = torch.full((1, 1), 3.0, device=backend.device), torch.full((1, 1), -2.0, device=backend.device)
        assert weft.matmul(a, b, backend=backend.name).tolist() == [[-6.0]]

    @pytest.mark.parametrize(("m", "k", "n"), [(1, 40, 1), (40, 1, 40), (1, 19, 23), (23, 19, 1), (1, 1, 9)])
    @pytest.mark.parametrize("order", ORDERS)
    def test_single_rows_and_columns(self, m: int, k: int, n: int, order: str, backend: Backend) -> None:
        """The thesis's thin shapes, 1x100 by 100x1 and 100x1 by 1x100, among them."""
        a, b = matrix(m, k, backend, 3, order=order), matrix(k, n, backend, 4, order=order)
        assert torch.equal(weft.matmul(a, b, backend=backend.name), a @ b)

    @pytest.mark.parametrize(("transpose_a", "transpose_b"), STATES)
    @pytest.mark.parametrize("order_a", ORDERS)
    @pytest.mark.parametrize("order_b", ORDERS)
    def test_states(
        self, transpose_a: bool, transpose_b: bool, order_a: str, order_b: str, quick_backend: Backend
    ) -> None:
        """All four states, row- and column-major in any mix, the result in either order."""
        m, k, n = 19, 33, 27
        shape_a, shape_b = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
        a = matrix(*shape_a, quick_backend, 5, order=order_a)
        b = matrix(*shape_b, quick_backend, 6, order=order_b)
        expected = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
        for layout in ("contiguous", "permuted", "padded"):
            guarded = poisoned((m, n), torch.float32, layout=layout, device=quick_backend.device)
            result = weft.matmul(
                a, b, transpose_a=transpose_a, transpose_b=transpose_b, out=guarded.tensor, backend=quick_backend.name
            )
            assert result is guarded.tensor
            guarded.check_guards()
            assert torch.equal(result, expected)

    @pytest.mark.parametrize(("transpose_a", "transpose_b"), STATES)
    def test_states_in_the_interpreter(self, transpose_a: bool, transpose_b: bool) -> None:
        backend = Backend("triton", "cpu")
        a, b = matrix(9, 12, backend, 5), matrix(12, 7, backend, 6)
        result = weft.matmul(
            stored(a, transpose_a), stored(b, transpose_b), transpose_a=transpose_a, transpose_b=transpose_b,
            backend="triton",
        )  # fmt: skip
        assert torch.equal(result, a @ b)

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


class TestNorms:
    """The two norms by which a difference is reported."""

    def test_values(self) -> None:
        x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, -1.0], [3.0, 8.0]])
        assert max_norm(x, y) == 4
        assert l2_norm(x, y) == 5
        assert max_norm(x * 1j, y * 1j) == 4
        assert max_norm(torch.empty(0), torch.empty(0)) == l2_norm(torch.empty(0), torch.empty(0)) == 0


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
    def test_functions_are_fused(self, backend: Backend) -> None:
        a, b = matrix(7, 9, backend, 1), matrix(9, 5, backend, 2)
        result = weft.matmul(
            a, b, a_fn=torch.relu, b_fn=lambda v: 2 * v, epilogue=lambda v: v + 1, alpha=3, backend=backend.name
        )
        assert torch.equal(result, 3 * (torch.relu(a) @ (2 * b)) + 1)

    def test_accumulates(self, backend: Backend) -> None:
        a, b, c = matrix(7, 9, backend, 1), matrix(9, 5, backend, 2), matrix(7, 5, backend, 3)
        expected = 2 * (a @ b) - c
        assert torch.equal(weft.matmul(a, b, alpha=2, beta=-1, c=c, backend=backend.name), expected)
        assert weft.matmul(a, b, alpha=2, beta=-1, c=c, out=c, backend=backend.name) is c
        assert torch.equal(c, expected)

    def test_c_is_not_read_where_beta_is_0(self, backend: Backend) -> None:
        a, b = matrix(7, 9, backend, 1), matrix(9, 5, backend, 2)
        c = torch.full((7, 5), float("nan"), device=backend.device)
        assert torch.equal(weft.matmul(a, b, c=c, beta=0, backend=backend.name), a @ b)

    def test_types(self, backend: Backend) -> None:
        a, b = (matrix(9, 9, backend, seed, dtype=torch.float16) for seed in (1, 2))
        result = weft.matmul(a, b, out_dtype=torch.float32, backend=backend.name)
        assert result.dtype == torch.float32
        assert torch.equal(result, a.float() @ b.float())
        exact = weft.matmul(a, b, accumulate=torch.float64, precision=torch.float32, backend=backend.name)
        assert exact.dtype == torch.float16

    def test_the_reference_backend(self) -> None:
        backend = Backend("reference", "cpu")
        a, b = matrix(7, 9, backend, 1), matrix(9, 5, backend, 2)
        assert torch.equal(weft.matmul(a, b, backend="reference"), a @ b)


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


def orders(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Strides of a matrix in every layout with distinct elements."""
    for layout in ("contiguous", "permuted", "padded", "strided"):
        strides, _ = layout_strides(shape, layout)
        yield strides[0], strides[1]


def test_any_strides() -> None:
    """Whatever the strides, the same result."""
    a, b = torch.arange(-200.0, 200.0).view(20, 20), torch.arange(-200.0, 200.0).view(20, 20) % 7
    for strides in orders((20, 20)):
        memory = torch.zeros(1000)
        view = memory.as_strided((20, 20), strides)
        view.copy_(a)
        assert torch.equal(weft.matmul(view, b), a @ b)

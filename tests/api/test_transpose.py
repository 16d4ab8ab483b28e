"""`weft.transpose_`: the same memory, every element at its new place, nothing else touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weft
from commands import python
from permuting import DTYPES, any_bits, bits, same_bits
from support import Backend
from weft.cpu.permute import transpose
from weft.testing import poisoned, random_operand

SQUARES = [(1,), (2,), (7,), (16,), (31,), (32,), (33,), (64,), (65,)]
# Coprime, with a common divisor, one a multiple of the other, one row or column.
RECTANGLES = [(3, 5), (4, 6), (6, 4), (8, 2), (2, 9), (1, 7), (7, 1), (12, 18), (35, 21), (17, 64), (64, 17), (30, 31)]


def transposed_in_place(
    shape: tuple[int, ...], dtype: torch.dtype, backend: Backend, layout: str = "contiguous", **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result on a tensor between guards, and what it should be."""
    guarded = poisoned(shape, dtype, layout=layout, device=backend.device)
    x = guarded.tensor
    x.copy_(any_bits(shape, dtype, 1))
    dims = options.pop("dims", (-2, -1))
    expected = x.transpose(*dims).clone()
    result = weft.transpose_(x, dims, backend=backend.name, **options)
    guarded.check_guards()
    assert result.data_ptr() == x.data_ptr()
    return result, expected


class TestSquare:
    @pytest.mark.parametrize("shape", SQUARES, ids=str)
    def test_extents(self, shape: tuple[int], backend: Backend) -> None:
        assert same_bits(*transposed_in_place((*shape, *shape), torch.float32, backend))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_types(self, dtype: torch.dtype, backend: Backend) -> None:
        assert same_bits(*transposed_in_place((3, 17, 17), dtype, backend))

    @pytest.mark.parametrize("layout", ["permuted", "padded", "strided", "offset"])
    def test_views(self, layout: str, backend: Backend) -> None:
        """Square matrices may lie anyhow: what lies in the gaps stays."""
        assert same_bits(*transposed_in_place((2, 9, 9), torch.float16, backend, layout))

    @pytest.mark.parametrize("dims", [(0, 1), (0, 2), (1, 2), (-1, -3), (2, 0)])
    def test_dims(self, dims: tuple[int, int], backend: Backend) -> None:
        assert same_bits(*transposed_in_place((6, 6, 6), torch.float32, backend, dims=dims))

    def test_returns_its_argument(self, backend: Backend) -> None:
        x = torch.arange(9.0, device=backend.device).view(3, 3)
        assert weft.transpose_(x, backend=backend.name) is x
        assert torch.equal(x, torch.arange(9.0, device=backend.device).view(3, 3).T)

    def test_batches_that_do_not_lie_together(self, backend: Backend) -> None:
        memory = any_bits((4, 3, 5, 6, 6), torch.float32, 2, device=backend.device)
        before = memory.clone()
        x = memory[:, 1:, ::2, :5, :5]
        weft.transpose_(x, backend=backend.name)
        expected = before.clone()
        expected[:, 1:, ::2, :5, :5] = before[:, 1:, ::2, :5, :5].transpose(-2, -1)
        assert same_bits(memory, expected)

    def test_large_enough_for_tiles(self, quick_backend: Backend) -> None:
        """Several tiles along each side, ragged at the end."""
        for n in (513, 1000):
            assert same_bits(*transposed_in_place((n, n), torch.float32, quick_backend))


class TestRectangular:
    @pytest.mark.parametrize("shape", RECTANGLES, ids=str)
    def test_extents(self, shape: tuple[int, int], backend: Backend) -> None:
        assert same_bits(*transposed_in_place(shape, torch.float32, backend))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_types(self, dtype: torch.dtype, backend: Backend) -> None:
        assert same_bits(*transposed_in_place((3, 12, 10), dtype, backend))

    def test_what_is_returned_and_what_happens_to_x(self, backend: Backend) -> None:
        x = torch.arange(6, device=backend.device).view(2, 3)
        y = weft.transpose_(x, backend=backend.name)
        assert (y.shape, y.stride()) == ((3, 2), (2, 1))
        assert y.flatten().tolist() == [0, 3, 1, 4, 2, 5]
        assert x.shape == (2, 3)
        assert x.flatten().tolist() == [0, 3, 1, 4, 2, 5], "the same memory in its old shape"

    @pytest.mark.parametrize(
        ("stride", "result"), [((4, 1), (3, 1)), ((1, 3), (1, 4)), ((8, 2), (6, 2)), ((2, 6), (2, 8))]
    )
    def test_row_major_stays_row_major(
        self, stride: tuple[int, int], result: tuple[int, int], backend: Backend
    ) -> None:
        guarded = poisoned((3, 4), torch.int32, strides=stride, device=backend.device)
        x = guarded.tensor
        x.copy_(torch.arange(12).view(3, 4))
        y = weft.transpose_(x, backend=backend.name)
        guarded.check_guards()
        assert y.stride() == result
        assert torch.equal(y.cpu(), torch.arange(12).view(3, 4).T)

    @pytest.mark.parametrize("dims", [(0, 1), (1, 0), (1, 2), (0, 2)])
    def test_dims(self, dims: tuple[int, int], backend: Backend) -> None:
        """Dimensions beside others: their matrices must be dense for that."""
        order = [*(at for at in range(3) if at not in {dim % 3 for dim in dims}), *dims]
        x = torch.arange(60, device=backend.device).view(3, 4, 5)
        inverse = [order.index(at) for at in range(3)]
        dense = x.permute(order).contiguous().permute(inverse)
        expected = x.transpose(*dims).clone()
        assert torch.equal(weft.transpose_(dense, dims, backend=backend.name), expected)

    def test_one_row_lies_anyhow(self, backend: Backend) -> None:
        guarded = poisoned((1, 9), torch.float32, layout="strided", device=backend.device)
        guarded.tensor.copy_(torch.arange(9.0))
        y = weft.transpose_(guarded.tensor, alpha=2, backend=backend.name)
        guarded.check_guards()
        assert torch.equal(y.cpu(), 2 * torch.arange(9.0)[:, None])

    @pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
    def test_empty(self, shape: tuple[int, ...], backend: Backend) -> None:
        assert weft.transpose_(torch.empty(shape, device=backend.device)).shape == (*shape[:-2], shape[-1], shape[-2])


class TestAlpha:
    @pytest.mark.parametrize("shape", [(2, 9, 9), (2, 6, 10)], ids=str)
    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16], ids=str
    )
    def test_scales(self, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend) -> None:
        x = random_operand(shape, dtype, 1, integers=True, device=backend.device)
        expected = (-3 * x).transpose(-2, -1)
        assert torch.equal(weft.transpose_(x.contiguous(), alpha=-3, backend=backend.name), expected)

    def test_half_is_rounded_once(self, backend: Backend) -> None:
        x = random_operand((40, 40), torch.float16, 2, device=backend.device).contiguous()
        expected = (0.1 * x.float()).half().T
        assert torch.equal(weft.transpose_(x, alpha=0.1, backend=backend.name), expected)

    def test_complex(self) -> None:
        z = random_operand((3, 4), torch.complex64, 3, integers=True).contiguous()
        expected = 2j * z.T
        assert torch.equal(weft.transpose_(z, alpha=2j), expected)


@pytest.mark.parametrize("backend_name", ["cpu", "reference"])
def test_arrays_of_numpy(backend_name: str) -> None:
    x = np.arange(6.0).reshape(2, 3)
    y = weft.transpose_(x, backend=backend_name)
    assert isinstance(y, np.ndarray)
    assert np.array_equal(y, np.arange(6.0).reshape(2, 3).T)
    assert np.shares_memory(x, y)
    square = np.arange(9.0).reshape(3, 3)
    assert weft.transpose_(square, backend=backend_name) is square


ONES = torch.ones(4, 6)
READ_ONLY = np.ones((3, 3))
READ_ONLY.flags.writeable = False
BAD: list[tuple[str, Any, dict[str, Any], type[weft.WeftError], tuple[str, ...]]] = [
    ("vector", torch.ones(3), {}, weft.ShapeError, ("dimension -2", "1 dim")),
    ("same dimension", ONES, {"dims": (1, -1)}, weft.ShapeError, ("1 and -1", "same")),
    ("one dimension", ONES, {"dims": (1,)}, weft.ShapeError, ("two dimensions", "(1,)")),
    ("dims a number", ONES, {"dims": 1}, weft.ShapeError, ("two dimensions",)),
    ("dims that are no integers", torch.ones(2, 2), {"dims": (0.7, 1.9)}, weft.ShapeError, ("two dimensions", "0.7")),
    ("dims as text", torch.ones(2, 2), {"dims": "01"}, weft.ShapeError, ("two dimensions", "'01'")),
    ("no such dimension", ONES, {"dims": (0, 2)}, weft.ShapeError, ("dimension 2", "2 dim")),
    ("padded", torch.ones(4, 8)[:, :6], {}, weft.ShapeError, ("4 x 6", "(8, 1)", "not dense")),
    ("expanded", torch.ones(4, 1).expand(4, 4), {}, weft.ShapeError, ("overlaps itself",)),
    ("overlapping", torch.ones(9).as_strided((4, 4), (1, 1)), {}, weft.ShapeError, ("overlaps itself",)),
    ("conjugate", torch.ones(3, 3, dtype=torch.complex64).conj(), {}, weft.UnsupportedError, ("conjugate",)),
    ("negative", torch.ones(3, 3, dtype=torch.complex64).conj().imag, {}, weft.UnsupportedError, ("negative",)),
    ("gradient", torch.ones(3, 3).requires_grad_(), {}, weft.UnsupportedError, ("gradient",)),
    ("read-only", READ_ONLY, {}, weft.UnsupportedError, ("x", "read-only")),
    ("list", [[1.0]], {}, weft.DTypeError, ("x is list",)),
    ("half an integer", torch.ones(3, 3, dtype=torch.int32), {"alpha": 0.5}, weft.DTypeError, ("alpha=0.5",)),
    ("complex alpha", ONES, {"alpha": 1j}, weft.DTypeError, ("alpha", "complex")),
    ("alpha beyond 64 bits", torch.ones(3, 3, dtype=torch.int64), {"alpha": 2**63}, weft.DTypeError, ("64 bits",)),
    ("bool scaled", torch.ones(3, 3, dtype=torch.bool), {"alpha": 2}, weft.DTypeError, ("bool",)),
    ("backend unheard of", ONES, {"backend": "gpu"}, weft.UnsupportedError, ("'gpu'",)),
]


@pytest.mark.parametrize(("name", "x", "options", "error", "words"), BAD, ids=[bad[0] for bad in BAD])
def test_error(name: str, x: Any, options: dict[str, Any], error: type[weft.WeftError], words: tuple[str, ...]) -> None:
    before = bits(x.resolve_conj().resolve_neg()) if isinstance(x, torch.Tensor) else None
    with pytest.raises(error) as caught:
        weft.transpose_(x, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "transpose_" in str(caught.value)
    assert before is None or torch.equal(bits(x.resolve_conj().resolve_neg()), before)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and panels of a few elements, so that small matrices take the ways of large ones, shared among threads."""
    for name, value in {"PANEL": 200, "SIDE": 8, "LEAST": 16, "SMALL": 0}.items():
        monkeypatch.setattr(transpose, name, value)


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.usefixtures("small_buffers")
def test_every_shape_on_the_cpu(step: int, alpha: int) -> None:
    """Every shape up to 25 x 25, coprime and not, wide and tall; elements with a gap between them."""
    for rows in range(1, 26):
        for columns in range(1, 26):
            guarded = poisoned((1, rows, columns), torch.float32, strides=(0, step * columns, step))
            x = guarded.tensor
            x.copy_(torch.arange(rows * columns).view(rows, columns))
            (transpose.square_ if rows == columns else transpose.rectangular_)(x, alpha)
            guarded.check_guards()
            y = x.as_strided((columns, rows), (step * rows, step), x.storage_offset())
            expected = alpha * torch.arange(rows * columns, dtype=torch.float32).view(rows, columns).T
            assert torch.equal(y, expected), (rows, columns)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.complex128], ids=str)
@pytest.mark.usefixtures("small_buffers")
def test_every_way_moves_every_bit(dtype: torch.dtype) -> None:
    for shape in ((2, 23, 37), (2, 24, 36), (2, 70, 10), (2, 10, 70), (3, 33, 33)):
        assert same_bits(*transposed_in_place(shape, dtype, Backend("cpu", "cpu")))


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([1, 2, 6]))
def test_random_extents(rows: int, columns: int, factor: int) -> None:
    """The public call, with extents that share a factor more often than not."""
    x = torch.arange(rows * columns * factor * factor).view(rows * factor, columns * factor)
    expected = x.T.clone()
    assert torch.equal(weft.transpose_(x), expected)


def test_large_rectangles_by_the_public_call() -> None:
    """Those that choose each way on their own."""
    for rows, columns in ((1000, 300), (521, 379), (300007, 2), (3, 280001)):
        x = torch.arange(rows * columns, dtype=torch.int32).view(rows, columns)
        expected = x.T.clone()
        assert torch.equal(weft.transpose_(x), expected), (rows, columns)


def test_workspace_is_bounded() -> None:
    """Whatever the way, the process grows by no more than 24 MiB, workers and torch's own threads among it."""
    shapes = ((6007, 5003), (2000003, 16), (6000, 6000), (6000, 9000))
    code = (
        "import resource, torch, weft\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "weft.transpose_(torch.ones(700, 600)); kept = []\n"
        f"for shape in {shapes}:\n"
        "    kept.append(torch.ones(shape)); before = peak()\n"
        "    weft.transpose_(kept[-1]); print((peak() - before) / 1024)\n"
    )
    growth = [float(line) for line in python(code, limit=300).split()]
    assert len(growth) == len(shapes)
    assert max(growth) < 24, growth

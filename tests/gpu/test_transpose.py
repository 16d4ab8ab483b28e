"""Matrices transposed in place by the GPU's kernels: public calls, squares, and sizes that fill a device."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch

import weft
from gpu.permutations import H200
from permuting import any_bits, bits, same_bits
from support import Backend
from weft.gpu.transpose import family
from weft.gpu.transpose.family import best_decomposition, square_launch, transpose_squares_, workspace_bytes
from weft.spec import Layout

TYPES = (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128)  # 1 to 16 bytes


class Allocated:
    """Workspaces that were made: their bytes, and the most that were held at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.most = 0
        self._held: list[weakref.ref[torch.Tensor]] = []

    def add(self, made: torch.Tensor) -> None:
        if made.nbytes:
            self.sizes.append(made.nbytes)
            self._held = [each for each in self._held if each() is not None] + [weakref.ref(made)]
            self.most = max(self.most, sum(tensor.nbytes for each in self._held if (tensor := each()) is not None))


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Allocated:
    """The workspaces that are made from here on."""
    found, new_empty = Allocated(), torch.Tensor.new_empty

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        made = new_empty(*arguments, **options)
        found.add(made)
        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", counted)
    return found


@pytest.mark.parametrize(("rows", "columns"), [(48, 36), (61, 37), (37, 61), (64, 65), (300, 7), (7, 300)])
def test_public_call_within_a_small_workspace(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch, allocated: Allocated, triton_backend: Backend
) -> None:
    """A batch, by the decompositions that the model chooses on its own; no more is held at once than was said."""
    most = 2048
    monkeypatch.setattr(family, "LEAST_WORKSPACE", most)
    monkeypatch.setattr(family, "MOST_WORKSPACE", most)
    best_decomposition.cache_clear()
    x = any_bits((2, rows, columns), torch.float32, 6, device=triton_backend.device)
    expected = x.mT.clone()
    result = weft.transpose_(x, backend=triton_backend.name)
    best_decomposition.cache_clear()
    assert 0 < allocated.most <= most
    assert same_bits(result, expected)


def test_batches_go_by_way_of_the_workspace_together(triton_backend: Backend, allocated: Allocated) -> None:
    x = any_bits((7, 5, 6), torch.int16, 7, device=triton_backend.device)
    expected = x.mT.clone()
    result = weft.transpose_(x, backend=triton_backend.name)
    assert allocated.sizes == [7 * 5 * 6 * 2]
    assert same_bits(result, expected)


@pytest.mark.gpu
class TestOnTheDevice:
    """Sizes at which programs really run beside one another."""

    SHAPES = ((1000, 9000), (10000, 300), (4096, 12288), (10007, 301), (3001, 7001), (4096, 12289), (2000003, 3))

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    def test_there_and_back(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        size = dtype.itemsize
        x = torch.randint(0, 256, (shape[0] * shape[1] * size,), dtype=torch.uint8, device="cuda").view(dtype)
        x = x.view(shape)
        before = x.clone()
        y = weft.transpose_(x)
        assert y.data_ptr() == x.data_ptr()
        assert device_bits_equal(y, before.T.contiguous())
        assert device_bits_equal(weft.transpose_(y), before)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_workspace(self, shape: tuple[int, int]) -> None:
        x = torch.zeros(shape, device="cuda")
        weft.transpose_(x)  # the tables are made and stay
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_stats()["requested_bytes.all.current"]
        weft.transpose_(x)
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        assert 0 < peak - start <= workspace_bytes(x.numel() * 4)

    @pytest.mark.parametrize("shape", [(46340, 46360), (46337, 46349)], ids=str)
    def test_past_32_bits(self, shape: tuple[int, int]) -> None:
        x = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        expected = x.T.contiguous()
        assert torch.equal(weft.transpose_(x), expected)

    def test_in_a_graph(self) -> None:
        """Its tables outlive those of other shapes."""
        x = torch.rand(1500, 3000, device="cuda")
        before = x.clone()
        weft.transpose_(x.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = weft.transpose_(x)
        for rows in range(1501, 1512):
            weft.transpose_(torch.zeros(rows, 2 * rows, device="cuda"))
        x.copy_(before)
        graph.replay()
        assert torch.equal(y, before.T)

    def test_a_graph_of_a_new_shape_is_refused(self) -> None:
        x = torch.rand(1700, 3400, device="cuda")
        with pytest.raises(weft.UnsupportedError, match="once before"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            weft.transpose_(x)
        before = x.clone()
        assert torch.equal(weft.transpose_(x), before.T)


def device_bits_equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit, on the device; both contiguous."""
    seen = [torch.view_as_real(each) if each.is_complex() else each for each in (x, y)]
    return x.shape == y.shape and torch.equal(*(each.view(torch.uint8) for each in seen))


def test_squares_of_two_batches(triton_backend: Backend) -> None:
    """Squares cut of one matrix, as views with two batch dimensions, of 1- to 16-byte elements."""
    for dtype, (down, across) in itertools.product(TYPES, ((1, 3), (2, 1), (3, 2))):
        x = any_bits((down * 9, across * 9), dtype, 8, device=triton_backend.device)
        squares = x.unflatten(0, (down, 9)).unflatten(2, (across, 9)).transpose(1, 2)
        expected = squares.mT.clone()
        transpose_squares_(squares, 1)
        assert torch.equal(bits(squares), bits(expected))


@pytest.mark.parametrize(("n", "dtype"), [(1032, torch.int16), (1033, torch.int16), (520, torch.float32)])
def test_squares_of_many_tiles(n: int, dtype: torch.dtype, triton_backend: Backend) -> None:
    """Whose rows are made of accesses of 16 bytes, and not."""
    x = torch.arange(n * n, dtype=torch.int64).to(triton_backend.device, dtype).view(1, n, n)
    expected = x.mT.clone()
    family.square_(x)
    assert torch.equal(bits(x), bits(expected))


def test_tiles_are_large_where_accesses_are_wide() -> None:
    def tile(n: int, dtype: torch.dtype, alignment: int = 16) -> int:
        layout = Layout((1, 1, n, n), (n * n, n * n, n, 1), dtype, alignment)
        return int(square_launch(layout, False, H200).constants["PARAMS"].tile)

    assert tile(4096, torch.int16) == tile(5000, torch.int16) == 128
    assert tile(5001, torch.int16) == tile(4096, torch.int16, alignment=2) == tile(200, torch.int16) == 64
    assert (tile(5000, torch.int32), tile(5002, torch.int32)) == (64, 32)


def test_squares_past_32_bits() -> None:
    """Two squares 2^31 bytes apart, beside rows 2^28 bytes apart."""
    memory = torch.empty(2**31 + 6 * 2**28, dtype=torch.uint8)
    squares = memory.as_strided((1, 2, 5, 5), (0, 2**31, 2**28, 1))
    before = torch.arange(50, dtype=torch.uint8).view(1, 2, 5, 5)
    squares.copy_(before)
    transpose_squares_(squares, 1)
    assert torch.equal(squares, before.mT)

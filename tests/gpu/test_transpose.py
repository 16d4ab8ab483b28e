"""What rectangular matrices are taken apart into, every way of it, and the chunks that change places along cycles."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import weft
from permuting import any_bits, bits, same_bits
from support import Backend
from weft.gpu.transpose import buffer as transpose_buffer
from weft.gpu.transpose import chunks as transpose_chunks
from weft.gpu.transpose import family as transpose
from weft.gpu.transpose import slide as transpose_slide
from weft.gpu.transpose import way as transpose_way
from weft.gpu.transpose.cycles import by_cycles, moves
from weft.gpu.transpose.way import Way, choose, workspace_bytes
from weft.planner.schedule import Target
from weft.spec import Layout
from weft.testing import poisoned

TYPES = (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128)  # 1 to 16 bytes
ORDERS = [(1, 5, 3), (4, 1, 9), (3, 4, 5), (1, 40, 7), (16, 1, 16), (2, 1, 2), (1, 3, 1), (1, 1, 1), (7, 64, 3)]


def exchanged_source(order: tuple[int, int, int]) -> np.ndarray:
    """Where each chunk of [B][q][A] comes from in [A][q][B]."""
    return np.arange(np.prod(order)).reshape(order).transpose(2, 1, 0).reshape(-1)


def permutations() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    one_cycle = [np.roll(np.arange(count), 1) for count in (2, 3, 63, 64, 65, 1000)]
    pairs = [np.arange(count)[::-1].copy() for count in (2, 17, 1000)]
    mixed = [generator.permutation(count) for count in (1, 5, 64, 1000, 5000) for _ in range(3)]
    return [*one_cycle, *pairs, *mixed, np.arange(20), *(exchanged_source(order) for order in ORDERS)]


class TestCycles:
    def test_every_moving_element_stands_behind_the_one_it_moves_to(self) -> None:
        for source in permutations():
            order = by_cycles(source)
            assert sorted(order) == np.flatnonzero(source != np.arange(source.size)).tolist()
            breaks = [k for k in range(len(order)) if k + 1 == len(order) or source[order[k]] != order[k + 1]]
            start = 0
            for stop in breaks:
                assert source[order[stop]] == order[start], "a cycle is left before it is closed"
                start = stop + 1

    @pytest.mark.parametrize("group", [1, 4, 16])
    def test_groups_may_run_in_any_order(self, group: int) -> None:
        generator = np.random.default_rng(2)
        for source in permutations():
            found = moves(source, group)
            before = generator.integers(0, 1 << 40, source.size)
            kept = before[found.kept]
            after = before.copy()
            for start in generator.permutation(np.arange(0, found.target.size, group)):
                target, wanted = found.target[start : start + group], found.source[start : start + group]
                values = [kept[-1 - at] if at < 0 else after[at] for at in wanted]
                for at, value in zip(target, values, strict=True):
                    if at >= 0:
                        after[at] = value
            assert np.array_equal(after, before[source])

    def test_few_chunks_are_kept(self) -> None:
        """About one of each group: two at most."""
        for order in ((1, 1000, 9), (100, 100, 3), (1, 4096, 3), (64, 1, 1009), (1024, 1, 1024)):
            found = moves(exchanged_source(order), 16)
            assert np.count_nonzero(found.kept >= 0) <= np.prod(order) / 8


class TestChunks:
    @pytest.mark.parametrize("order", ORDERS, ids=str)
    @pytest.mark.parametrize("length", [1, 7, 64])
    def test_orders(self, order: tuple[int, int, int], length: int, triton_backend: Backend) -> None:
        self.check(order, length, torch.int32, 1, 1 << 20, triton_backend)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
    @pytest.mark.parametrize("step", [1, 3])
    def test_words(self, dtype: torch.dtype, step: int, triton_backend: Backend) -> None:
        self.check((5, 4, 3), 37, dtype, step, 1 << 20, triton_backend)

    @pytest.mark.parametrize("workspace", [0, 100, 300])
    def test_slices(self, workspace: int, triton_backend: Backend) -> None:
        """A workspace of less than all kept chunks, down to a word of each."""
        self.check((8, 3, 5), 41, torch.int32, 1, workspace, triton_backend)

    def check(
        self, order: tuple[int, int, int], length: int, dtype: torch.dtype, step: int, workspace: int, backend: Backend
    ) -> None:
        count = int(np.prod(order))
        guarded = poisoned((count, length), dtype, strides=(length * step, step), device=backend.device)
        before = any_bits((count, length), dtype, 3)
        guarded.tensor.copy_(before)
        transpose_chunks.exchange_(guarded.tensor, order, workspace)
        guarded.check_guards()
        assert torch.equal(guarded.tensor.cpu(), before[torch.from_numpy(exchanged_source(order))])

    def test_past_32_bits(self) -> None:
        """Chunks 2^29 words apart, of which only the first few words are touched."""
        memory = torch.empty(6 * 2**29, dtype=torch.uint8)
        chunks = memory.as_strided((6, 8), (2**29, 1))
        before = torch.arange(48, dtype=torch.uint8).view(6, 8)
        chunks.copy_(before)
        transpose_chunks.exchange_(chunks, (2, 1, 3), 1 << 20)
        assert torch.equal(chunks, before[[0, 3, 1, 4, 2, 5]])


WAYS: list[tuple[tuple[int, int], Way]] = [
    ((12, 18), Way("squares", 12, 18, 6, 0.0)),
    ((18, 12), Way("squares", 18, 12, 3, 0.0)),
    ((7, 21), Way("squares", 7, 21, 7, 0.0)),
    ((7, 9), Way("squares", 7, 9, 1, 0.0)),
    ((14, 25), Way("squares", 14, 21, 7, 0.0)),  # columns are left over
    ((40, 17), Way("squares", 34, 17, 17, 0.0)),  # rows are
    ((23, 31), Way("squares", 21, 28, 7, 0.0)),  # both are
    ((45, 70), Way("squares", 40, 64, 8, 0.0)),
    ((24, 35), Way("row panels", 24, 35, 8, 0.0)),
    ((37, 3), Way("row panels", 32, 3, 8, 0.0)),
    ((3, 50), Way("row panels", 2, 50, 2, 0.0)),
    ((35, 24), Way("column panels", 35, 24, 6, 0.0)),
    ((3, 100), Way("column panels", 3, 96, 16, 0.0)),
    ((41, 5), Way("column panels", 41, 4, 2, 0.0)),
]


@pytest.mark.parametrize(("shape", "way"), WAYS, ids=[f"{w.kind} {s[0]}x{s[1]}" for s, w in WAYS])
class TestEveryWay:
    def check(
        self, shape: tuple[int, int], way: Way, dtype: torch.dtype, backend: Backend, step: int, workspace: int
    ) -> None:
        rows, columns = shape
        guarded = poisoned(shape, dtype, strides=(columns * step, step), device=backend.device)
        x = guarded.tensor
        x.copy_(any_bits(shape, dtype, 4))
        expected = x.T.clone()
        seen = x if dtype.is_complex else x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(x.itemsize))
        transpose._taken_apart(seen, way, workspace, 1)
        guarded.check_guards()
        assert same_bits(x.as_strided((columns, rows), (rows * step, step), x.storage_offset()), expected)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.complex128], ids=str)
    def test_bits(self, shape: tuple[int, int], way: Way, dtype: torch.dtype, triton_backend: Backend) -> None:
        self.check(shape, way, dtype, triton_backend, 1, 1 << 20)

    def test_a_step_between_elements(self, shape: tuple[int, int], way: Way, triton_backend: Backend) -> None:
        for dtype in (torch.int32, torch.complex128):
            self.check(shape, way, dtype, triton_backend, 2, 1 << 20)

    @pytest.mark.parametrize("workspace", [40, 500])
    def test_buffers_of_a_few_elements(
        self, shape: tuple[int, int], way: Way, workspace: int, triton_backend: Backend
    ) -> None:
        """Many turns, rows cut, chunks in slices."""
        left = (shape[0] * shape[1] - way.rows * way.columns) * 4
        self.check(shape, way, torch.float32, triton_backend, 1, left + workspace)

    def test_alpha(self, shape: tuple[int, int], way: Way, triton_backend: Backend) -> None:
        x = torch.randint(-30, 31, shape, generator=torch.Generator().manual_seed(5)).half()
        expected = (-2.5 * x).T
        seen = x.to(triton_backend.device)
        transpose._taken_apart(seen, way, 1 << 20, -2.5)
        assert torch.equal(seen.cpu().view(shape[::-1]), expected)


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many programs for few elements."""
    monkeypatch.setattr(transpose_slide, "_TILE", 64)
    monkeypatch.setattr(transpose_slide, "LEAST_PROGRAMS", 2)
    monkeypatch.setattr(transpose_slide, "MOST_PROGRAMS", 9)


@pytest.mark.usefixtures("short_stretches")
class TestSlide:
    """Rows that close up or move apart. The interpreter runs programs in the order in which each spoils the next."""

    @pytest.mark.parametrize("apart", [False, True])
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
    @pytest.mark.parametrize("step", [1, 2])
    def test_rows(self, apart: bool, dtype: torch.dtype, step: int, triton_backend: Backend) -> None:
        several = 0
        for rows, columns, gap in ((2, 90, 1), (40, 13, 1), (7, 60, 9), (60, 3, 2), (3, 90, 20)):
            params = transpose_slide.slide_params(rows, columns, gap, step, dtype.itemsize, 1 << 16, apart=apart)
            assert params is not None
            several += params.programs > 2
            guarded = poisoned((rows * (columns + gap),), dtype, strides=(step,), device=triton_backend.device)
            memory = guarded.tensor
            memory.copy_(any_bits(memory.shape, dtype, 9))
            narrow, spread = (
                memory.as_strided((rows, columns), (pitch * step, step), memory.storage_offset())
                for pitch in (columns, columns + gap)
            )
            expected = (narrow if apart else spread).clone()
            transpose_slide.slide_(memory, params)
            guarded.check_guards()
            assert torch.equal(spread if apart else narrow, expected), (rows, columns, gap)
        assert several

    def test_wide_gaps_are_left_to_a_buffer(self) -> None:
        assert transpose_slide.slide_params(100, 100, 90, 1, 4, 4000, apart=False) is None

    @pytest.mark.parametrize("shape", [(23, 31), (40, 17), (14, 25)], ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
    @pytest.mark.parametrize("step", [1, 2])
    def test_within_a_transposition(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        step: int,
        monkeypatch: pytest.MonkeyPatch,
        triton_backend: Backend,
    ) -> None:
        slid: list[bool] = []
        slide = transpose_slide.slide_

        def counted(words: torch.Tensor, params: transpose_slide.SlideParams) -> None:
            slid.append(params.apart)
            slide(words, params)

        monkeypatch.setattr(transpose_buffer, "slide_", counted)
        way = next(way for given, way in WAYS if given == shape)
        TestEveryWay().check(shape, way, dtype, triton_backend, step, 1 << 20)
        left = {True: way.rows < shape[0], False: way.columns < shape[1]}
        assert set(slid) == {apart for apart in left if left[apart]}


class TestChoice:
    SHAPES = ((1000, 9000), (10000, 300), (4096, 12288), (10007, 301), (3001, 7001), (4096, 12289), (10**7, 3))

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("tall", [True, False])
    def test_parts_are_whole_and_the_rest_fits(self, shape: tuple[int, int], itemsize: int, tall: bool) -> None:
        rows, columns = shape if tall else shape[::-1]
        workspace = workspace_bytes(rows * columns * itemsize)
        way = choose(rows, columns, itemsize, workspace)
        kept = (rows * columns - way.rows * way.columns) * itemsize
        assert 0 < way.rows <= rows
        assert 0 < way.columns <= columns
        assert way.kind == "column panels" or way.rows % way.side == 0
        assert way.kind == "row panels" or way.columns % way.side == 0
        assert way.kind != "row panels" or (
            way.columns == columns and way.side * columns * itemsize <= workspace - kept
        )
        assert way.kind != "column panels" or (way.rows == rows and way.side * rows * itemsize <= workspace - kept)
        assert kept <= workspace // 4

    @pytest.mark.parametrize(
        ("shape", "side"), [((1000, 9000), 1000), ((10000, 300), 100), ((300, 10000), 100), ((4096, 12288), 4096)]
    )
    def test_a_large_common_divisor_makes_squares(self, shape: tuple[int, int], side: int) -> None:
        way = choose(*shape, 4, workspace_bytes(shape[0] * shape[1] * 4))
        assert (way.kind, way.rows, way.columns, way.side) == ("squares", *shape, side)

    def test_workspace_is_a_small_part_and_bounded(self) -> None:
        assert workspace_bytes(1) == 8 << 20
        assert workspace_bytes(128 << 20) == 16 << 20
        assert workspace_bytes(1 << 40) == 32 << 20


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every workspace that is made from here on."""
    sizes: list[int] = []
    empty = torch.empty

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        made = empty(*arguments, **options)
        sizes.append(made.numel() * made.itemsize)
        return made

    for room in (transpose, transpose_buffer, transpose_chunks):
        monkeypatch.setattr(room.torch, "empty", counted)
    return sizes


@pytest.mark.parametrize(("rows", "columns"), [(48, 36), (61, 37), (37, 61), (64, 65), (300, 7), (7, 300)])
def test_public_call_within_a_small_workspace(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch, allocated: list[int], triton_backend: Backend
) -> None:
    """A batch, in the ways that the model chooses on its own; no buffer is larger than was said."""
    workspace = 2048
    monkeypatch.setattr(transpose_way, "LEAST_WORKSPACE", workspace)
    monkeypatch.setattr(transpose_way, "MOST_WORKSPACE", workspace)
    monkeypatch.setattr(transpose_way, "_LAUNCH", 0.0)
    monkeypatch.setattr(transpose_way, "_MOST_CHUNKS", 1 << 6)
    choose.cache_clear()
    x = any_bits((2, rows, columns), torch.float32, 6, device=triton_backend.device)
    expected = x.mT.clone()
    before = len(allocated)
    result = weft.transpose_(x, backend=triton_backend.name)
    buffers = allocated[before:]
    way = choose(rows, columns, 4, workspace)
    assert buffers
    assert max(buffers) + (rows * columns - way.rows * way.columns) * 4 <= workspace
    choose.cache_clear()
    assert same_bits(result, expected)


def test_batches_go_through_the_buffer_together(triton_backend: Backend, allocated: list[int]) -> None:
    x = any_bits((7, 5, 6), torch.int16, 7, device=triton_backend.device)
    expected = x.mT.clone()
    before = len(allocated)
    result = weft.transpose_(x, backend=triton_backend.name)
    assert allocated[before:] == [7 * 5 * 6 * 2]
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
        transpose._squares(squares, 1)
        assert torch.equal(bits(squares), bits(expected))


@pytest.mark.parametrize(("n", "dtype"), [(1032, torch.int16), (1033, torch.int16), (520, torch.float32)])
def test_squares_of_many_tiles(n: int, dtype: torch.dtype, triton_backend: Backend) -> None:
    """Whose rows are made of accesses of 16 bytes, and not."""
    x = torch.arange(n * n, dtype=torch.int64).to(triton_backend.device, dtype).view(1, n, n)
    expected = x.mT.clone()
    transpose.square_(x)
    assert torch.equal(bits(x), bits(expected))


def test_tiles_are_large_where_accesses_are_wide() -> None:
    def tile(n: int, dtype: torch.dtype, alignment: int = 16) -> int:
        target = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
        layout = Layout((1, 1, n, n), (n * n, n * n, n, 1), dtype, alignment)
        return int(transpose._square_launch(layout, False, target).constants["TILE"])

    assert tile(4096, torch.int16) == tile(5000, torch.int16) == 128
    assert tile(5001, torch.int16) == tile(4096, torch.int16, alignment=2) == tile(200, torch.int16) == 64
    assert (tile(5000, torch.int32), tile(5002, torch.int32)) == (64, 32)


def test_squares_past_32_bits() -> None:
    """Two squares 2^31 bytes apart, beside rows 2^28 bytes apart."""
    memory = torch.empty(2**31 + 6 * 2**28, dtype=torch.uint8)
    squares = memory.as_strided((1, 2, 5, 5), (0, 2**31, 2**28, 1))
    before = torch.arange(50, dtype=torch.uint8).view(1, 2, 5, 5)
    squares.copy_(before)
    transpose._squares(squares, 1)
    assert torch.equal(squares, before.mT)

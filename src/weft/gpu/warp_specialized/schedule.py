"""Schedules of warp-specialised kernels, the map of what they store, and roles of warps.

Two consumers share output tiles, and all roles the registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import torch

from weft.gpu.common.constants import TensorMap
from weft.gpu.common.constraints import LEAST_SPLIT_STEPS, REGISTERS, SHARED_MEMORY, VECTOR, sm_count
from weft.gpu.common.contraction_launch import StreamK, most_splits, stream
from weft.gpu.common.tiling import A, B, D, nearest
from weft.gpu.warp_specialized import views
from weft.gpu.warp_specialized.views import GROUP, MOST_DIMENSIONS, TmaDim, TmaSchedule, TmaView
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import FP8

WARPS = 4  # of each consumer and of each transformer: what a matrix instruction of Hopper takes
THREADS = 128  # of each of them; and of all producers with the idle warps that fill up their group of four
CONSUMERS = 2

# Registers of a thread. All threads of a CTA begin with the same number, a multiple of 8, and the roles then trade
# theirs (`setmaxnreg`). The assembler (ptxas 12.8) has any one instruction make do with the number at the beginning.
MOST_CONSUMER = 240
OTHER_CONSUMER = 24  # of a consumer, besides accumulators and what A's function is applied to
PRODUCER = 24
TRANSFORMER = {80: 80, 56: 40}  # of a transformer, and how many elements it then computes at once

WIDE_MMA, NARROW_MMA, NARROWEST_MMA = 256, 128, 64  # columns of a matrix instruction
NARROW_MMA_REGISTERS = 96  # that one of 128 columns needs at the beginning


class Consumers(NamedTuple):
    """How two consumers share output tiles."""

    name: str
    m_parts: int  # of an output tile's rows: 2, one for each consumer, or 1
    pipelines: int  # of tiles of A
    n_tiles: int  # output tiles that are taken at once, neighbours along n
    buffers: int  # of each consumer, for subtiles of D: of two, one is filled while TMA stores the other

    @property
    def b_pipelines(self) -> int:
        """Pipelines of tiles of B."""
        return self.pipelines * self.n_tiles


# Each consumer has half of the rows of an output tile, and both read every tile of B.
COOPERATIVE = Consumers("cooperative", m_parts=2, pipelines=1, n_tiles=1, buffers=2)
# Each has output tiles and a pipeline of its own: while one stores, or applies functions, the other multiplies.
PINGPONG = Consumers("pingpong", m_parts=1, pipelines=2, n_tiles=1, buffers=2)
# They have two output tiles of the same rows, and both read every tile of A.
PAIRED_N = Consumers("paired_n", m_parts=1, pipelines=1, n_tiles=2, buffers=1)


class WarpRoles(NamedTuple):
    """The roles besides the first consumer, which runs on the warps that the CTA starts with."""

    transformers: int
    warps: tuple[int, ...]  # of each role: the second consumer (and the first), transformers, producers
    registers: tuple[int, ...]  # of a thread of each
    elements: int = 0  # of B that a thread computes at once, where B has a function
    mma_columns: int = WIDE_MMA  # at most, of a matrix instruction


def roles(contraction: Contraction, tile: tuple[int, int, int], consumers: Consumers) -> WarpRoles | None:
    """The roles for a tile (M, N, K), or None where there are not enough registers for them.

    Consumers apply A's function, transformers B's. There are four transformers where each has registers to compute
    whole tiles at once, else two.
    """
    tile_m, tile_n, tile_k = tile
    rows = tile_m // consumers.m_parts
    product = contraction.arithmetic.product
    if product in FP8 and 2 * rows * tile_n // THREADS + OTHER_CONSUMER > MOST_CONSUMER:  # the sums of a step are apart
        return None
    if contraction.b_fn is None:
        # Triton knows no instruction of 256 columns for int8.
        return _roles(consumers, MOST_CONSUMER)._replace(mma_columns=NARROW_MMA if product is torch.int8 else WIDE_MMA)
    fragments = tile_k if contraction.a_fn is not None else 0  # of this step and the next, two elements to a register
    least = rows * (tile_n + fragments) // THREADS + OTHER_CONSUMER
    for transformers, elements in (4, tile_n * tile_k), (2, 0):
        if transformers % consumers.b_pipelines:
            continue
        threads = THREADS * (CONSUMERS + transformers + 1)
        first = REGISTERS // threads // 8 * 8
        mma_columns = NARROW_MMA if first >= NARROW_MMA_REGISTERS else NARROWEST_MMA
        for transforming, at_once in TRANSFORMER.items():
            left = first * threads - THREADS * (PRODUCER + transformers * transforming)
            consuming = min(MOST_CONSUMER, left // (CONSUMERS * THREADS) // 8 * 8)
            if consuming >= least and at_once * THREADS >= elements:
                found = _roles(consumers, consuming, transformers, transforming)
                return found._replace(elements=at_once, mma_columns=mma_columns)
    return None


def _roles(consumers: Consumers, consuming: int, transformers: int = 0, transforming: int = 0) -> WarpRoles:
    """Two consumers, some transformers, and a producer for each pipeline."""
    warps = (WARPS, *[WARPS] * transformers, *[1] * consumers.pipelines)
    registers = (consuming, *[transforming] * transformers, *[PRODUCER] * consumers.pipelines)
    return WarpRoles(transformers, warps, registers)


SUBTILE_BYTES = 128  # of a row of a subtile: the widest line that shared memory takes without conflicts

_ROLES = {Role.BATCH: 0, Role.M: 1, Role.N: 2}


class OutputMap(NamedTuple):
    """The tensor that subtiles are stored in."""

    tensor: TensorMap | Layout  # D's layout where it is stored through pointers
    along_n: bool  # a subtile's rows are contiguous in the tensor, else its columns
    dims: tuple[TmaDim, ...]  # of D's tensor map; empty for a workspace of partials, which is (partial, row, column)
    shape: tuple[int, int]  # of a subtile as it lies in the tensor


def subtile_columns(contraction: Contraction, schedule: TmaSchedule) -> int:
    """Columns of a subtile: as many in both parts of a tile along n where there are two."""
    split = schedule.splits > 1
    size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    return min(SUBTILE_BYTES // size, views.n_parts(schedule.tile[1])[-1])


def partials_layout(contraction: Contraction, schedule: TmaSchedule, tiles: int) -> Layout:
    """The workspace of split-K partials, (splits * output tiles, rows, columns). Rows and columns that no output tile
    has are left out: TMA does not store what is outside the tensor."""
    accumulate = contraction.arithmetic.accumulate
    aligned = VECTOR // accumulate.itemsize
    tile_m, tile_n, _ = schedule.tile
    rows = min(tile_m, -(-views.extent(schedule.a.outer) // aligned) * aligned)
    columns = min(tile_n, -(-views.extent(schedule.b.outer) // aligned) * aligned)
    return Layout.contiguous((tiles * schedule.splits, rows, columns), accumulate)


def output_dimensions(contraction: Contraction, a: TmaView, b: TmaView) -> tuple[tuple[Mode, ...], ...] | None:
    """The dimensions of D's tensor map: those that a subtile spans a run of last, the contiguous one at the very end.

    None where TMA cannot store D: modes of a dimension do not lie together in it, or strides are not aligned.
    """
    runs = (a.outer, b.outer)
    own = [group for view in (a, b) for group in view.dimensions if group[0].role in (Role.M, Role.N)]
    batch = [(mode,) for mode in contraction.of_role(Role.BATCH)]
    groups = sorted((*own, *batch), key=lambda group: (group in runs, -group[0].strides[D]))
    steps = [group[0].strides[D] for group in groups]
    aligned = all(step > 0 and step * contraction.d.dtype.itemsize % VECTOR == 0 for step in steps[:-1])
    if len(groups) > MOST_DIMENSIONS or steps[-1] != 1 or not aligned or contraction.d.alignment < VECTOR:
        return None
    return tuple(groups) if all(map(_lie_together, groups)) else None


def stored_in_runs(a: TmaView, b: TmaView) -> bool:
    """Whether D's contiguous mode is one that rows or columns run along."""
    return nearest((a.outer[0], b.outer[0]), D) is not None


def _lie_together(group: Sequence[Mode]) -> bool:
    """Whether modes, innermost first, lie together in D."""
    return all(outer.strides[D] == inner.strides[D] * inner.extent for inner, outer in pairwise(group))


def output_map(contraction: Contraction, schedule: WsSchedule, rows: int, tiles: int) -> OutputMap:
    """Where subtiles of so many rows go, of so many output tiles."""
    tile_m, tile_n, _ = schedule.tile
    columns = subtile_columns(contraction, schedule)
    if schedule.splits > 1:
        partials = TensorMap(partials_layout(contraction, schedule, tiles), (1, rows, columns))
        return OutputMap(partials, True, (), (rows, columns))
    d = contraction.d
    if schedule.word:
        along_n = schedule.b.outer[0].strides[D] == 1
        return OutputMap(d, along_n, (), (rows, columns) if along_n else (columns, rows))
    groups = output_dimensions(contraction, schedule.a, schedule.b)
    assert groups is not None, "schedules store by TMA only where TMA can store D"
    spans = {schedule.a.outer: rows, schedule.b.outer: columns}
    shape = tuple(map(views.extent, groups))
    stored = torch.uint8 if d.dtype is torch.bool else d.dtype  # no tensor map holds truth values
    layout = Layout(shape, tuple(group[0].strides[D] for group in groups), stored, d.alignment)
    batch = enumerate(contraction.of_role(Role.BATCH))
    dims: dict[tuple[Mode, ...], TmaDim] = {(mode,): TmaDim(0, axis) for axis, mode in batch}
    dims |= {
        tiled.modes: TmaDim(_ROLES[tiled.modes[0].role], axis)
        for view, tile in ((schedule.a, tile_m), (schedule.b, tile_n))
        for axis, tiled in enumerate(views.dim_axes(view, tile))
    }
    tensor_map = TensorMap(layout, tuple(spans.get(group, 1) for group in groups))
    along_n = groups[-1] == schedule.b.outer
    shape = (rows, columns) if along_n else (columns, rows)
    return OutputMap(tensor_map, along_n, tuple(dims[group] for group in groups), shape)


def stored_word(contraction: Contraction, a: TmaView, b: TmaView) -> int | None:
    """Elements of the longest word that all lines of D start at a multiple of, where they are stored through pointers;
    0 where TMA stores D, None where D's contiguous mode runs along no side of a tile."""
    if output_dimensions(contraction, a, b) is not None:
        return 0
    if not stored_in_runs(a, b):
        return None
    d = contraction.d
    steps = (mode.strides[D] * d.dtype.itemsize for mode in contraction.modes if mode.strides[D] > 1)
    return max(1, math.gcd(VECTOR, d.alignment, *steps) // d.dtype.itemsize)


def staging_bytes(rows: int, buffers: int) -> int:
    """Shared memory of both consumers for subtiles of so many rows that wait to be stored."""
    return 2 * buffers * rows * SUBTILE_BYTES


def output_tiles(contraction: Contraction, schedule: TmaSchedule) -> int:
    """How many output tiles D has."""
    tile_m, tile_n, _ = schedule.tile
    return contraction.batch * views.dim_tiles(schedule.a, tile_m) * views.dim_tiles(schedule.b, tile_n)


NAME = "warp_specialized"
LEAST_STAGES, MOST_STAGES = 2, 8
BARRIERS = 2048  # bytes of shared memory: barriers, and what the compiler needs for roles


@dataclass(frozen=True, slots=True)
class WsSchedule(TmaSchedule):
    """Tiles and their views, and how two consumers share output tiles."""

    consumers: Consumers = COOPERATIVE
    stream_k: bool = False  # all sums are cut end to end; `splits` is the most partials that one output tile has
    word: int = 0  # elements of D that a lane stores at once through a pointer; 0: TMA stores D, or partials
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        names_m, names_n = ("·".join(mode.name for mode in view.outer) for view in (self.a, self.b))
        across = "+".join(map(str, views.n_parts(n)))
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        split += " stream_k" if self.stream_k else ""
        split += self.order if self.consumers.n_tiles == 1 else ""
        split += f" store={self.word}" if self.word else ""
        return (
            f"ws.{self.consumers.name} {m}x{n}x{k} m[{names_m}:{m}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" stages={self.stages}{split}{' swap_ab' if self.swap_ab else ''}"
        )

    @property
    def rows(self) -> int:
        """Rows of an output tile, in each consumer."""
        return self.tile[0] // self.consumers.m_parts


DEPTH = 128  # bytes of k in a tile: TMA is slow for shorter lines
# Tiles (M, N), by how consumers share them.
_TILES: dict[Consumers, tuple[tuple[int, int], ...]] = {
    COOPERATIVE: (
        (128, 256), (128, 320), (128, 192), (128, 160), (128, 128), (128, 80), (256, 128), (256, 80), (256, 160),
    ),
    PINGPONG: ((64, 256), (64, 320), (128, 128), (128, 80), (128, 160)),
    PAIRED_N: ((128, 128), (128, 80), (128, 64)),
}  # fmt: skip


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are no others; `swap_ab` says that A and B are swapped already."""
    found: dict[WsSchedule | str, None] = {}
    for k in contraction.of_role(Role.K):
        views_a, views_b = (list(views.tma_views(contraction, operand, k)) for operand in (A, B))
        found |= dict.fromkeys(views.missing_views(k, views_a, views_b))
        tiles = [(tile, consumers) for consumers, sides in _TILES.items() for tile in sides]
        for a, b, (tile, consumers) in product(views_a, views_b, tiles):
            for each in _of_tile(contraction, target, a, b, k, tile, consumers):
                found[each if isinstance(each, str) else replace(each, swap_ab=swap_ab)] = None
    return Candidates.of(found)


def _of_tile(
    contraction: Contraction, target: Target, a: TmaView, b: TmaView, k: Mode, tile: tuple[int, int],
    consumers: Consumers,
) -> Iterator[WsSchedule | str]:  # fmt: skip
    """Schedules of one tile and two views; or, where one is missing, the reason in a sentence."""
    tile_m, tile_n = tile
    shape = (tile_m, tile_n, DEPTH // contraction.arithmetic.product.itemsize)
    reason = views.misfit(a, b, shape) or _no_pairs(b, tile_n, consumers)
    if reason is not None:
        yield reason
        return
    if roles(contraction, shape, consumers) is None:
        yield f"{tile_m}x{tile_n} {consumers.name} leave no registers for sums of fp8 or for functions of B"
        return
    stages = _stages(contraction, shape, consumers, target)
    if stages < LEAST_STAGES:
        yield f"tiles of {'x'.join(map(str, shape))} leave no room for another stage"
        return
    group = 1 if consumers.n_tiles > 1 else GROUP  # output tiles that are taken at once are of the same rows
    word = stored_word(contraction, a, b)
    whole = WsSchedule(a, b, k, shape, WARPS, stages, group=group, consumers=consumers, word=word or 0)
    yield whole if word is not None else "D's contiguous mode runs along no side of a tile"
    yield from _split(contraction, whole, target)


def _no_pairs(b: TmaView, tile_n: int, consumers: Consumers) -> str | None:
    """Why output tiles are not taken two at once, in one sentence."""
    if consumers.n_tiles == 1:
        return None
    if views.extent(b.outer) > tile_n:
        there = views.extent(b.outer)
        return f"two tiles of {tile_n} are taken at once only where each holds all of the {there} that lie together"
    if views.dim_tiles(b, tile_n) % consumers.n_tiles:
        return "output tiles along n are odd in number: they cannot be taken two at once"
    return None


def _split(contraction: Contraction, whole: WsSchedule, target: Target) -> Iterator[WsSchedule]:
    """The schedule with split-K or stream-K, where D alone cannot fill the device."""
    consumers = target.processors * whole.consumers.pipelines
    tiles = work_tiles_whole(contraction, whole)
    if tiles < consumers:
        steps = split_steps(contraction, whole, 1)
        counts = views.split_counts(steps, tiles, consumers)
        for splits in counts:
            yield _with_splits(contraction, whole, splits)
        least = min(-(-tiles * splits // consumers) * -(-steps // splits) for splits in (1, *counts))
        ranges = work_ranges(contraction, whole, target)
        countable = tiles * steps < 1 << 31  # kernels count in 32 bits
        if countable and LEAST_SPLIT_STEPS <= ranges.base < least - 1:
            yield _with_splits(contraction, whole, most_splits(tiles, ranges), stream_k=True)


def work_ranges(contraction: Contraction, schedule: WsSchedule, target: Target) -> StreamK:
    """Stream-K: all sums end to end, cut into a work range for each CTA, or consumer with a pipeline of its own."""
    consumers = schedule.consumers
    steps = split_steps(contraction, schedule, 1)
    tiles = work_tiles_whole(contraction, schedule)
    return stream(tiles, steps, sm_count(target) * consumers.pipelines, consumers.n_tiles)


def _with_splits(contraction: Contraction, whole: WsSchedule, splits: int, stream_k: bool = False) -> WsSchedule:
    """The schedule with split-K partials, and the workspace that they need."""
    split = replace(whole, splits=splits, stream_k=stream_k, word=0)
    layout = partials_layout(contraction, split, output_tiles(contraction, whole))
    return replace(split, workspace_bytes=math.prod(layout.shape) * layout.dtype.itemsize)


def split_steps(contraction: Contraction, schedule: WsSchedule, splits: int) -> int:
    """Steps along k of the longest of so many partials."""
    return -(-views.steps_along(contraction, schedule.k, schedule.tile[2]) // splits)


def work_tiles(contraction: Contraction, schedule: WsSchedule) -> int:
    """How many work tiles there are: partials of all output tiles, or of all pairs of them."""
    return work_tiles_whole(contraction, schedule) * schedule.splits


def work_tiles_whole(contraction: Contraction, schedule: WsSchedule) -> int:
    """How many there would be with whole sums: output tiles, or pairs of them where they are taken two at once."""
    return output_tiles(contraction, schedule) // schedule.consumers.n_tiles


def _stages(contraction: Contraction, tile: tuple[int, int, int], consumers: Consumers, target: Target) -> int:
    """Stages of each pipeline that the device has shared memory for."""
    tile_m, tile_n, tile_k = tile
    size = contraction.arithmetic.product.itemsize
    stage = consumers.pipelines * (tile_m + consumers.n_tiles * tile_n) * tile_k * size
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS
    room -= staging_bytes(tile_m // consumers.m_parts, consumers.buffers)
    return min(MOST_STAGES, room // stage)

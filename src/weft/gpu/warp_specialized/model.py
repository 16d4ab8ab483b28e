"""Parameters of the warp-specialised kernels from a schedule, and their cost."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common import cost
from weft.gpu.common.constants import GluonLayout, matrix_layout
from weft.gpu.common.constraints import GROUP_ROWS, LINE, sm_count
from weft.gpu.common.contraction_launch import StreamK
from weft.gpu.common.tiling import TENSORS, A, B, TiledAxis, TiledDim, tiled_dim, wide
from weft.gpu.warp_specialized import schedule as schedules
from weft.gpu.warp_specialized import views
from weft.gpu.warp_specialized.schedule import (
    CONSUMERS,
    PINGPONG,
    WARPS,
    Consumers,
    OutputMap,
    WarpRoles,
    WsSchedule,
    roles,
)
from weft.gpu.warp_specialized.views import TmaDim, TmaParams, TmaView
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction


class WsSubtileParams(NamedTuple):
    """Rows and columns of an output tile that a consumer stores at once."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    wide: tuple[bool, ...]
    row: int  # of the output tile, where the subtile starts
    column: int


class AccumulatorParams(NamedTuple):
    """Rows and columns of an output tile that one accumulator of one consumer holds."""

    m: TiledDim
    n: TiledDim
    row: int  # of the output tile, where they start
    subtiles: tuple[WsSubtileParams, ...]
    halvings: int  # of its columns that give the subtiles


class WsParams(NamedTuple):
    """All that the kernels take of a schedule."""

    tma: TmaParams
    accumulators: tuple[tuple[AccumulatorParams, ...], ...]  # [consumer][part along n]
    consumers: Consumers
    tiles: int  # work tiles with whole sums: output tiles, or pairs of them
    roles: WarpRoles
    stages: int  # of each pipeline
    a_first: tuple[int, int]  # [consumer] first stage of its pipeline of A
    b_first: tuple[int, int]  # the same of B
    rounds: int  # of a pipeline until a transformer meets the same stage again: each has barriers of its own
    d_dims: tuple[TmaDim, ...]
    d_along_n: bool
    d_shape: tuple[int, int]  # of a subtile as it lies in D
    d_layout: GluonLayout
    store_layout: GluonLayout | None  # in registers, of a subtile that is stored through pointers; None: TMA stores it
    stream_k: StreamK | None


def ws_params(contraction: Contraction, schedule: WsSchedule, target: Target) -> WsParams:
    whole = replace(schedule, splits=1) if schedule.stream_k else schedule
    consumers = schedule.consumers
    programs = min(sm_count(target), -(-schedules.work_tiles(contraction, schedule) // consumers.pipelines))
    tma = views.tma_params(contraction, whole, programs)._replace(splits=schedule.splits)
    output = schedules.output_map(contraction, schedule, schedule.rows, tma.blocks)
    found = roles(contraction, schedule.tile, consumers)
    assert found is not None, "schedules are offered only where there are registers"
    d_size = (contraction.d.dtype if schedule.splits == 1 else contraction.arithmetic.accumulate).itemsize
    return WsParams(
        tma=tma,
        accumulators=_accumulators(contraction, schedule, tma.batch),
        consumers=consumers,
        tiles=schedules.work_tiles_whole(contraction, schedule),
        roles=found,
        stages=schedule.stages,
        a_first=(0, schedule.stages if consumers.pipelines == 2 else 0),
        b_first=(0, schedule.stages if consumers.b_pipelines == 2 else 0),
        rounds=rounds(schedule.stages, found.transformers // consumers.b_pipelines),
        d_dims=output.dims,
        d_along_n=output.along_n,
        d_shape=output.shape,
        d_layout=matrix_layout(output.shape, True, d_size),
        store_layout=_store_layout(output, schedule.word) if schedule.word else None,
        stream_k=schedules.work_ranges(contraction, schedule, target) if schedule.stream_k else None,
    )


def _store_layout(output: OutputMap, word: int) -> GluonLayout:
    """How a subtile (rows, columns) lies in registers that are stored through pointers: a warp's lanes side by side on
    lines of D, a word each."""
    lanes = min(32, output.shape[1] // word)
    layout = (1, word), (32 // lanes, lanes), (WARPS, 1), (1, 0)
    return GluonLayout("BlockedLayout", layout if output.along_n else tuple(each[::-1] for each in layout))


def rounds(stages: int, transformers: int) -> int:
    """Rounds of a pipeline after which the same transformer meets the same stage again: they take steps in turn."""
    return math.lcm(stages, max(1, transformers)) // stages


def _accumulators(
    contraction: Contraction, schedule: WsSchedule, batch: TiledDim
) -> tuple[tuple[AccumulatorParams, ...], ...]:
    """The accumulators of each consumer: half of the rows of an output tile, or all of them; and all columns, part by
    part."""
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    *others_m, rows = views.dim_axes(schedule.a, tile_m)
    n, offsets = views.dim_axes(schedule.b, tile_n), wide(contraction.modes, tensors)
    height, narrow = schedule.rows, schedules.subtile_columns(contraction, schedule)

    def accumulator(row: int, column: int, width: int) -> AccumulatorParams:
        m = tiled_dim([*others_m, TiledAxis(rows.modes, height, True, tile_m, row)], 0, tensors)
        subtiles = tuple(
            WsSubtileParams(batch, m, views.part_of(n, first, narrow, tensors), offsets, row, first)
            for first in range(column, column + width, narrow)
        )
        across = views.part_of(n, column, width, tensors)
        return AccumulatorParams(m, across, row, subtiles, (width // narrow).bit_length() - 1)

    return tuple(
        tuple(accumulator(row, column, width) for column, width in views.placed_parts(tile_n))
        for row in (consumer % schedule.consumers.m_parts * height for consumer in range(CONSUMERS))
    )


_fit = fitted("warp_specialized")

# Fitted on an H200 to 469 timings: of matrix products of 512 to 3072 rows, and of trials of TCCG, as it lies and
# packed, with functions and without. Predictions are off by 7 % (root mean square), and by as much for 54 others
# (`results/h200/products.json`).
# launch: seconds
# rate: flops per second
# memory_rate: bytes per second
# load_rate: bytes of tiles per second, from L2, with requests at all times
# load_wait: loads take 1 + load_wait / stages times as long: with few stages requests come late
# crossing: times as long for tiles whose lines cross those of memory: L2 looks up two for each
# store_rate: bytes per second of subtiles that pass through shared memory to D
# pointer_rate: elements per second that go on to D through pointers, and half as many words
# work_tile_seconds: for each work tile of an SM, before its first products and after its last ones.
# overlap, functions_overlap, memory_overlap: exponents of the norms that join what overlaps: products and loads;
#   functions with both; memory with all that, and stores with what overlaps them.
# range_tiles, apart: stream-K: a work range mostly meets two output tiles; and tiles of operands that output tiles
#   share are requested at different times, and take so many times longer.


def predict(contraction: Contraction, schedule: WsSchedule, target: Target) -> float:
    """Seconds: work tile after work tile on the busiest SM, or all bytes at the rate of memory.

    Products, loads and functions overlap. A work tile is stored before the next is begun, but for ping-pong. A line of
    a tile that is shorter than one of memory takes as long.
    """
    contraction = views.in_kernel_order(contraction, schedule)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    consumers = schedule.consumers
    size = contraction.arithmetic.product.itemsize
    at_once = sms * consumers.pipelines
    tiles = schedules.work_tiles(contraction, schedule) if not schedule.stream_k else at_once
    turns = -(-tiles // at_once) * consumers.pipelines  # work tiles of the busiest SM
    here = sms * turns  # work tiles of all SMs, were they as busy
    depth = _steps(contraction, schedule, target) * tile_k
    across = tile_n * consumers.n_tiles
    tall = fitted("common")("tall") if schedule.rows > GROUP_ROWS else 1.0
    products = 2.0 * tile_m * across * depth * here / (_fit("rate") * 2 / size) * tall
    loads = _load_bytes(schedule, size, min(1.0, tiles / at_once)) * depth * here / _fit("load_rate")
    loads *= 1 + _fit("load_wait") / schedule.stages
    functions = cost.function_seconds(contraction, here * depth * tile_m * consumers.n_tiles, here * depth * across, 0)
    split = schedule.splits > 1
    result_size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    if contraction.c is not None and not split:
        result_size += contraction.c.dtype.itemsize
    elements = tile_m * across * here
    stores = elements * result_size / _fit("store_rate")
    if schedule.word:
        stores += elements * (1 + 2 / schedule.word) / _fit("pointer_rate")
    stores += 0.0 if split else cost.function_seconds(contraction, 0, 0, elements)
    waiting = turns * _fit("work_tile_seconds")
    if schedule.stream_k:
        loads, stores, waiting = _fit("apart") * loads, _fit("range_tiles") * stores, _fit("range_tiles") * waiting
    memory = (cost.compulsory_bytes(contraction) + _read_again(contraction, schedule)) / _fit("memory_rate")
    multiplying = _joined(_joined(products, loads, _fit("overlap")), functions, _fit("functions_overlap"))
    if consumers == PINGPONG:
        busy = _joined(multiplying, stores, _fit("memory_overlap")) + waiting
    else:
        busy = multiplying + stores + waiting
    seconds = cost.launched(_joined(busy, memory, _fit("memory_overlap")), _fit("launch"))
    return seconds + cost.reduce_seconds(schedule.workspace_bytes, schedule.splits)


def _steps(contraction: Contraction, schedule: WsSchedule, target: Target) -> int:
    """Steps along k of the longest work tile or work range."""
    if schedule.stream_k:
        return schedules.work_ranges(contraction, schedule, target).base + 1
    return schedules.split_steps(contraction, schedule, schedule.splits)


def _load_bytes(schedule: WsSchedule, size: int, busy: float) -> float:
    """Bytes that one index of k of a work tile costs L2. Lines that cross those of memory cost more, but only as far as
    L2 is busy: `busy` is the share of SMs that load."""
    tile_m, tile_n, _ = schedule.tile
    rows, columns = _crossing(schedule.a, A, size), _crossing(schedule.b, B, size)
    wide = tile_n if schedule.b.along_k else sum([max(part, LINE // size) for part in views.n_parts(tile_n)])
    wide *= schedule.consumers.n_tiles
    return max(tile_m + wide, (tile_m * rows + wide * columns) * busy) * size


def _read_again(contraction: Contraction, schedule: WsSchedule) -> int:
    """Bytes of operands that are read from memory more than once.

    With stream-K, output tiles that share tiles of an operand are at different places along k at any time: what L2 does
    not keep is read once for each of them.
    """
    if not schedule.stream_k:
        return 0
    tile_m, tile_n, _ = schedule.tile
    rows, columns, *_ = cost.own_bytes(contraction)
    across = views.dim_tiles(schedule.b, tile_n) // schedule.consumers.n_tiles
    down = views.dim_tiles(schedule.a, tile_m)
    kept = fitted("common")("kept_bytes") / 2  # of each
    return int(sum((times - 1) * max(0.0, size - kept) for times, size in ((across, rows), (down, columns))))


def _joined(one: float, other: float, norm: float) -> float:
    """Seconds of two things that overlap: their norm."""
    return (one**norm + other**norm) ** (1 / norm)


@lru_cache(maxsize=4096)
def _crossing(view: TmaView, operand: int, size: int) -> float:
    """How much longer tiles of an operand take where its rows do not start with lines of memory."""
    steps = [group[0].strides[operand] * size for group in view.dimensions[:-1]]
    return _fit("crossing") if any([step % LINE for step in steps]) else 1.0  # noqa: C419

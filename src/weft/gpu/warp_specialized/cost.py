"""The cost model of schedules whose operands both come in pipelines."""

from __future__ import annotations

import math
from functools import lru_cache

from weft.gpu.common.cost import (
    KEPT_BYTES,
    TALL,
    compulsory_bytes,
    function_seconds,
    launched,
    own_bytes,
    reduce_seconds,
)
from weft.gpu.common.hardware import GROUP_ROWS, LINE, sm_count
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.schedule import dim_tiles, n_parts
from weft.gpu.tma.views import TmaView
from weft.gpu.warp_specialized.roles import PINGPONG
from weft.gpu.warp_specialized.schedule import SHORT_STEP, WsSchedule, split_steps, work_ranges, work_tiles
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("warp_specialized")

# Fitted on an H200 to 469 timings: of matrix products of 512 to 3072 rows, and of trials of TCCG, as it lies and
# packed, with functions and without. Predictions are off by 7 % (root mean square), and by as much for 54 others
# (`results/h200/products.json`).
LAUNCH = _FITTED("launch")  # seconds
RATE = _FITTED("rate")  # flops per second
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
LOAD_RATE = _FITTED("load_rate")  # bytes of tiles per second, from L2, with requests at all times
LOAD_WAIT = _FITTED("load_wait")  # loads take 1 + LOAD_WAIT / stages times as long: with few stages requests come late
CROSSING = _FITTED("crossing")  # times as long for tiles whose lines cross those of memory: L2 looks up two for each
STORE_RATE = _FITTED("store_rate")  # bytes per second of subtiles that pass through shared memory to D
# For each work tile of an SM, before its first products and after its last ones.
WORK_TILE_SECONDS = _FITTED("work_tile_seconds")
# Exponents of the norms that join what overlaps: products and loads; functions with both; memory with all that, and
# stores with what overlaps them.
OVERLAP = _FITTED("overlap")
FUNCTIONS_OVERLAP = _FITTED("functions_overlap")
MEMORY_OVERLAP = _FITTED("memory_overlap")
# Stream-K: a work range mostly meets two output tiles; and tiles of operands that output tiles share are requested at
# different times, and take so many times longer.
RANGE_TILES, APART = _FITTED("range_tiles"), _FITTED("apart")


def predict(contraction: Contraction, schedule: WsSchedule, target: Target) -> float:
    """Seconds: work tile after work tile on the busiest SM, or all bytes at the rate of memory.

    Products, loads and functions overlap. A work tile is stored before the next is begun, but for ping-pong. A line of
    a tile that is shorter than one of memory takes as long.
    """
    contraction = in_kernel_order(contraction, schedule)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    consumers = schedule.consumers
    size = contraction.arithmetic.product.itemsize
    at_once = sms * consumers.pipelines
    tiles = work_tiles(contraction, schedule) if not schedule.stream_k else at_once
    turns = -(-tiles // at_once) * consumers.pipelines  # work tiles of the busiest SM
    here = sms * turns  # work tiles of all SMs, were they as busy
    depth = _steps(contraction, schedule, target) * tile_k
    across = tile_n * consumers.n_tiles
    products = 2.0 * tile_m * across * depth * here / RATE * (TALL if schedule.rows > GROUP_ROWS else 1.0)
    loads = _load_bytes(schedule, size, min(1.0, tiles / at_once)) * depth * here / LOAD_RATE
    loads *= 1 + LOAD_WAIT / schedule.stages
    functions = function_seconds(contraction, here * depth * tile_m * consumers.n_tiles, here * depth * across, 0)
    split = schedule.splits > 1
    result_size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    stores = tile_m * across * result_size * here / STORE_RATE
    stores += 0.0 if split else function_seconds(contraction, 0, 0, here * tile_m * across)
    waiting = turns * WORK_TILE_SECONDS
    if schedule.stream_k:
        loads, stores, waiting = APART * loads, RANGE_TILES * stores, RANGE_TILES * waiting
    memory = (compulsory_bytes(contraction) + _read_again(contraction, schedule)) / MEMORY_RATE
    multiplying = _joined(_joined(products, loads, OVERLAP), functions, FUNCTIONS_OVERLAP)
    if consumers == PINGPONG:
        busy = _joined(multiplying, stores, MEMORY_OVERLAP) + waiting
    else:
        busy = multiplying + stores + waiting
    seconds = launched(_joined(busy, memory, MEMORY_OVERLAP), LAUNCH)
    return seconds + reduce_seconds(schedule.workspace_bytes, schedule.splits)


def _steps(contraction: Contraction, schedule: WsSchedule, target: Target) -> int:
    """Steps along k of the longest work tile or work range. Those of the tail, whose second consumer has no rows, count
    by their time."""
    if schedule.stream_k:
        return work_ranges(contraction, schedule, target).base + 1
    steps = split_steps(contraction, schedule, schedule.splits)
    if schedule.tail_splits:
        steps = max(steps, math.ceil(SHORT_STEP * split_steps(contraction, schedule, schedule.tail_splits)))
    return steps


def _load_bytes(schedule: WsSchedule, size: int, busy: float) -> float:
    """Bytes that one index of k of a work tile costs L2. Lines that cross those of memory cost more, but only as far as
    L2 is busy: `busy` is the share of SMs that load."""
    tile_m, tile_n, _ = schedule.tile
    rows, columns = _crossing(schedule.a, A, size), _crossing(schedule.b, B, size)
    wide = tile_n if schedule.b.along_k else sum([max(part, LINE // size) for part in n_parts(tile_n)])
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
    rows, columns, *_ = own_bytes(contraction)
    across = dim_tiles(schedule.b, tile_n) // schedule.consumers.n_tiles
    down = dim_tiles(schedule.a, tile_m)
    kept = KEPT_BYTES / 2  # of each
    return int(sum((times - 1) * max(0.0, size - kept) for times, size in ((across, rows), (down, columns))))


def _joined(one: float, other: float, norm: float) -> float:
    """Seconds of two things that overlap: their norm."""
    return (one**norm + other**norm) ** (1 / norm)


@lru_cache(maxsize=4096)
def _crossing(view: TmaView, operand: int, size: int) -> float:
    """How much longer tiles of an operand take where its rows do not start with lines of memory."""
    steps = [group[0].strides[operand] * size for group in view.dimensions[:-1]]
    return CROSSING if any([step % LINE for step in steps]) else 1.0  # noqa: C419

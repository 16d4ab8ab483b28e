"""What a schedule of the family with specialised warps takes."""

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
from weft.gpu.tma.schedule import dim_blocks, parts
from weft.gpu.tma.views import TmaView
from weft.gpu.warp_specialized.roles import PINGPONG
from weft.gpu.warp_specialized.schedule import SHORT_STEP, WsSchedule, portions, share_count, share_steps
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("warp_specialized")

# These numbers were fitted on an H200 to 469 timings: of matrix products of 512 to 3072 rows, and of trials of TCCG, as
# it lies and staged, with functions and without. Predictions are off by 7 % (root mean square), and so they are of 54
# Others (`results/h200/products.json`).
LAUNCH = _FITTED("launch")  # seconds
RATE = _FITTED("rate")  # flops per second
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
BOX_RATE = _FITTED("box_rate")  # bytes of boxes per second, from L2, were they on their way at all times
BOX_WAIT = _FITTED("box_wait")  # times that boxes wait besides in a ring of one slot, and less the more there are
CROSSING = _FITTED("crossing")  # times that boxes take whose lines lie across those of memory: L2 looks up two for each
RESULT_RATE = _FITTED("result_rate")  # bytes per second of pieces that go to shared memory on their way to D
# For each task of a processor, before products are made of its first boxes and after the last.
TASK_SECONDS = _FITTED("task_seconds")
OVERLAP = _FITTED("overlap")  # the norm that joins products and boxes on their way
FUNCTIONS_OVERLAP = _FITTED("functions_overlap")  # the norm that joins functions with both
# The norm that joins memory with all that, and results that leave with what goes on meanwhile.
MEMORY_OVERLAP = _FITTED("memory_overlap")
# Where sums are cut end to end, portions mostly meet two tasks; and boxes that blocks share are asked for at different
# Times: so many times longer.
PORTION_TASKS, APART = _FITTED("portion_tasks"), _FITTED("apart")


def predict(contraction: Contraction, schedule: WsSchedule, target: Target) -> float:
    """Seconds: block after block on the busiest processor, or all bytes at the rate of memory.

    Products, boxes on their way and functions go on at once; a block leaves before the next is begun, but where workers
    take turns. A line of a box that is shorter than one of memory is on its way as long.
    """
    contraction = in_kernel_order(contraction, schedule)
    processors = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    consumers = schedule.consumers
    size = contraction.arithmetic.product.itemsize
    at_once = processors * consumers.pipelines
    tasks = share_count(contraction, schedule) if not schedule.streamed else at_once
    turns = -(-tasks // at_once) * consumers.pipelines  # tasks of the busiest processor
    here = processors * turns  # of all processors, were they as busy
    depth = _steps(contraction, schedule, target) * tile_k
    across = tile_n * consumers.abreast
    products = 2.0 * tile_m * across * depth * here / RATE * (TALL if schedule.rows > GROUP_ROWS else 1.0)
    boxes = _box_bytes(schedule, size, min(1.0, tasks / at_once)) * depth * here / BOX_RATE
    boxes *= 1 + BOX_WAIT / schedule.stages
    functions = function_seconds(contraction, here * depth * tile_m * consumers.abreast, here * depth * across, 0)
    split = schedule.splits > 1
    result_size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    leaving = tile_m * across * result_size * here / RESULT_RATE
    leaving += 0.0 if split else function_seconds(contraction, 0, 0, here * tile_m * across)
    waiting = turns * TASK_SECONDS
    if schedule.streamed:
        boxes, leaving, waiting = APART * boxes, PORTION_TASKS * leaving, PORTION_TASKS * waiting
    memory = (compulsory_bytes(contraction) + _read_again(contraction, schedule)) / MEMORY_RATE
    multiplying = _joined(_joined(products, boxes, OVERLAP), functions, FUNCTIONS_OVERLAP)
    if consumers == PINGPONG:
        busy = _joined(multiplying, leaving, MEMORY_OVERLAP) + waiting
    else:
        busy = multiplying + leaving + waiting
    seconds = launched(_joined(busy, memory, MEMORY_OVERLAP), LAUNCH)
    return seconds + reduce_seconds(schedule.workspace_bytes, schedule.splits)


def _steps(contraction: Contraction, schedule: WsSchedule, target: Target) -> int:
    """Along k, of the longest task or portion; of a task whose second worker has no rows, as many as take its time."""
    if schedule.streamed:
        return portions(contraction, schedule, target).base + 1
    steps = share_steps(contraction, schedule, schedule.splits)
    if schedule.fewer:
        steps = max(steps, math.ceil(SHORT_STEP * share_steps(contraction, schedule, schedule.fewer)))
    return steps


def _box_bytes(schedule: WsSchedule, size: int, busy: float) -> float:
    """Of one index of k of a task, as they keep L2 at work, which has time for pieces of lines where no more than this
    share of the processors asks."""
    tile_m, tile_n, _ = schedule.tile
    rows, columns = _crossing(schedule.a, A, size), _crossing(schedule.b, B, size)
    wide = tile_n if schedule.b.along_k else sum([max(part, LINE // size) for part in parts(tile_n)])
    wide *= schedule.consumers.abreast
    return max(tile_m + wide, (tile_m * rows + wide * columns) * busy) * size


def _read_again(contraction: Contraction, schedule: WsSchedule) -> int:
    """Bytes of operands that come from memory more than once. Where sums are streamed, blocks that share boxes are at
    different places along k at any time: what L2 does not keep of an operand comes once for each block across."""
    if not schedule.streamed:
        return 0
    tile_m, tile_n, _ = schedule.tile
    rows, columns, *_ = own_bytes(contraction)
    across = dim_blocks(schedule.b, tile_n) // schedule.consumers.abreast
    down = dim_blocks(schedule.a, tile_m)
    kept = KEPT_BYTES / 2  # of each
    return int(sum((times - 1) * max(0.0, size - kept) for times, size in ((across, rows), (down, columns))))


def _joined(one: float, other: float, norm: float) -> float:
    """Seconds of what goes on at once."""
    return (one**norm + other**norm) ** (1 / norm)


@lru_cache(maxsize=4096)
def _crossing(view: TmaView, operand: int, size: int) -> float:
    """How much longer boxes of an operand are on their way where its rows do not start with lines of memory."""
    steps = [group[0].strides[operand] * size for group in view.dimensions[:-1]]
    return CROSSING if any([step % LINE for step in steps]) else 1.0  # noqa: C419

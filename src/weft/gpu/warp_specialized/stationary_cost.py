"""What a schedule takes that keeps B in shared memory."""

from __future__ import annotations

from weft.gpu.common.cost import compulsory_bytes, function_seconds, launched
from weft.gpu.common.hardware import sm_count
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.warp_specialized.results import block_count
from weft.gpu.warp_specialized.stationary import StationarySchedule, steps, tail
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("stationary")

# The rate of keeping is that of TCCG cases 9 and 18. The others, beside a rate of products 8 % less than now, were
# fitted on an H200 to 48 timed schedules of TCCG cases 2, 5, 9 and 10 with functions and without: predictions are off
# By 3 % on average.
LAUNCH = _FITTED("launch")  # seconds
RATE = _FITTED("rate")  # flops per second
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
KEEPING_RATE = _FITTED("keeping_rate")  # bytes per second of all processors' copies of B, from L2
BOX_SECONDS = _FITTED("box_seconds")  # that a box of A is on its way
BLOCK_SECONDS = _FITTED.table("block_seconds")  # for each block of a processor, in which no products are made, by warps
FUNCTIONS = _FITTED.table("functions")  # times what they issue, by warps and rings
OVERLAP = _FITTED("overlap")  # the norm that joins what goes on at once


def predict_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> float:
    """Seconds: B comes, and its function is applied; then boxes of A, products, functions and stores go on at once.

    Where A has a function, a box leaves the ring as soon as it is in registers, else when it has been multiplied.
    """
    contraction = in_kernel_order(contraction, schedule)
    processors = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    turns = -(-block_count(contraction, schedule) // processors)
    boxes = steps(contraction, schedule)
    depth = (boxes - 1) * tile_k + tail(contraction, schedule)
    rows = turns * processors * tile_m  # of all processors, were they as busy
    kept = processors * boxes * tile_k * tile_n
    beginning = kept * contraction.arithmetic.product.itemsize / KEEPING_RATE
    beginning += function_seconds(contraction, 0, kept, 0)
    on_their_way = schedule.pipelines * (schedule.stages - (contraction.a_fn is None))
    functions = function_seconds(contraction, rows * depth, 0, rows * contraction.n)
    pipes = (
        2.0 * rows * tile_n * depth / RATE + turns * BLOCK_SECONDS[str(schedule.warps)],
        turns * boxes * BOX_SECONDS / on_their_way,
        functions * FUNCTIONS[f"{schedule.warps} {schedule.pipelines}"],
        compulsory_bytes(contraction) / MEMORY_RATE,
    )
    return launched(beginning + sum(pipe**OVERLAP for pipe in pipes) ** (1 / OVERLAP), LAUNCH)

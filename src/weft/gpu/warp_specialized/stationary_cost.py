"""The cost model of schedules with a stationary operand."""

from __future__ import annotations

from weft.gpu.common.cost import compulsory_bytes, function_seconds, launched
from weft.gpu.common.hardware import sm_count
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.warp_specialized.output_map import output_tiles
from weft.gpu.warp_specialized.stationary_schedule import StationarySchedule, last_depth, steps
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("stationary")

# Fitted on an H200 to 48 timed schedules of TCCG cases 2, 5, 9 and 10, with functions and without, when the rate of
# products was 8 % less than now: predictions were off by 3 % on average. The rate of loading B is that of TCCG cases 9
# and 18.
LAUNCH = _FITTED("launch")  # seconds
RATE = _FITTED("rate")  # flops per second
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
B_RATE = _FITTED("b_rate")  # bytes per second of all SMs' copies of B, from L2
TILE_SECONDS = _FITTED("tile_seconds")  # from the request of a tile of A to its arrival
OUTPUT_SECONDS = _FITTED.table("output_seconds")  # without products, for each output tile of an SM; by warps
FUNCTIONS = _FITTED.table("functions")  # times what they issue, by warps and pipelines
OVERLAP = _FITTED("overlap")  # exponent of the norm that joins what overlaps


def predict_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> float:
    """Seconds: first B is loaded and its function applied; then tiles of A, products, functions and stores overlap.

    A stage is empty when its tile is in registers, where A has a function, else when its products are done.
    """
    contraction = in_kernel_order(contraction, schedule)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    turns = -(-output_tiles(contraction, schedule) // sms)
    count = steps(contraction, schedule)
    depth = (count - 1) * tile_k + last_depth(contraction, schedule)
    rows = turns * sms * tile_m  # of all SMs, were they as busy as the busiest
    b_elements = sms * count * tile_k * tile_n
    beginning = b_elements * contraction.arithmetic.product.itemsize / B_RATE
    beginning += function_seconds(contraction, 0, b_elements, 0)
    requested = schedule.pipelines * (schedule.stages - (contraction.a_fn is None))  # tiles at any time
    functions = function_seconds(contraction, rows * depth, 0, rows * contraction.n)
    pipes = (
        2.0 * rows * tile_n * depth / RATE + turns * OUTPUT_SECONDS[str(schedule.warps)],
        turns * count * TILE_SECONDS / requested,
        functions * FUNCTIONS[f"{schedule.warps} {schedule.pipelines}"],
        compulsory_bytes(contraction) / MEMORY_RATE,
    )
    return launched(beginning + sum(pipe**OVERLAP for pipe in pipes) ** (1 / OVERLAP), LAUNCH)

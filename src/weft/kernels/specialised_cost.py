"""What a schedule of the family with specialised warps takes."""

from __future__ import annotations

from weft.kernels.boxes_exchange import multiplied
from weft.kernels.cost import PROCESSORS, combine_seconds, compulsory_bytes, function_seconds, launched
from weft.kernels.specialised_results import block_count
from weft.kernels.specialised_schedule import SpecialisedSchedule
from weft.plan.schedule import Target
from weft.spec import Contraction

LAUNCH = 6e-6  # seconds
RATE = 9.9e14  # flops per second with 16-bit elements, by data sheet
MEMORY_RATE = 4.13e12  # bytes per second
BOX_RATE = 8e12  # bytes of boxes per second, from L2
RESULT_RATE = 4e12  # bytes of whole blocks of D per second
STEP_SECONDS = 0.05e-6  # for each step along k of a block
TASK_SECONDS = 0.5e-6  # for each block of a processor
OVERLAP = 3.0  # the norm that joins what goes on at once


def predict(contraction: Contraction, schedule: SpecialisedSchedule, target: Target) -> float:
    """Seconds: block after block on the busiest processor, or all bytes at the rate of memory.

    Products, boxes on their way and functions go on at once; a block leaves before the next is begun, but where workers
    take turns.
    """
    contraction = multiplied(contraction, schedule)
    processors = target.processors if target.processors > 1 else PROCESSORS
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    blocks = block_count(contraction, schedule)
    tasks = blocks * schedule.splits
    at_once = processors * (1 if schedule.together else 2)
    turns = -(-tasks // at_once) * (1 if schedule.together else 2)  # blocks of the busiest processor
    steps = -(-schedule.k.extent // tile_k) * (contraction.k // schedule.k.extent)
    steps = -(-steps // schedule.splits)
    here = processors * turns  # of all processors, were they as busy
    depth = steps * tile_k
    products = 2.0 * tile_m * tile_n * depth * here / RATE
    boxes = (tile_m + tile_n) * depth * size * here / BOX_RATE
    functions = function_seconds(contraction, here * depth * tile_m, here * depth * tile_n, here * tile_m * tile_n)
    split = schedule.splits > 1
    result_size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    leaving = tile_m * tile_n * result_size * here / RESULT_RATE
    waiting = turns * (steps * STEP_SECONDS + TASK_SECONDS)
    memory = compulsory_bytes(contraction) / MEMORY_RATE
    multiplying = (products**OVERLAP + boxes**OVERLAP + functions**OVERLAP) ** (1 / OVERLAP)
    if schedule.together:
        busy = multiplying + leaving + waiting
    else:
        busy = (multiplying**OVERLAP + leaving**OVERLAP) ** (1 / OVERLAP) + waiting
    joined = (busy**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    return launched(joined, LAUNCH) + combine_seconds(schedule.workspace_bytes, schedule.splits)

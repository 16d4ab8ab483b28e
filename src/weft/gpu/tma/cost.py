"""The cost model of the TMA family."""

from __future__ import annotations

from weft.gpu.common.cost import (
    TALL,
    compulsory_bytes,
    function_seconds,
    launched,
    reduce_seconds,
    scattered_bytes,
    tile_access,
)
from weft.gpu.common.hardware import GROUP_ROWS, sm_count
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.common.tiling import D
from weft.gpu.tma.params import work_division
from weft.gpu.tma.schedule import TmaSchedule
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("tma")

LAUNCH = _FITTED("launch")  # seconds
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
L2_RATE = _FITTED("l2_rate")
LATENCY = _FITTED("latency")  # seconds from the request of a tile to its arrival; stages but one are requested ahead
STEP_SECONDS = _FITTED("step_seconds")  # of an SM, for each step along k of all its CTAs
WORK_TILE_SECONDS = _FITTED("work_tile_seconds")  # before the first step of a work tile and after its last
# At each step with functions, where one tile is loaded ahead and the SM has no other CTA.
ALONE_SECONDS = _FITTED("alone_seconds")
FINISH_SECONDS = _FITTED("finish_seconds")  # to store a full tile from registers to D with eight warps
FULL_TILE, FULL_WARPS = 128 * 256, 8
# The norm that joins arithmetic, L2, memory, steps and waiting: chosen later than the other numbers, with `TALL`, by
# 231 trials of TCCG, for which predictions are off by 7 % (root mean square).
OVERLAP = _FITTED("overlap")
STORE_CLOCK = _FITTED("store_clock")  # lines of D that an SM stores in a second

# Flops per second with 16-bit elements and with 32-bit ones shortened to TF32: those of the data sheet, at the 1980 MHz
# that an H200 runs at where power allows rather than the sheet's 1830. The numbers above were fitted, with the sheet's,
# to 235 timed schedules, most of them with 312, 296 or 72 indices along a side: predictions were off by 12 % on
# average. With one-byte elements the rate is twice that of two.
_RATE = _FITTED.table("rate")  # by bytes of an element


def predict(contraction: Contraction, schedule: TmaSchedule, target: Target) -> float:
    """Seconds: the norm of five times that overlap, and the launch.

    The tensor cores, in whole waves; L2, for all tiles; memory, for all bytes; what an SM issues, step by step and tile
    by tile; and the latency of tiles that are not requested early enough.
    """
    contraction = in_kernel_order(contraction, schedule)
    params = work_division(contraction, schedule, target)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    work_tiles = params.blocks * schedule.splits
    uneven = -(-work_tiles // sms) * sms / work_tiles  # the busiest SM over the average
    tiles = work_tiles * params.steps * tile_k
    flops = 2.0 * uneven * tiles * tile_m * tile_n
    size = contraction.arithmetic.product.itemsize
    smaller = min(1.0, tile_m * tile_n / FULL_TILE) ** 0.1  # less reuse of what comes from L2
    shallow = 1.0 if tile_k * size >= 128 else 0.95  # more steps for the same work
    busy = flops / (_RATE[str(size)] * smaller * shallow) * (TALL if tile_m > GROUP_ROWS * schedule.warps // 4 else 1.0)
    read = uneven * tiles * (tile_m + tile_n) * size / L2_RATE
    # Lines that several subtiles write are merged in L2.
    result = tile_access(contraction.d, D, params.blocks, (*params.m.axes, *params.n.axes))
    stored = (compulsory_bytes(contraction) + scattered_bytes(result)) / MEMORY_RATE
    stored = max(stored, uneven * result.cycles / (sms * STORE_CLOCK))
    busy *= (1.2 if contraction.a_fn is not None else 1.0) * (1.5 if contraction.b_fn is not None else 1.0)
    busy += uneven * function_seconds(contraction, tiles * tile_m, tiles * tile_n, params.blocks * tile_m * tile_n)
    finish = FINISH_SECONDS * tile_m * tile_n / (FULL_TILE * schedule.warps / FULL_WARPS)
    fused = contraction.a_fn is not None or contraction.b_fn is not None
    step = STEP_SECONDS + (ALONE_SECONDS if fused and schedule.stages < 3 and params.programs <= sms else 0.0)
    turns = -(-work_tiles // params.programs)  # work tiles of a CTA
    resident = max(1.0, params.programs / sms)
    issued = turns * resident * (params.steps * step + WORK_TILE_SECONDS + finish)
    waiting = turns * params.steps * LATENCY / max(1, schedule.stages - 1)
    joined = sum([pipe**OVERLAP for pipe in (busy, read, stored, issued, waiting)]) ** (1 / OVERLAP)
    return launched(joined, LAUNCH) + reduce_seconds(schedule.workspace_bytes, schedule.splits)

"""Predicted time of a schedule: the issue slots of all products, beside the pipes that all gathering kernels have."""

from __future__ import annotations

import math

from weft.gpu.common.cost import Access, Work, direct_seconds, function_seconds, reduce_seconds, tile_access
from weft.gpu.common.hardware import LEAST_COPY, LINE, REGISTERS, SHARED_MEMORY, VECTOR, sm_count
from weft.gpu.common.tiling import A, B, C, D
from weft.gpu.semiring.algebra import product_slots, sums_exponentials
from weft.gpu.semiring.params import SemiringParams, ThreadTile, semiring_params
from weft.gpu.semiring.schedule import SemiringSchedule
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction

_FITTED = fitted("semiring")

# Fitted to 58 timed schedules of max-plus in float32 on an H200, which they predict within 6 % on average. Products of
# float32 take up to 10 % longer where no operand lies along k, and up to 1.4 times as long where one does: reads of
# shared memory and of rows then bind beside them.
STEP_SLOTS = _FITTED("step_slots")  # issue slots of a thread in each step along k besides products and reads
BLOCK_SLOTS = _FITTED("block_slots")  # before the first step and after the last one
STORE_SLOTS = _FITTED("store_slots")  # for each element of D
SLOT_RATE = _FITTED("slot_rate")  # issue slots per second, of all lanes
WAITING = _FITTED("waiting")  # of a scheduler's slots that one warp alone leaves empty, over those that it takes
# Of what a program takes besides its steps, as often again where it is alone on an SM.
BLOCK_WAITING = _FITTED("block_waiting")
SCHEDULERS = 4  # of an SM
OTHER_REGISTERS = 36  # of a thread, besides accumulators and four steps of the tiles
NARROW_SLOTS = _FITTED("narrow_slots")  # of a copy of `LEAST_COPY` bytes, which touches a line for as little
SHARED_RATE = _FITTED("shared_rate")  # lanes of reads of 128 bytes from shared memory per second


def predict(contraction: Contraction, schedule: SemiringSchedule, target: Target) -> float:
    """Seconds by the issue slots of all products, and by the pipes of `common.cost.direct_seconds`."""
    params = semiring_params(contraction, schedule)
    tile_m, tile_n, tile_k = schedule.tile
    programs, steps = params.blocks * params.splits, params.steps
    d_axes = (*params.m.axes, *params.n.axes)
    read = (
        tile_access(contraction.a, A, programs * steps, (*params.m.axes, *params.k.axes)),
        tile_access(contraction.b, B, programs * steps, (*params.n.axes, *params.k.axes)),
    )
    work = Work(
        accesses=(
            *read,
            tile_access(contraction.c, C, params.blocks, d_axes),
            tile_access(contraction.d, D, params.blocks, d_axes),
        ),
        blocks=programs,
        steps=0,  # the next step is loaded while one computes
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=max(
            schedule.stages * (tile_m + tile_n) * tile_k * contraction.arithmetic.product.itemsize, tile_m * tile_n * 4
        ),
        matrix=False,
        function_seconds=_arithmetic_seconds(contraction, schedule, params, target)
        + sum([_narrow_seconds(access) for access in read])
        + function_seconds(
            contraction,
            programs * steps * tile_m * tile_k,
            programs * steps * tile_n * tile_k,
            params.blocks * tile_m * tile_n,
        ),
    )
    return direct_seconds(contraction, target, work) + reduce_seconds(schedule.workspace_bytes, params.splits)


def _arithmetic_seconds(
    contraction: Contraction, schedule: SemiringSchedule, params: SemiringParams, target: Target
) -> float:
    """Of all products, were all SMs equally busy: issue slots, or reads of shared memory if they take longer.

    With few warps on a scheduler some slots stay empty, as each waits for its own results.
    """
    held = math.prod(schedule.registers) * math.prod(schedule.subtiles)
    depth, programs = params.k.tile, params.blocks * params.splits
    sizes = (contraction.a.dtype.itemsize, contraction.b.dtype.itemsize)
    across = min(params.threads_n.threads, 32)
    reads = [
        _shared_reads(own, depth, size, distinct)
        for own, size, distinct in zip((params.threads_m, params.threads_n), sizes, (32 // across, across), strict=True)
    ]
    slots = held * depth * product_slots(contraction) + sum(count for count, _ in reads) + STEP_SLOTS
    cycles = params.steps * sum(cycles for _, cycles in reads)
    resident = max(1, min(_resident(contraction, schedule), -(-programs // sm_count(target))))
    waiting = 1 + WAITING * SCHEDULERS / (resident * schedule.warps)
    outside = (BLOCK_SLOTS + STORE_SLOTS * held) * (1 + BLOCK_WAITING / resident)
    seconds = max((params.steps * slots * waiting + outside) / SLOT_RATE, cycles / SHARED_RATE)
    return programs * 32 * schedule.warps * seconds


def _narrow_seconds(access: Access) -> float:
    """What reading an operand adds where each lane copies the least that it can."""
    return access.bytes / LEAST_COPY * NARROW_SLOTS / SLOT_RATE if access.copied == LEAST_COPY else 0.0


def _resident(contraction: Contraction, schedule: SemiringSchedule) -> int:
    """Programs that fit on an SM by registers and by shared memory."""
    rows, columns = (held * count for held, count in zip(schedule.registers, schedule.subtiles, strict=True))
    words = max(contraction.arithmetic.accumulate.itemsize, 4) // 4
    sums = 2 if sums_exponentials(contraction) else 1
    registers = min(words * (sums * rows * columns + 4 * (rows + columns)) + OTHER_REGISTERS, 255)
    shared = schedule.stages * sum(schedule.tile[:2]) * schedule.tile[2] * contraction.arithmetic.product.itemsize
    allocated = -(-registers // 8) * 8 * 32 * schedule.warps
    return max(1, min(REGISTERS // allocated, SHARED_MEMORY // shared))


def _shared_reads(own: ThreadTile, depth: int, size: int, distinct: int) -> tuple[float, float]:
    """Instructions with which a thread reads its rows of a step, and the cycles of shared memory they take of a warp in
    which so many threads read different ones."""
    held = own.subtiles * own.held
    if own.run > 1:  # neighbours lie together, and so does what neighbouring threads take
        count, apart = held * depth / own.run, own.run * size
    else:
        wide = max(min(depth, VECTOR // size), 1)
        count, apart = held * depth / wide, max(depth * size, 4)
    return count, count * max(1.0, min(distinct, own.threads) * min(apart, LINE) / LINE)

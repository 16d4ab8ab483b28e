"""Products that no matrix instruction makes: other algebras, integers, and IEEE products in float32.

Each thread keeps a small tile of D in registers, so that an element that is loaded serves many products. Operands are
gathered where they lie, as in the family gett.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LEAST_COPY, LINE, REGISTERS, SHARED_MEMORY, VECTOR, power_of_two, sm_count
from weft.gpu.common.contraction_launch import gathering_launch
from weft.gpu.common.cost import Access, KernelWork, direct_seconds, function_seconds, gathered_accesses, reduce_seconds
from weft.gpu.common.launch import common_reasons
from weft.gpu.common.operation import exponential_constants, operation, product_slots, sums_exponentials
from weft.gpu.common.tiling import TENSORS, A, B, OutputTiles, TiledAxis, TiledDim, tiled_dim, tiled_output
from weft.gpu.semiring.schedule import NAME, SemiringSchedule, schedules, subtile_axes
from weft.planner.coefficients import fitted
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name


class ThreadTile(NamedTuple):
    """How the threads of a program divide one dim of its output tile.

    Element `i` of run `r` of thread `t` in subtile `p` stands at ((p * held / run + r) * threads + t) * run + i. So
    neighbouring threads read neighbouring words of shared memory, and each as much at once as lies together there.
    """

    subtiles: int  # of the tile that are computed
    slots: int  # subtiles in the tile, a power of two
    log_slots: int
    held: int  # elements of each subtile in each thread
    threads: int
    run: int  # of these, neighbours in memory


class SemiringParams(NamedTuple):
    """The output tiles, see `OutputTiles`, and how they are reduced."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, ...]
    group: int
    blocks: int
    splits: int
    wide: tuple[bool, ...]
    wide_index: bool
    k: TiledDim
    k_of_a: TiledDim  # the same
    threads_m: ThreadTile
    threads_n: ThreadTile
    subtile: OutputTiles  # an output tile in subtiles, each of which is stored by itself
    log_depth: int  # of the tile along k
    steps: int  # along k, in each program
    zeros: bool  # past the end of k tiles are zero and change nothing: products are summed
    alike_steps: int  # steps along k without the one that overhangs its end and is not like the others
    guard: tuple[int, int] = (0, 0)  # tensor and pointer of marks: only output tiles with one are computed; 0 for none


def semiring_params(contraction: Contraction, schedule: SemiringSchedule) -> SemiringParams:
    k, zeros = tiled_dim(schedule.k, tensors=TENSORS + len(contraction.aux)), contraction.algebra is None
    of_m, of_n = map(subtile_axes, (schedule.m, schedule.n), schedule.subtiles)
    return SemiringParams(
        *tiled_output(contraction, schedule.m, schedule.n, schedule.k, schedule.splits, schedule.group),
        k=k,
        k_of_a=k,
        threads_m=_threads_along(contraction, schedule, A),
        threads_n=_threads_along(contraction, schedule, B),
        subtile=tiled_output(contraction, of_m, of_n, schedule.k, schedule.splits, 1),
        log_depth=k.tile.bit_length() - 1,
        steps=-(-k.blocks // schedule.splits),
        zeros=zeros,
        alike_steps=k.blocks if zeros else contraction.k // k.tile,
    )


def _threads_along(contraction: Contraction, schedule: SemiringSchedule, operand: int) -> ThreadTile:
    """How threads divide m (of A) or n (of B)."""
    axes, layout = ((schedule.m, contraction.a), (schedule.n, contraction.b))[operand]
    held, subtiles = schedule.registers[operand], schedule.subtiles[operand]
    return thread_tile(axes, held, subtiles, layout.dtype.itemsize, schedule.k[0], operand)


def thread_tile(
    axes: tuple[TiledAxis, ...], held: int, subtiles: int, itemsize: int, depth: TiledAxis, operand: int
) -> ThreadTile:
    """How threads divide one dim, whose operand's elements take `itemsize` bytes.

    The operand lies in shared memory along its own run: neighbours of this dim lie together where that is its run, and
    else steps along k do.
    """
    slots = power_of_two(subtiles)
    tile = math.prod(axis.tile for axis in axes)
    contiguous = _is_run(axes[-1], operand) and not _is_run(depth, operand)
    run = min(held, max(VECTOR // itemsize, 1)) if contiguous else 1
    return ThreadTile(subtiles, slots, slots.bit_length() - 1, held, tile // slots // held, run)


def _is_run(axis: TiledAxis, operand: int) -> bool:
    """Whether neighbours along an axis are neighbours in an operand."""
    return bool(axis.modes) and axis.modes[0].strides[operand] == 1


_fit = fitted("semiring")

# Fitted to 58 timed schedules of max-plus in float32 on an H200, which they predict within 6 % on average.
# step_slots: issue slots of a thread in each step along k besides products and reads
# block_slots: before the first step and after the last one
# store_slots: for each element of D
# slot_rate: issue slots per second, of all lanes
# waiting: of a scheduler's slots that one warp alone leaves empty, over those that it takes
# block_waiting: of what a program takes besides its steps, as often again where it is alone on an SM.
SCHEDULERS = 4  # of an SM
OTHER_REGISTERS = 36  # of a thread, besides accumulators and four steps of the tiles
# narrow_slots: of a copy of `LEAST_COPY` bytes, which touches a line for as little
# shared_rate: lanes of reads of 128 bytes from shared memory per second
# along_k: what `waiting` comes to at least where an operand of products in float32 lies along k: one instruction
#   makes a product and adds it, two of max-plus, so that reads bind beside it that take no neighbours at once.


def predict(contraction: Contraction, schedule: SemiringSchedule, target: Target) -> float:
    """Seconds by the issue slots of all products, and by the pipes of `common.cost.direct_seconds`."""
    params = semiring_params(contraction, schedule)
    tile_m, tile_n, tile_k = schedule.tile
    programs, steps = params.blocks * params.splits, params.steps
    accesses = gathered_accesses(contraction, params, programs * steps)
    work = KernelWork(
        accesses=accesses,
        blocks=programs,
        steps=0,  # the next step is loaded while one computes
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=max(
            schedule.stages * (tile_m + tile_n) * tile_k * contraction.arithmetic.product.itemsize, tile_m * tile_n * 4
        ),
        matrix=False,
        function_seconds=_arithmetic_seconds(contraction, schedule, params, target)
        + sum([_narrow_seconds(access) for access in accesses[:2]])
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
    """Seconds of all products, were all SMs equally busy: issue slots, or reads of shared memory if they take longer.

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
    slots = held * depth * product_slots(contraction) + sum(count for count, _ in reads) + _fit("step_slots")
    cycles = params.steps * sum(cycles for _, cycles in reads)
    resident = max(1, min(_resident(contraction, schedule), -(-programs // sm_count(target))))
    along_k = _fit("along_k") if _products_along_k(contraction, params) else 1
    waiting = max(1 + _fit("waiting") * SCHEDULERS / (resident * schedule.warps), along_k)
    outside = (_fit("block_slots") + _fit("store_slots") * held) * (1 + _fit("block_waiting") / resident)
    seconds = max((params.steps * slots * waiting + outside) / _fit("slot_rate"), cycles / _fit("shared_rate"))
    return programs * 32 * schedule.warps * seconds


def _products_along_k(contraction: Contraction, params: SemiringParams) -> bool:
    """Whether values of an operand are read one by one and multiplied in float32."""
    products = contraction.algebra is None and contraction.arithmetic.product == torch.float32
    return products and any(own.run == 1 and own.held > 1 for own in (params.threads_m, params.threads_n))


def _narrow_seconds(access: Access) -> float:
    """Seconds that reading an operand adds where each lane copies the least that it can."""
    return access.bytes / LEAST_COPY * _fit("narrow_slots") / _fit("slot_rate") if access.copied == LEAST_COPY else 0.0


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


KERNEL = DeviceFunction("weft.gpu.semiring.kernel", "semiring_kernel")

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

LEAST_DIM = 8  # of m and n: less has nothing to share


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    product = contraction.arithmetic.product
    if contraction.algebra is None and product.is_floating_point and not ieee_single(contraction):
        return f"matrix instructions and the family simt make {dtype_name(product)} products"
    if min(contraction.m, contraction.n) < LEAST_DIM:
        return f"m={contraction.m} or n={contraction.n} is under {LEAST_DIM}: nothing to share"
    return None


def ieee_single(contraction: Contraction) -> bool:
    """Whether it is of sums of IEEE products in float32, which matrix instructions do not make."""
    arithmetic = contraction.arithmetic
    single = arithmetic.product is torch.float32 and arithmetic.accumulate is torch.float32
    return contraction.algebra is None and single and arithmetic.precision == "ieee"


def build(contraction: Contraction, schedule: SemiringSchedule, target: Target, guard: int | None = None) -> Launch:
    """`guard`: an auxiliary operand, bool along D's modes. Only output tiles where any of it is true are written,
    whole; the rest of D is left as it is."""
    params = semiring_params(contraction, schedule)
    if guard is not None:
        before = sum(each.layout is not None for each in contraction.aux[:guard])
        params = params._replace(guard=(TENSORS + guard, before))
    constants = {"PARAMS": params, "OP": operation(contraction)} | exponential_constants(contraction)
    constants["STAGES"] = schedule.stages
    return gathering_launch(KERNEL, contraction, constants, params.subtile, schedule, target)

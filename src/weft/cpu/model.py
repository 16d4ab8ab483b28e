"""What a schedule costs, in seconds: time at the processors, time at memory, and Python's share.

A simple model for ranking. Its constants come from torch 2.13 on a two-core AMD EPYC (Zen 4, 2.6 GHz, AVX-512, 1 MiB
of L2 cache a core): rates were measured on products of square and narrow matrices and on copies of permuted blocks,
Python's share on empty blocks; what cache, pages and barriers cost was chosen so that the blocks of the TCCG
contractions came out in the order of their measured times. On other machines the seconds are off by a factor that
most schedules share; what matters is their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from weft.cpu.algebra import operations
from weft.cpu.algebra_forms import matrix_form
from weft.cpu.blocking import BATCH_BYTES, Targets, block_counts
from weft.cpu.copy_model import (
    BANDWIDTH,
    COPY_STRAIGHT,
    COPY_STRIDED,
    compact,
    copy_seconds,
    loop_seconds,
    merged_dimensions,
    ownership_seconds,
    search_seconds,
    table_seconds,
)
from weft.cpu.index_groups import Anatomy, Group, Operand, dissect
from weft.cpu.pairs import room_for_aux
from weft.cpu.schedule import CpuSchedule, detour_bytes, stages_addend
from weft.cpu.workers import split
from weft.planner.schedule import Target
from weft.spec import Contraction, Role

# Products: flops a second of one core, for large matrices.
RATE = {
    torch.float32: 95e9,
    torch.float64: 42e9,
    torch.complex64: 95e9,
    torch.complex128: 42e9,
    torch.int32: 19e9,
    torch.int64: 16e9,
}
HALF_EXTENT = 12  # a matrix extent of this size runs at half of that rate
NARROW = 64  # under so many columns, a left factor that is contiguous along its rows
NARROW_FACTOR = 0.6  # reaches this part of it
SUM_ONCE = 2e9  # elements a second and core of vector products whose factors come from cache

CACHE = 1 << 20  # bytes of second-level cache of a core
AGAINST = 2e-9  # more for an element read across lines that do not stay in cache
SPILL = 0.08e-9  # seconds in which one core gets a byte from beyond it

# Python and torch's dispatch, in seconds.
CALL = 15e-6  # a launch
WORKERS_CALL = 80e-6  # and one by several workers
BARRIER = 4e-6  # threads inside one of torch's calls meet at its end
READ_CALL = 2e-6  # a block used in place
PACK_CALL = 4e-6
PRODUCT_CALL = 3e-6
FINISH_CALL = 5e-6
FUNCTION = 0.5e-9  # a user's function: seconds for an element on one core

# Tables of pairs: seconds for a pair on one core.
PAIR = 0.07e-9  # to combine it by an operation of torch, and as much to reduce it in one pass
PAIR_RECORDED = 0.4e-9  # for each operation of a function that is run as it was recorded, or reduces by halves
PAIR_ELEMENTARY = 1e-9  # for an elementary function
PAIR_ROW = 5e-9  # for each innermost row of the table, of columns
PAIR_ROW_OF_SUMS = 35e-9  # and of k, which is reduced to one value
PART_CALL = 12e-6  # for each part of it


def predict(contraction: Contraction, schedule: CpuSchedule, target: Target) -> float:
    """Seconds that a launch of `schedule` takes on `target`."""
    return price(dissect(contraction), schedule)


def price(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    """The same, from what is known of the contraction's modes."""
    tile = dict(enumerate(schedule.tile))
    counts = {role: block_counts(anatomy.of(role), tile, anatomy.extents) for role in Role}
    blocks = counts[Role.BATCH] * counts[Role.M] * counts[Role.N]
    steps = blocks * counts[Role.K]
    calls = steps * PRODUCT_CALL + blocks * _finish_calls(anatomy)
    work = steps * (_product_seconds(anatomy, schedule) + _spill_seconds(anatomy, schedule))
    work += blocks * _finish_seconds(anatomy, schedule)
    for operand, count in zip((anatomy.a, anatomy.b), _read_counts(schedule, counts), strict=True):
        calls += count * _read_calls(anatomy, schedule, operand)
        work += count * _read_seconds(anatomy, schedule, operand)
        steps += count
    if schedule.threads > 1:
        calls += (steps + blocks) * BARRIER
    return _shared_out(calls, work, blocks, schedule.workers)


def _shared_out(calls: float, work: float, blocks: int, workers: int) -> float:
    """Seconds when `workers` take equal blocks; what is Python in them only one can do at a time."""
    if workers == 1:
        return CALL + calls + work
    rounds = math.ceil(blocks / workers) / blocks
    return CALL + WORKERS_CALL + max((calls + work) * rounds, calls)


class Rough(NamedTuple):
    """What a size of blocks costs before their shape is known."""

    seconds: float
    workspace_bytes: int  # of each worker


def rough_pricer(anatomy: Anatomy, packed: tuple[bool, bool], cores: int) -> Callable[[Targets], Rough]:
    """A quick estimate that tells which sizes of blocks are worth shaping and pricing in full."""
    m, n, k, batch = (anatomy.size(group) for group in (anatomy.m, anatomy.n, anatomy.k, anatomy.batch))
    width, half = anatomy.accumulate.itemsize, HALF_EXTENT
    flops = batch * m * n * k * _product_term_seconds(anatomy)
    packs_a, packs_b = packed
    pairs = anatomy.pairs
    copies_a, copies_b = (1 + operand.staged + 2 * bool(operand.alone) for operand in (anatomy.a, anatomy.b))
    workers, threads = split(cores)

    def rate(targets: Targets) -> Rough:
        i, j, l = targets
        block_a, block_b = packs_a * i * l, packs_b * j * l
        block = (block_a + block_b + i * j) * width
        m_blocks, n_blocks, k_blocks = -(-m // i), -(-n // j), -(-k // l)
        blocks = m_blocks * n_blocks * -(-batch // max(BATCH_BYTES // block, 1))
        again = k_blocks > 1
        moved = batch * (
            packs_a * m * k * (n_blocks if again else 1)
            + packs_b * n * k * (m_blocks if again or m_blocks > n_blocks else 1)
            + m * n
        )
        spilled = blocks * k_blocks * _spill((block_a + block_b) * width, i * j * width, threads)
        calls = blocks * (FINISH_CALL + k_blocks * (PRODUCT_CALL + 2 * PACK_CALL))
        products = flops * (1 + half / i) * (1 + half / j) * (1 + half / l)
        at_once = min(workers, blocks)
        work = (products + moved * COPY_STRIDED) / (threads if at_once > 1 else cores) + spilled
        workspace = (block_a * copies_a + block_b * copies_b + i * j) * width
        if pairs:
            workspace += room_for_aux(workspace)
        workspace += detour_bytes(anatomy, i * l, j * l, i * j)
        return Rough(_shared_out(calls, work, blocks, at_once), workspace)

    return rate


def _read_counts(schedule: CpuSchedule, counts: dict[Role, int]) -> tuple[int, int]:
    """How many blocks of A and of B are read: a block that stays the same from one step to the next is read once."""
    batch, m, n, k = (counts[role] for role in (Role.BATCH, Role.M, Role.N, Role.K))
    again = k > 1
    a = batch * m * k * (n if (schedule.inner is Role.M and n > 1 and m * k > 1) or again else 1)
    b = batch * n * k * (m if (schedule.inner is Role.N and m > 1 and n * k > 1) or again else 1)
    return a, b


def _product_seconds(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    cores = schedule.threads
    batch, m, n, k = schedule.block
    elements = batch * m * n
    if anatomy.elementwise:
        return _elementwise_seconds(anatomy, schedule)
    if schedule.pairs is not None:
        return _pair_seconds(anatomy, schedule)
    rows, columns = (m, n) if schedule.rows is Role.M else (n, m)
    left = anatomy.a if schedule.rows is Role.M else anatomy.b
    factor = (2 if anatomy.mixed else 4) if anatomy.accumulate.is_complex else 1
    if rows == 1 or (columns == 1 and batch == 1):
        return batch * max(rows, columns) * k * factor / SUM_ONCE / cores
    efficiency = math.prod(extent / (extent + HALF_EXTENT) for extent in (rows, columns, k))
    if columns < NARROW and rows > columns and not _along_sum(anatomy, schedule, left):
        efficiency *= NARROW_FACTOR
    return elements * k * factor * _product_term_seconds(anatomy) / (efficiency * cores)


def _product_term_seconds(anatomy: Anatomy) -> float:
    """Seconds for one product and its sum at best, on one core, complex ones apart."""
    algebra, accumulate = anatomy.contraction.algebra, anatomy.accumulate
    if algebra is None or anatomy.elementwise:
        return 2 / RATE.get(accumulate, RATE[torch.float32])
    form = matrix_form(algebra, accumulate)
    if form is not None:
        return 2 / RATE[form.dtype]
    found = operations(algebra, accumulate)
    elementary = PAIR_ELEMENTARY * (algebra.combine.elementary + algebra.reduce.elementary)
    combine = PAIR if found.combine.known is not None else PAIR_RECORDED * max(algebra.combine.flops, 1)
    return elementary + combine + (PAIR if found.folds_in_one_pass else PAIR_RECORDED * max(algebra.reduce.flops, 1))


def _pair_seconds(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    """Seconds to make the table of pairs of two blocks, and to reduce it."""
    batch, m, n, k = schedule.block
    columns, rows = (n, m) if schedule.rows is Role.M else (m, n)
    part = schedule.part(anatomy.accumulate.itemsize)
    parts = math.ceil(batch / part.batch) * math.ceil(rows / part.rows) * math.ceil(k / part.sums)
    row = PAIR_ROW / columns if schedule.pairs == "columns" else PAIR_ROW_OF_SUMS / part.sums
    return parts * PART_CALL + batch * m * n * k * (_product_term_seconds(anatomy) + row) / schedule.threads


def _elementwise_seconds(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    """One pass over a block of D and its factors, each of which may lie in another order."""
    order = _result_order(anatomy, schedule)
    extents, cores = [schedule.tile[at] for at in order], schedule.threads
    to = [anatomy.strides_d[at] for at in order] if schedule.in_place else compact(extents)
    elements, size = math.prod(extents), anatomy.accumulate.itemsize
    seconds = 0.0
    for operand in (anatomy.a, anatomy.b):
        if schedule.reading(operand).packed:
            seconds += elements * COPY_STRAIGHT / cores
            continue
        merged = merged_dimensions(extents, to, [operand.strides[at] for at in order])
        seconds += loop_seconds(merged, elements, cores)
        if merged and merged[0][2] > 1 and elements * size > CACHE * cores:
            seconds += elements * AGAINST / cores
    return seconds


def _result_order(anatomy: Anatomy, schedule: CpuSchedule) -> Group:
    """D's modes, outermost first, as they lie in the accumulator."""
    roles = (Role.BATCH, schedule.rows, schedule.columns)
    return tuple(at for role in roles for at in schedule.ordered(anatomy.of(role)))


def _spill_seconds(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    """What a step waits for, where its two factors and its sums do not fit in cache together."""
    if anatomy.elementwise:
        return 0.0
    batch, m, n, k = schedule.block
    a = m * k * anatomy.a.compute.itemsize if schedule.a.packed else 0
    b = n * k * anatomy.b.compute.itemsize if schedule.b.packed else 0
    return _spill(batch * (a + b), batch * m * n * anatomy.accumulate.itemsize, schedule.threads)


def _spill(factors: int, sums: int, cores: int) -> float:
    """Seconds for so many bytes of factors, read once, and of sums, read and written."""
    outside = max(0.0, 1 - CACHE * cores / (factors + sums))
    return outside * (factors + 2 * sums) * SPILL / cores


def _along_sum(anatomy: Anatomy, schedule: CpuSchedule, operand: Operand) -> bool:
    """Whether a block of the operand is contiguous along k."""
    reading = schedule.reading(operand)
    if reading.packed:
        return reading.sum_inner
    return any(operand.strides[at] == 1 for at in anatomy.k)


def _read_calls(anatomy: Anatomy, schedule: CpuSchedule, operand: Operand) -> float:
    """Python's share of reading a block."""
    if not schedule.reading(operand).packed:
        return READ_CALL
    parts = block_counts(operand.alone, dict(enumerate(schedule.tile)), anatomy.extents)
    passes = 1 + (operand.staged or bool(operand.alone)) + (operand.function is not None)
    return parts * passes * PACK_CALL


def _read_seconds(anatomy: Anatomy, schedule: CpuSchedule, operand: Operand) -> float:
    reading, cores = schedule.reading(operand), schedule.threads
    groups = [schedule.ordered(group) for group in (anatomy.batch, operand.free, anatomy.k, operand.alone)]
    batch, free, sums, alone = groups
    block = (*batch, *free, *sums) if reading.sum_inner else (*batch, *sums, *free)
    order = (*block, *alone) if reading.alone_inner else (*alone, *block)
    extents = [schedule.tile[at] for at in order]
    strides = [operand.strides[at] for at in order]
    size = operand.storage.itemsize
    if not reading.packed:
        return math.prod(extents) * size / (BANDWIDTH * cores)
    parts = block_counts(operand.alone, dict(enumerate(schedule.tile)), anatomy.extents)
    copy = table_seconds if reading.by_table else copy_seconds
    seconds = copy(extents, compact(extents), strides, size, cores)
    seconds += search_seconds(extents, strides, size, cores)
    elements = math.prod(extents)
    if operand.sums_where_it_lies:
        return elements * (COPY_STRAIGHT + size / BANDWIDTH) / cores
    if operand.function is not None:
        seconds += elements * FUNCTION / cores
    if operand.staged or alone:
        seconds += elements * 2 * COPY_STRAIGHT / cores
    return seconds * parts


def _finish_calls(anatomy: Anatomy) -> float:
    contraction = anatomy.contraction
    passes = (contraction.c is not None) + (contraction.c_fn is not None) + (contraction.epilogue is not None)
    return FINISH_CALL + passes * PACK_CALL


def _finish_seconds(anatomy: Anatomy, schedule: CpuSchedule) -> float:
    contraction, cores = anatomy.contraction, schedule.threads
    order = _result_order(anatomy, schedule)
    extents = [schedule.tile[at] for at in order]
    elements = math.prod(extents)
    size = contraction.d.dtype.itemsize
    strides = [anatomy.strides_d[at] for at in order]
    seconds = ownership_seconds(extents, strides, size, cores)
    if schedule.in_place:
        seconds += elements * size / (BANDWIDTH * cores)
    else:
        copy = table_seconds if schedule.d_by_table else copy_seconds
        seconds += copy(extents, strides, compact(extents), size, cores)
        seconds += search_seconds(extents, strides, size, cores)
    if contraction.c is not None:
        strides = [anatomy.strides_c[at] for at in order]
        seconds += copy_seconds(extents, compact(extents), strides, contraction.c.dtype.itemsize, cores)
        seconds += elements * COPY_STRAIGHT / cores if stages_addend(anatomy) else 0
    for function in (contraction.c_fn, contraction.epilogue):
        if function is not None:
            seconds += elements * FUNCTION / cores
    return seconds

"""From the shape of blocks to a schedule: what can be used where it lies, what is packed, and in which layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from weft.cpu.algebra import operations
from weft.cpu.algebra_forms import matrix_form
from weft.cpu.blocking import block_counts, collapsed_stride
from weft.cpu.copy_model import compact, crawls
from weft.cpu.index_groups import Anatomy, Group, Operand
from weft.cpu.pairs import SHORT
from weft.cpu.schedule import CpuSchedule, Reading, buffer_bytes, buffers, table_bytes
from weft.cpu.shaping import innermost
from weft.cpu.workers import split
from weft.spec import Role

MOST_SHAPES = 16  # of odd blocks, each of which has a table of its own
WORTH_SHARING = 1_000_000  # nanoseconds of work from which several workers save more than waking them costs


def assemble(anatomy: Anatomy, rows: Role, order: Group, tile: tuple[int, ...], cores: int) -> CpuSchedule:
    """The schedule of these blocks: what already lies as a matrix is used as it lies."""
    spread = dict(enumerate(tile))
    batch, m, n, k = groups = [
        tuple(at for at in order if at in group) for group in (anatomy.batch, anatomy.m, anatomy.n, anatomy.k)
    ]
    batch_size, m_size, n_size, k_size = (math.prod(tile[at] for at in group) for group in groups)
    batch_blocks, m_blocks, n_blocks, _ = (block_counts(group, spread, anatomy.extents) for group in groups)
    row_group, column_group = (m, n) if rows is Role.M else (n, m)
    result = (*batch, *row_group, *column_group)
    in_place = _writes_in_place(anatomy, spread, batch, row_group, column_group)
    pairs = _pairs(anatomy, k_size, n_size if rows is Role.M else m_size)
    a = _reading(anatomy, anatomy.a, spread, (batch, m, k), result, pairs)
    b = _reading(anatomy, anatomy.b, spread, (batch, n, k), result, pairs)
    packs_a, packs_b = m_size * m_blocks * a.packed, n_size * n_blocks * b.packed
    workers, threads = split(cores)
    worth = batch_blocks * m_blocks * n_blocks >= 2 and _work(anatomy) >= WORTH_SHARING
    draft = CpuSchedule(
        tile=tile,
        order=order,
        rows=rows,
        inner=Role.N if packs_a + packs_b * m_blocks <= packs_b + packs_a * n_blocks else Role.M,
        a=a,
        b=b,
        in_place=in_place,
        d_by_table=not in_place and _by_table(anatomy, spread, result, anatomy.strides_d),
        workers=min(workers, batch_blocks * m_blocks * n_blocks) if worth else 1,
        threads=threads if worth else cores,
        block=(batch_size, m_size, n_size, k_size),
        workspace_bytes=0,
        pairs=pairs,
        stand_in=_stand_in(anatomy),
    )
    return with_workspace(anatomy, draft)


def one_by_one(anatomy: Anatomy, schedule: CpuSchedule) -> CpuSchedule:
    """The same blocks without workers: one workspace, and all of torch's threads at each block."""
    return with_workspace(anatomy, replace(schedule, workers=1, threads=schedule.workers * schedule.threads))


def with_workspace(anatomy: Anatomy, schedule: CpuSchedule) -> CpuSchedule:
    each = buffer_bytes(anatomy, buffers(anatomy, schedule))
    return replace(schedule, workspace_bytes=schedule.workers * each + table_bytes(anatomy, schedule))


def _work(anatomy: Anatomy) -> int:
    """Elements moved, and multiply-adds as thirtieths or pairs of other algebras as sixths: about nanoseconds."""
    batch, m, n, k = (anatomy.size(group) for group in (anatomy.batch, anatomy.m, anatomy.n, anatomy.k))
    moved = m * k * anatomy.size(anatomy.a.alone) + n * k * anatomy.size(anatomy.b.alone) + m * n
    return batch * (moved + m * n * k // (6 if anatomy.pairs else 30))


def _pairs(anatomy: Anatomy, k_size: int, columns: int) -> Literal["columns", "k"] | None:
    """What is innermost in tables of pairs: the columns, unless these are few."""
    if not anatomy.pairs:
        return None
    return "k" if columns < min(SHORT, k_size) else "columns"


def _stand_in(anatomy: Anatomy) -> str:
    """What is said of the matrix product that stands in for an algebra's."""
    algebra, accumulate = anatomy.contraction.algebra, anatomy.accumulate
    if algebra is None or anatomy.elementwise:
        return ""
    form = matrix_form(algebra, accumulate)
    if form is not None:
        return f"as products of {str(form.dtype).removeprefix('torch.')}"
    return "exponentials multiplied where values are near" if operations(algebra, accumulate).logarithms else ""


def _reading(
    anatomy: Anatomy,
    operand: Operand,
    tile: Mapping[int, int],
    groups: tuple[Group, ...],
    result: Group,
    pairs: Literal["columns", "k"] | None,
) -> Reading:
    """How blocks of these extents are read: where they lie if that can be, and is not slow."""
    batch, free, sums = groups
    if operand.obstacle is None:
        if anatomy.elementwise:
            strides = [operand.strides[at] for at in result]
            if not crawls([tile[at] for at in result], [anatomy.strides_d[at] for at in result], strides):
                return Reading(packed=False)
        elif _is_matrix(anatomy, operand, tile, groups):
            along = sums if pairs == "k" else free
            if pairs is None or collapsed_stride(along, tile, operand.strides) in (0, 1):
                return Reading(packed=False)
    contiguous = innermost([at for at in (*batch, *free, *sums, *operand.alone) if tile[at] > 1], operand.strides)
    # The parts of a complex factor of a real one must be columns: its free modes are contiguous.
    pair = anatomy.mixed and operand.compute.is_complex
    sum_inner = contiguous in sums and not pair if pairs is None else pairs == "k"
    order = (*batch, *free, *sums) if sum_inner else (*batch, *sums, *free)
    by_table = not operand.alone and _by_table(anatomy, tile, order, operand.strides)
    return Reading(True, by_table and not operand.conjugate, sum_inner, contiguous in operand.alone)


def _by_table(anatomy: Anatomy, tile: Mapping[int, int], order: Group, strides: Sequence[int]) -> bool:
    """Whether blocks are copied between a buffer in this order and memory by a table of offsets."""
    sizes = [tile[at] for at in order]
    shapes = math.prod(2 if anatomy.extents[at] % tile[at] else 1 for at in order)
    return shapes <= MOST_SHAPES and crawls(sizes, compact(sizes), [strides[at] for at in order])


def _is_matrix(anatomy: Anatomy, operand: Operand, tile: Mapping[int, int], groups: tuple[Group, ...]) -> bool:
    """Whether every block is a matrix as BLAS takes it, or several such matrices one stride apart."""
    if anatomy.mixed and operand.compute.is_complex:
        return False
    batch, free, sums = (collapsed_stride(group, tile, operand.strides) for group in groups)
    if batch is None or free is None or sums is None:
        return False
    free_size, sum_size = (math.prod(tile[at] for at in group) for group in groups[1:])
    if free_size == 1 or sum_size == 1:  # a vector: with gaps it is read faster packed
        return max(free, sums) <= 1
    return _leads(free, free_size, sums) or _leads(sums, sum_size, free)


def _leads(step: int, size: int, other: int) -> bool:
    """Whether a dimension is contiguous and the other steps over it (a step of 0: a single element)."""
    return step in (0, 1) and (other == 0 or other >= size)


def _writes_in_place(anatomy: Anatomy, tile: Mapping[int, int], batch: Group, rows: Group, columns: Group) -> bool:
    contraction = anatomy.contraction
    if contraction.c is not None or contraction.d.dtype != anatomy.accumulate:
        return False
    if anatomy.elementwise:
        return True
    steps = [collapsed_stride(group, tile, anatomy.strides_d) for group in (batch, rows, columns)]
    if any(step is None for step in steps):
        return False
    batch_step, row_step, column_step = (step or 0 for step in steps)
    _, row_size, column_size = (math.prod(tile[at] for at in group) for group in (batch, rows, columns))
    if batch_step:  # torch's batched products are slow where the result has gaps
        return column_step in (0, 1) and row_step in (0, column_size) and batch_step == row_size * column_size
    return _leads(column_step, column_size, row_step)

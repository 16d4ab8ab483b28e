"""`CpuSchedule`: one way to cut a contraction into blocks, and the memory that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from weft.cpu.algebra import operations
from weft.cpu.algebra_forms import matrix_form
from weft.cpu.gather_tables import table_elements
from weft.cpu.index_groups import Anatomy, Group, Operand
from weft.cpu.pairs import Part, part_of
from weft.spec import Role


@dataclass(frozen=True, slots=True)
class Reading:
    """How blocks of A or B reach the product."""

    packed: bool  # copied into a workspace; otherwise used where they lie
    by_table: bool = False  # copied element by element, by a table of offsets
    sum_inner: bool = False  # k modes contiguous in a packed block, else the free modes
    alone_inner: bool = False  # modes to be summed beforehand innermost in the staging block, else outermost


@dataclass(frozen=True, slots=True)
class CpuSchedule:
    """Blocks of a contraction and the order in which they are computed.

    The accumulator of a block is a matrix [batch, rows, columns], contiguous along its columns.
    """

    tile: tuple[int, ...]  # extent of a block along each mode of the contraction
    order: tuple[int, ...]  # all modes, outermost first, as they lie within packed blocks and the accumulator
    rows: Role  # M or N; the columns are the other one
    inner: Role  # M or N: whose blocks the innermost of the two loops over D goes along
    a: Reading
    b: Reading
    in_place: bool  # products are summed in D itself; otherwise in a workspace, and copied
    d_by_table: bool  # copied element by element, by a table of offsets
    workers: int  # blocks of D computed at once, each worker with a workspace of its own
    threads: int  # torch's threads in each worker
    block: tuple[int, int, int, int]  # elements of a block along batch, m, n and k modes
    workspace_bytes: int
    pairs: Literal["columns", "k"] | None = None  # what is innermost in tables of pairs, where there are such
    stand_in: str = ""  # the matrix product that stands in for an algebra's, always or where values are near

    @property
    def family(self) -> str:
        return "cpu"

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in zip(("batch", "m", "n", "k"), self.block, strict=True))
        reads = ", ".join(
            f"{name} {'packed' if reading.packed else 'in place'}{' by table' if reading.by_table else ''}"
            for name, reading in (("A", self.a), ("B", self.b))
        )
        write = "in place" if self.in_place else "scattered by table" if self.d_by_table else "scattered"
        size = self.workspace_bytes / 1024
        tables = f", pairs along {self.pairs}" if self.pairs else ""
        tables += f", {self.stand_in}" if self.stand_in else ""
        at_once = f"{self.workers} at once" if self.workers > 1 else "one by one"
        return f"cpu: blocks of {sizes}, {at_once}; {reads}, D {write}{tables}; workspace {size:.0f} KiB"

    @property
    def columns(self) -> Role:
        return Role.N if self.rows is Role.M else Role.M

    def reading(self, operand: Operand) -> Reading:
        return self.a if operand.name == "A" else self.b

    def ordered(self, group: Group) -> Group:
        """The modes of a group, outermost first."""
        return tuple(at for at in self.order if at in group)

    def part(self, itemsize: int) -> Part:
        """The part of a table of pairs that is made at once."""
        batch, m, n, k = self.block
        return part_of(batch, *((m, k, n) if self.rows is Role.M else (n, k, m)), itemsize)

    def block_size(self, group: Group) -> int:
        return math.prod(self.tile[at] for at in group)


class Buffers(NamedTuple):
    """Elements of each buffer that a worker allocates; 0 where it needs none."""

    a: int  # packed block, in A's compute type
    b: int
    accumulator: int  # in the accumulator's type
    raw: int  # bytes: a block in its storage type, on its way through a table
    stage: int  # bytes: a block before it is rounded or widened, or one of C
    wide: int  # bytes: a block before it is summed over an operand's own modes
    part: int  # bytes: one such sum, where there are several to add
    table: int = 0  # in the accumulator's type: a part of a table of pairs
    partial: int = 0  # and what it is reduced to
    detour: int = 0  # bytes: what a matrix product in the place of an algebra's allocates as it goes


def buffers(anatomy: Anatomy, schedule: CpuSchedule) -> Buffers:
    """What each worker of this schedule allocates, exactly."""
    accumulator = schedule.block_size((*anatomy.batch, *anatomy.m, *anatomy.n))
    raw = stage = wide = part = 0
    packed = []
    for operand in (anatomy.a, anatomy.b):
        block = schedule.block_size((*anatomy.batch, *operand.free, *anatomy.k))
        whole = block * schedule.block_size(operand.alone)
        packed.append(block if schedule.reading(operand).packed else 0)
        if schedule.reading(operand).by_table and (operand.storage != operand.compute or operand.staged):
            raw = max(raw, block * operand.storage.itemsize)
        if operand.staged:
            stage = max(stage, whole * operand.value.itemsize)
        if operand.alone and not operand.sums_where_it_lies:
            wide = max(wide, whole * operand.compute.itemsize)
        if any(schedule.tile[at] < anatomy.extents[at] for at in operand.alone):
            part = max(part, block * operand.compute.itemsize)
    if stages_addend(anatomy):
        stage = max(stage, accumulator * anatomy.accumulate.itemsize)
    if schedule.d_by_table and anatomy.contraction.d.dtype != anatomy.accumulate:
        raw = max(raw, accumulator * anatomy.contraction.d.dtype.itemsize)
    # Blocks of several types share these bytes: whole numbers of the widest elements.
    raw, stage, wide, part = (-(-size // 16) * 16 for size in (raw, stage, wide, part))
    table, partial = _table_elements(anatomy, schedule)
    a, b = (schedule.block_size((*anatomy.batch, *free, *anatomy.k)) for free in (anatomy.m, anatomy.n))
    detour = detour_bytes(anatomy, a, b, accumulator)
    return Buffers(
        packed[0], packed[1], 0 if schedule.in_place else accumulator, raw, stage, wide, part, table, partial, detour
    )


def _table_elements(anatomy: Anatomy, schedule: CpuSchedule) -> tuple[int, int]:
    """Of a part of a table of pairs, where torch writes it where it is told to, and of what it is reduced to."""
    algebra = anatomy.contraction.algebra
    if algebra is None or schedule.pairs is None:
        return 0, 0
    part = schedule.part(anatomy.accumulate.itemsize)
    known = operations(algebra, anatomy.accumulate).combine.known is not None
    return part.elements if known else 0, part.results


def detour_bytes(anatomy: Anatomy, a: int, b: int, results: int) -> int:
    """What factors of that many elements and their product take where a matrix product stands in."""
    algebra = anatomy.contraction.algebra
    if algebra is None or not anatomy.k:
        return 0
    values = anatomy.accumulate.itemsize
    form = matrix_form(algebra, anatomy.accumulate)
    if form is not None:
        sums = form.dtype.itemsize
        return (a + b) * (sums + values) + results * (sums + torch.int64.itemsize + values)
    if operations(algebra, anatomy.accumulate).logarithms:
        return (a + b) * (values + 2 * torch.bool.itemsize) + results * values
    return 0


def table_bytes(anatomy: Anatomy, schedule: CpuSchedule) -> int:
    """What a launch holds for as long as it lives, for all workers: tables of offsets."""
    groups = [
        (*anatomy.batch, *operand.free, *anatomy.k)
        for operand in (anatomy.a, anatomy.b)
        if schedule.reading(operand).by_table
    ]
    if schedule.d_by_table:
        groups.append((*anatomy.batch, *anatomy.m, *anatomy.n))
    return sum(table_elements(group, schedule.tile, anatomy.extents) for group in groups) * torch.int64.itemsize


def stages_addend(anatomy: Anatomy) -> bool:
    """Whether blocks of C are copied before they are added: to evaluate its function, or to convert them."""
    contraction = anatomy.contraction
    if contraction.c is None:
        return False
    return contraction.c_fn is not None or contraction.c.dtype != anatomy.accumulate


def buffer_bytes(anatomy: Anatomy, sizes: Buffers) -> int:
    a, b, accumulate = anatomy.a.compute, anatomy.b.compute, anatomy.accumulate
    return (
        sizes.a * a.itemsize
        + sizes.b * b.itemsize
        + (sizes.accumulator + sizes.table + sizes.partial) * accumulate.itemsize
        + sizes.raw
        + sizes.stage
        + sizes.wide
        + sizes.part
        + sizes.detour
    )


def allocate(elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(elements, dtype=dtype, device="cpu") if elements else _nothing(dtype)


@lru_cache
def _nothing(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu")

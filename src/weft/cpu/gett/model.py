"""Schedules of the CPU's GETT, and their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from weft.cpu.gett.forms import MatrixForm, matrix_form
from weft.cpu.gett.layout import Axes, axes_of, one_by_one, vectors_along_operand
from weft.cpu.gett.operations import Operation, operation_of
from weft.cpu.gett.params import BLOCK_ROWS, VECTORS
from weft.cpu.gett.split import parts_of, steps_of
from weft.cpu.host import costs
from weft.cpu.level import vector_bytes
from weft.planner.exponentials import exponent_of
from weft.spec import Contraction
from weft.spec.dtypes import REAL_OF

# Blocks for the caches: a panel of rows and one of slots share L2 (1 MiB and more on current cores).
K_BLOCK = 384
ROW_PANEL, SLOT_PANEL = 384 << 10, 256 << 10  # bytes
LONG_ROWS, LONG_LANES = 960, 1024  # of a block where K takes several, whose partial sums wait
SMALL = 150_000  # products and three times D's items, up to which one thread is as quick as two
NEAR = 128  # bytes from one k to the next that caches and pages forgive
THIN = 64  # up to this K, packing and D take the time: more and smaller parts

# By the accumulator's type: how numba calls it.
KINDS = {
    torch.float32: "float32", torch.float64: "float64", torch.complex64: "complex64",
    torch.complex128: "complex128", torch.int32: "int32", torch.int64: "int64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CpuGettSchedule:
    """Blocks in items: rows, lanes and k of one step, and the parts that threads share."""

    swap_ab: bool
    blocks: tuple[int, int, int]  # MC, NC, KC
    direct: tuple[bool, bool]  # whether the row and the slot operand are read unpacked
    parts: tuple[int, int]  # of the rows and of the slots
    threads: int
    workspace_bytes: int
    splits: int = 1  # of the sums: see `split`
    family: str = "gett"

    def __str__(self) -> str:
        rows, lanes, k = self.blocks
        vectors = "A" if self.swap_ab else "B"
        reads = [f"{name} {'in place' if direct else 'packed'}" for name, direct in zip(
            ("B", "A") if self.swap_ab else ("A", "B"), self.direct, strict=True)]  # fmt: skip
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        threads += f"; sums in {self.splits} parts" if self.splits > 1 else ""
        return (
            f"gett: blocks of {rows} rows x {lanes} lanes x {k}, vectors along {vectors}; {', '.join(sorted(reads))}; "
            f"{threads}; workspace {self.workspace_bytes / 1024:.0f} KiB"
        )


class GettForm(NamedTuple):
    """A contraction as the kernels compute it."""

    kind: str  # numba's name of the type that is computed in
    dtype: torch.dtype
    axes: Axes
    real_parts: bool  # whether complex numbers are pairs of real ones, one operand being real
    operation: Operation | None  # None: a micro-kernel is written for the algebra
    matrix: MatrixForm | None = None  # of an algebra whose sums are of other products

    @property
    def item(self) -> int:
        return self.dtype.itemsize

    @property
    def lanes(self) -> int:
        return vector_bytes() // self.item

    @property
    def height(self) -> int:
        return BLOCK_ROWS // 2 if self.dtype.is_complex else BLOCK_ROWS


@lru_cache(maxsize=256)
def form_of(contraction: Contraction) -> GettForm:
    """How a contraction that is supported is computed."""
    accumulate = contraction.arithmetic.accumulate
    mixed = contraction.algebra is None and contraction.a.dtype.is_complex != contraction.b.dtype.is_complex
    real_parts = mixed and _in_parts(contraction)
    matrix = matrix_form(contraction.algebra, accumulate) if contraction.algebra is not None else None
    if real_parts:
        dtype = REAL_OF[accumulate]
    elif matrix is not None:
        dtype = matrix.dtype
    else:
        dtype = torch.int32 if accumulate is torch.bool else accumulate
    real_row = mixed and not real_parts
    swapped = contraction.a.dtype.is_complex if real_row else None
    axes = axes_of(contraction, real_parts, swapped, 1 if matrix is None else matrix.parts)
    return GettForm(KINDS[dtype], dtype, axes, real_parts, operation_of(contraction, axes.swapped, real_row), matrix)


def _in_parts(contraction: Contraction) -> bool:
    """Whether real times complex is a product of real numbers: nothing is applied, added or converted."""
    accumulate, stored = contraction.arithmetic.accumulate, (contraction.a.dtype, contraction.b.dtype)
    if contraction.a_fn or contraction.b_fn or contraction.epilogue or contraction.c is not None:
        return False
    if contraction.conjugate_a or contraction.conjugate_b or contraction.d.dtype != accumulate:
        return False
    return accumulate in stored and REAL_OF[accumulate] in stored


def best_schedule(contraction: Contraction, threads: int) -> CpuGettSchedule:
    """Blocks by the sizes of caches, parts by the number of threads."""
    form = form_of(contraction)
    axes, item, height = form.axes, form.item, form.height
    outer, rows, columns, k = axes.counts
    rows, lanes = -(-rows // height) * height, -(-columns // (VECTORS * form.lanes)) * VECTORS * form.lanes
    k_block = _k_block(form, k)
    if k > k_block:
        row_block, lane_block = min(rows, LONG_ROWS), min(lanes, LONG_LANES)
    else:
        row_block = min(rows, max(height, ROW_PANEL // (k_block * item) // height * height))
        pair = VECTORS * form.lanes
        lane_block = min(lanes, max(pair, SLOT_PANEL // (k_block * item) // pair * pair))
    work = outer * rows * lanes * (k + 3)
    threads = threads if work > SMALL else 1
    tiles = outer * (rows // height) * (lanes // (VECTORS * form.lanes))
    if tiles < threads and not contraction.invariant and (splits := parts_of(contraction, threads // tiles)) > 1:
        found = best_schedule(steps_of(contraction, splits).parts, threads)
        between = splits * contraction.batch * contraction.m * contraction.n * item
        return replace(found, splits=splits, workspace_bytes=found.workspace_bytes + between)
    parts = _parts(outer, rows // height, lanes // (VECTORS * form.lanes), k, threads)
    direct = _direct(contraction, form, rows, lanes, k)
    partials = row_block * lane_block * item if k > k_block else 0
    stages = (contraction.a_fn or contraction.b_fn or contraction.epilogue or contraction.c) is not None
    panels = (row_block + lane_block) * k_block * item * (2 if stages else 1)
    return CpuGettSchedule(
        axes.swapped, (row_block, lane_block, k_block), direct, parts, threads, threads * (panels + partials + 8192)
    )


def _k_block(form: GettForm, k: int) -> int:
    """KC: all of k, or blocks of about one size; a sum of products in another form stays exact within one."""
    limit = K_BLOCK if form.matrix is None else min(K_BLOCK, form.matrix.chunk * form.matrix.parts)
    return k if k <= limit else math.ceil(k / math.ceil(k / limit))


def _parts(outer: int, row_blocks: int, pairs: int, k: int, threads: int) -> tuple[int, int]:
    """Into how many parts rows and slots are cut, so that every thread has some."""
    if threads == 1 or outer >= 2 * threads:
        return 1, 1
    wanted = max(1, (2 * threads if k <= THIN else threads) // outer)
    if pairs >= wanted and pairs * VECTORS * 8 >= row_blocks * BLOCK_ROWS:
        return 1, wanted
    if row_blocks >= wanted:
        return wanted, 1
    return (1, min(wanted, pairs)) if pairs > row_blocks else (row_blocks, 1)


def _direct(contraction: Contraction, form: GettForm, rows: int, lanes: int, k: int) -> tuple[bool, bool]:
    """Which operands are read unpacked: of the kernel's own type, evenly spaced along k, and read seldom."""
    swapped = form.axes.swapped
    functions = (contraction.a_fn, contraction.b_fn)
    types = (contraction.a.dtype, contraction.b.dtype)
    plain = [
        function is None and (dtype == form.dtype == contraction.arithmetic.product or form.real_parts)
        for function, dtype in zip(functions, types, strict=True)
    ]
    row_plain, slot_plain = reversed(plain) if swapped else plain
    if contraction.algebra is not None and (form.operation is None or form.matrix is not None):
        return False, False
    if form.operation is not None and form.operation.reduce in ("max", "min") and form.dtype.is_floating_point:
        return False, False  # panels are looked at for NaN
    row_step, slot_step = (_step(form, base) for base in (0, 1))
    row = row_plain and row_step is not None and (row_step == form.item or k <= 32) and lanes <= 128
    slot = slot_plain and slot_step is not None and rows <= 24 and k <= K_BLOCK
    if slot and slot_step is not None and slot_step > NEAR:
        # From page to page along k: packing reads more of each page at a time.
        slot = not vectors_along_operand(form.axes, form.lanes, form.item)
    return row, slot


def _step(form: GettForm, base: int) -> int | None:
    """Bytes from one k to the next, where that is always the same."""
    axes = form.axes.k
    if not axes:
        return form.item
    step = axes[-1].steps[base]
    reach = step * axes[-1].extent
    for axis in reversed(axes[:-1]):
        if axis.steps[base] != reach:
            return None
        reach *= axis.extent
    return step


def k_step(form: GettForm, base: int) -> int | None:
    return _step(form, base)


WRITTEN = 6  # how much longer a step of a written micro-kernel takes: its sums are in the first cache


class _GettCost(NamedTuple):
    rate: dict[str, float]  # flops a second of one core, by numba's names of types; a multiply-add is two
    exponential: dict[str, float]  # seconds of a pair of an algebra that adds exponentials
    packed: float  # seconds for four bytes
    stored: float
    single: float  # of an item that no vector moves
    tile: float  # seconds of a register block, besides its products
    call: float
    team: float  # of starting threads
    stage: float  # seconds of one call of a stage, on a panel or a register block,
    beside: float  # more for each tensor that one of a register block takes or yields alongside D,
    converted: float  # and for each item of a panel
    memory: float  # bytes a second of one core, of operands and results that are in no cache


@lru_cache
def _cost() -> _GettCost:
    found = costs("gett")
    tables = found.table("rate"), found.table("exponential")
    return _GettCost(*tables, *(found(name) for name in _GettCost._fields[2:]))


def predict(contraction: Contraction, schedule: CpuGettSchedule) -> float:
    form, cost = form_of(contraction), _cost()
    outer, rows, columns, k = form.axes.counts
    height, width = form.height, VECTORS * form.lanes
    rows, columns = -(-rows // height) * height, -(-columns // width) * width
    products = 2 * outer * rows * columns * k / cost.rate[form.kind]
    if form.operation is None:
        algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
        exponential = algebra is not None and exponent_of(algebra, accumulate) is not None
        products = outer * rows * columns * k * cost.exponential[form.kind] if exponential else products * WRITTEN
    moved = outer * _moved(form, schedule, rows, columns)
    tiles = outer * rows * columns / (height * width) * cost.tile
    tiles += _stages(contraction, form, outer * rows * columns // (height * width))
    team = cost.team if schedule.threads > 1 else 0.0
    read = contraction.m * contraction.k * contraction.a.dtype.itemsize
    read += contraction.n * contraction.k * contraction.b.dtype.itemsize
    touched = outer * (read + contraction.m * contraction.n * contraction.d.dtype.itemsize)
    busy = max(products + moved + tiles, touched / cost.memory)
    return cost.call + team + busy / schedule.threads


def _moved(form: GettForm, schedule: CpuGettSchedule, rows: int, columns: int) -> float:
    """Seconds in which operands are packed and sums stored, by vectors or item by item."""
    cost, k = _cost(), form.axes.counts[3]
    packed, stored = cost.packed * form.item / 4, cost.stored * form.item / 4
    reads, writes = one_by_one(form.axes, form.lanes, form.item)
    row_direct, slot_direct = schedule.direct
    return (
        rows * columns * (cost.single if writes else stored)
        + (0 if row_direct else rows * k * packed)
        + (0 if slot_direct else columns * k * (cost.single if reads else packed))
    )


def _stages(contraction: Contraction, form: GettForm, blocks: int) -> float:
    """Seconds that stages take besides what they compute."""
    cost, seconds = _cost(), 0.0
    sides = ((contraction.a, contraction.a_fn, contraction.m), (contraction.b, contraction.b_fn, contraction.n))
    for layout, function, extent in sides:
        if function is not None or (layout.dtype != form.dtype and not form.real_parts):
            alone = 2 if layout.dtype.itemsize != form.item else 1  # items of another size are gathered one by one
            seconds += contraction.batch * (cost.stage + alone * extent * contraction.k * cost.converted)
    if contraction.epilogue is not None or contraction.c is not None:
        others = len(contraction.epilogue_args) + len(contraction.outputs) + (contraction.c is not None)
        seconds += blocks * (cost.stage + others * cost.beside)
    return seconds

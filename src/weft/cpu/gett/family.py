"""The CPU's GETT: what it supports, its schedules for a description, and their cost."""

from __future__ import annotations

import math
from functools import partial

import torch

from weft.cpu import jit
from weft.cpu.gett.forms import CpuGettSchedule, GettForm, form_of, k_step
from weft.cpu.gett.layout import one_by_one, vectors_along_operand
from weft.cpu.gett.params import BLOCK_ROWS, VECTORS
from weft.cpu.gett.split import launch_of, parts_of, split_schedule
from weft.cpu.host import costs
from weft.errors import UnsupportedError
from weft.planner.exponentials import exponent_of
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import FP8, dtype_name

LONGEST = 1 << 22  # rows, columns or k: tables of offsets take 8 bytes for each and operand
WASTE = 20  # sums computed for each of D, beyond which torch's reductions are quicker,
LITTLE = 1 << 20  # but for so few products: a pass of torch takes as long
AUX = 20  # auxiliary operands of one stage
LOADABLE = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, *FP8,
)  # fmt: skip
ACCUMULATORS = (
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64, torch.bool,
)  # fmt: skip


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if (fault := jit.fault_on(target)) is not None:
        return fault
    accumulate = contraction.arithmetic.accumulate
    if accumulate not in ACCUMULATORS:
        return f"sums in {dtype_name(accumulate)} have no kernel"
    types = [contraction.a.dtype, contraction.b.dtype, contraction.d.dtype, contraction.arithmetic.product]
    types += [contraction.c.dtype] if contraction.c is not None else []
    for dtype in (*types, *(aux.dtype for aux in contraction.aux)):
        if dtype not in LOADABLE:
            return f"kernels do not read {dtype_name(dtype)}"
    extents = [mode.extent for mode in contraction.modes]
    if 0 in extents:
        return "a mode is empty"
    for role in (Role.M, Role.N, Role.K):
        if contraction.extent_of(role) > LONGEST:
            return f"its {role.value} modes are longer than {LONGEST}"
    if not contraction.invariant and _is_for_others(contraction):
        return "it has too few rows and columns for register blocks"
    if len(contraction.aux) > AUX:
        return f"functions take more than {AUX} operands"
    if contraction.algebra is None and torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    return _code_fault(contraction)


def _is_for_others(contraction: Contraction) -> bool:
    """Whether others are quicker, or round less."""
    waste = _waste(contraction)
    products = contraction.batch * contraction.m * contraction.n * contraction.k
    return (waste > WASTE and waste * products > LITTLE) or (_is_single_sum(contraction) and products > LONGEST_SUM)


def _waste(contraction: Contraction) -> float:
    """Sums that register blocks compute for each that is requested."""
    m, n = contraction.m, contraction.n
    items = 8 if contraction.arithmetic.accumulate.itemsize == 4 else 4
    few, many = min(m, n), max(m, n)
    return -(-few // 6) * 6 * -(-many // (2 * items)) * 2 * items / (few * many)


LONGEST_SUM = 512  # products that one lane adds up one after the other, where others round less


def _is_single_sum(contraction: Contraction) -> bool:
    """Whether D is one sum of products as they are, which others make, and round less."""
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    plain = contraction.algebra is None and not any(functions) and contraction.arithmetic.accumulate.is_floating_point
    return plain and contraction.batch * contraction.m * contraction.n == 1


def _code_fault(contraction: Contraction) -> str | None:
    """Why the algebra or a function of the contraction has no code here; None where all have."""
    algebra = contraction.algebra
    if algebra is not None and (form := form_of(contraction)).operation is None:
        from weft.cpu.gett.entries import source_of

        try:
            source_of(algebra, contraction.arithmetic.accumulate, form.dtype, form.axes.swapped)
        except UnsupportedError as error:
            return f"the algebra {algebra.name}: {error}"
    if any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        from weft.cpu.gett.stages import emittable

        return emittable(contraction)
    return None


NAME = "gett"

__all__ = ["NAME", "CpuGettSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates((best_schedule(contraction, max(target.processors, 1)),))


def adds_in_order(contraction: Contraction, schedule: CpuGettSchedule) -> bool:
    """A sum is made of blocks along k, which follow from the length of k."""
    return True


def build(contraction: Contraction, schedule: CpuGettSchedule, target: Target) -> Launch:
    from weft.cpu.gett.launch import GettLaunch

    return launch_of(contraction, schedule, GettLaunch, best_schedule)


# Blocks for the caches: a panel of rows and one of slots share L2 (1 MiB and more on current cores).
K_BLOCK = 384
ROW_PANEL, SLOT_PANEL = 384 << 10, 256 << 10  # bytes
LONG_ROWS, LONG_LANES = 960, 1024  # of a block where K takes several, whose partial sums wait
SMALL = 150_000  # products and three times D's items, up to which one thread is as quick as two
NEAR = 128  # bytes from one k to the next that caches and pages forgive
THIN = 64  # up to this K, packing and D take the time: more and smaller parts


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
        return split_schedule(contraction, splits, item, partial(best_schedule, threads=threads))
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
    row_step, slot_step = (k_step(form, base) for base in (0, 1))
    row = row_plain and row_step is not None and (row_step == form.item or k <= 32) and lanes <= 128
    slot = slot_plain and slot_step is not None and rows <= 24 and k <= K_BLOCK
    if slot and slot_step is not None and slot_step > NEAR:
        # From page to page along k: packing reads more of each page at a time.
        slot = not vectors_along_operand(form.axes, form.lanes, form.item)
    return row, slot


WRITTEN = 6  # how much longer a step of a written micro-kernel takes: its sums are in the first cache


# Constants of the section "gett":
#   rate                  flops a second of one core, by numba's names of types; a multiply-add is two
#   exponential           seconds of a pair of an algebra that adds exponentials
#   packed, stored        seconds for four bytes
#   single                of an item that no vector moves
#   tile                  of a register block, besides its products
#   call, team            of a call; of starting threads
#   stage, beside         of one call of a stage, on a panel or a register block; more for each tensor that one of a
#                         register block takes or yields alongside D
#   converted             and for each item of a panel
#   memory                bytes a second of one core, of operands and results that are in no cache


def predict(contraction: Contraction, schedule: CpuGettSchedule, target: Target) -> float:
    """Seconds on `target`."""
    form, cost = form_of(contraction), costs(NAME)
    outer, rows, columns, k = form.axes.counts
    height, width = form.height, VECTORS * form.lanes
    rows, columns = -(-rows // height) * height, -(-columns // width) * width
    products = 2 * outer * rows * columns * k / cost.table("rate")[form.kind]
    if form.operation is None:
        algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
        exponential = algebra is not None and exponent_of(algebra, accumulate) is not None
        pairs = outer * rows * columns * k
        products = pairs * cost.table("exponential")[form.kind] if exponential else products * WRITTEN
    moved = outer * _moved(form, schedule, rows, columns)
    tiles = outer * rows * columns / (height * width) * cost("tile")
    tiles += _stages(contraction, form, outer * rows * columns // (height * width))
    team = cost("team") if schedule.threads > 1 else 0.0
    read = contraction.m * contraction.k * contraction.a.dtype.itemsize
    read += contraction.n * contraction.k * contraction.b.dtype.itemsize
    touched = outer * (read + contraction.m * contraction.n * contraction.d.dtype.itemsize)
    busy = max(products + moved + tiles, touched / cost("memory"))
    return cost("call") + team + busy / schedule.threads


def _moved(form: GettForm, schedule: CpuGettSchedule, rows: int, columns: int) -> float:
    """Seconds in which operands are packed and sums stored, by vectors or item by item."""
    cost, k = costs(NAME), form.axes.counts[3]
    packed, stored = cost("packed") * form.item / 4, cost("stored") * form.item / 4
    reads, writes = one_by_one(form.axes, form.lanes, form.item)
    row_direct, slot_direct = schedule.direct
    return (
        rows * columns * (cost("single") if writes else stored)
        + (0 if row_direct else rows * k * packed)
        + (0 if slot_direct else columns * k * (cost("single") if reads else packed))
    )


def _stages(contraction: Contraction, form: GettForm, blocks: int) -> float:
    """Seconds that stages take besides what they compute."""
    cost, seconds = costs(NAME), 0.0
    sides = ((contraction.a, contraction.a_fn, contraction.m), (contraction.b, contraction.b_fn, contraction.n))
    for layout, function, extent in sides:
        if function is not None or (layout.dtype != form.dtype and not form.real_parts):
            alone = 2 if layout.dtype.itemsize != form.item else 1  # items of another size are gathered one by one
            seconds += contraction.batch * (cost("stage") + alone * extent * contraction.k * cost("converted"))
    if contraction.epilogue is not None or contraction.c is not None:
        others = len(contraction.epilogue_args) + len(contraction.outputs) + (contraction.c is not None)
        seconds += blocks * (cost("stage") + others * cost("beside"))
    return seconds

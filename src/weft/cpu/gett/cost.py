"""What a schedule costs, in seconds: products at a core's rate, elements moved, a call.

What matters is the order of families. The constants are data: see `weft.cpu.host`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu.gett.layout import one_by_one
from weft.cpu.gett.schedule import VECTORS, Form, GettSchedule, form_of
from weft.cpu.host import costs
from weft.spec import Contraction

WRITTEN = 6  # how much longer a step of a written micro-kernel takes: its sums are in the first cache


class _Cost(NamedTuple):
    rate: dict[str, float]  # flops a second of one core, by numba's names of types; a multiply-add is two
    packed: float  # seconds for four bytes
    stored: float
    single: float  # of an item that no vector moves
    tile: float  # seconds of a register block, besides its products
    call: float
    team: float  # of starting threads
    stage: float  # seconds of one call of a stage, on a panel or a register block,
    beside: float  # more for each tensor that one of a register block takes or yields beside D,
    converted: float  # and for each item of a panel
    memory: float  # bytes a second of one core, of operands and results that are in no cache


@lru_cache
def _cost() -> _Cost:
    found = costs("gett")
    return _Cost(found.table("rate"), *(found(name) for name in _Cost._fields[1:]))


def predict(contraction: Contraction, schedule: GettSchedule) -> float:
    form, cost = form_of(contraction), _cost()
    outer, rows, columns, k = form.axes.counts
    height, width = form.height, VECTORS * form.lanes
    rows, columns = -(-rows // height) * height, -(-columns // width) * width
    products = 2 * outer * rows * columns * k / cost.rate[form.kind]
    if form.operation is None:
        products *= WRITTEN
    moved = outer * _moved(form, schedule, rows, columns)
    tiles = outer * rows * columns / (height * width) * cost.tile
    tiles += _stages(contraction, form, outer * rows * columns // (height * width))
    team = cost.team if schedule.threads > 1 else 0.0
    read = contraction.m * contraction.k * contraction.a.dtype.itemsize
    read += contraction.n * contraction.k * contraction.b.dtype.itemsize
    touched = outer * (read + contraction.m * contraction.n * contraction.d.dtype.itemsize)
    busy = max(products + moved + tiles, touched / cost.memory)
    return cost.call + team + busy / schedule.threads


def _moved(form: Form, schedule: GettSchedule, rows: int, columns: int) -> float:
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


def _stages(contraction: Contraction, form: Form, blocks: int) -> float:
    """Seconds that stages take besides what they compute."""
    cost, seconds = _cost(), 0.0
    sides = ((contraction.a, contraction.a_fn, contraction.m), (contraction.b, contraction.b_fn, contraction.n))
    for layout, function, extent in sides:
        if function is not None or (layout.dtype != form.dtype and not form.real_parts):
            alone = 2 if layout.dtype.itemsize != form.item else 1  # items of another size are gathered one by one
            seconds += contraction.batch * (cost.stage + alone * extent * contraction.k * cost.converted)
    if contraction.epilogue is not None or contraction.c is not None:
        beside = len(contraction.epilogue_args) + len(contraction.outputs) + (contraction.c is not None)
        seconds += blocks * (cost.stage + beside * cost.beside)
    return seconds

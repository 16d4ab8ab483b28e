"""What a schedule costs, in seconds: products at a core's rate, elements moved, a call.

What matters is the order of families. The constants are data: see `weft.cpu.host`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu.gett.schedule import VECTORS, GettSchedule, form_of
from weft.cpu.host import costs
from weft.spec import Contraction

WRITTEN = 6  # how much longer a step of a written micro-kernel takes: its sums are in the first cache


class _Cost(NamedTuple):
    rate: dict[str, float]  # flops a second of one core, by numba's names of types; a multiply-add is two
    packed: float  # seconds for four bytes
    stored: float
    tile: float  # seconds of a register block, besides its products
    call: float
    team: float  # of starting threads
    stage: float  # seconds of one call of a stage, on a panel or a register block
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
    moved = outer * (rows * columns * cost.stored + (rows + columns) * k * cost.packed) * form.item / 4
    tiles = outer * rows * columns / (height * width) * cost.tile
    stages = ((contraction.a_fn is not None) + (contraction.b_fn is not None)) * outer
    if contraction.epilogue is not None or contraction.c is not None:
        stages += outer * rows * columns // (height * width)
    tiles += stages * cost.stage
    team = cost.team if schedule.threads > 1 else 0.0
    read = contraction.m * contraction.k * contraction.a.dtype.itemsize
    read += contraction.n * contraction.k * contraction.b.dtype.itemsize
    touched = outer * (read + contraction.m * contraction.n * contraction.d.dtype.itemsize)
    busy = max(products + moved + tiles, touched / cost.memory)
    return cost.call + team + busy / schedule.threads

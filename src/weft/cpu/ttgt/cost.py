"""Predicted time: what packing and the product are predicted to take, and the last pass. Constants are data."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu import blas
from weft.cpu.gett.params import AUX_BASE, C_BASE, D_BASE
from weft.cpu.host import costs
from weft.cpu.ttgt.finish import CHUNK, axes_of, run_of
from weft.cpu.ttgt.schedule import TtgtSchedule
from weft.cpu.ttgt.steps import Piece, pieces_of
from weft.cpu.ttgt.ways import size
from weft.planner.schedule import Target
from weft.spec import Contraction


class _Cost(NamedTuple):
    piece: float  # seconds of Python for each
    row: float  # of a stage's call for a chunk of a row
    item: float  # of an item that is read or written where it lies, or along runs,
    gathered: float  # and of one that is moved alone
    memory: float  # bytes a second of one core


@lru_cache
def _cost() -> _Cost:
    found = costs("ttgt")
    return _Cost(*(found(name) for name in _Cost._fields))


def predict(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> float:
    way = schedule.way
    count, (first, *_) = way.cut.count(way.order), pieces_of(contraction, way)
    packed = [0.0 if choice is None else choice.best.seconds for choice in schedule.packers[0]]
    each = packed[way.cut.operand] + blas.predict(first.product, schedule.product, target)
    each += _finish(contraction, first, schedule) + _cost().piece
    return contraction.batch * (packed[1 - way.cut.operand] + count * each)


def _finish(contraction: Contraction, piece: Piece, schedule: TtgtSchedule) -> float:
    """Seconds of the last pass over one piece."""
    if not schedule.way.last:
        return 0.0
    cost, (rows, columns) = _cost(), (size(piece.rows), size(piece.columns))
    axes = axes_of(contraction, piece.columns)
    bases = [(D_BASE, contraction.d.dtype.itemsize)]
    bases += [(C_BASE, contraction.c.dtype.itemsize)] if contraction.c is not None else []
    bases += [
        (AUX_BASE + at, each.dtype.itemsize) for at, each in enumerate(contraction.aux) if each.kind != "index"
    ]
    alone = sum(run_of(axes, base, item) == 1 for base, item in bases)
    items = rows * columns * ((len(bases) + 1) * cost.item + alone * cost.gathered)
    calls = rows * -(-columns // CHUNK) * cost.row
    touched = rows * columns * sum(item for base, item in bases if base in (D_BASE, C_BASE)) / cost.memory
    return max(items + calls, touched) / schedule.threads

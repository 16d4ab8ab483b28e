"""Predicted time: what the product is predicted to take, and the passes around it. Constants are data."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu import blas
from weft.cpu.gett.params import AUX_BASE, C_BASE, D_BASE
from weft.cpu.host import costs
from weft.cpu.ttgt.params import SPACE_BASE, WHOLE
from weft.cpu.ttgt.passes import CHUNK, PassEntry, axes_of, run_of
from weft.cpu.ttgt.schedule import TtgtSchedule
from weft.cpu.ttgt.steps import WorkspaceMatrix, pieces_of
from weft.cpu.ttgt.ways import IN_PLACE, multiplied, operand_of
from weft.planner.schedule import Target
from weft.spec import Contraction


class _TtgtCost(NamedTuple):
    call: float  # seconds of a call,
    piece: float  # and of each piece, in Python
    row: float  # of a stage's call for a chunk of a row
    item: float  # of four bytes that are read or written along a run,
    gathered: float  # and of a run, or of an item that is moved alone
    memory: float  # bytes a second of one core


@lru_cache
def _cost() -> _TtgtCost:
    found = costs("ttgt")
    return _TtgtCost(*(found(name) for name in _TtgtCost._fields))


def predict(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> float:
    way = schedule.way
    count, first = way.cut.count(way.order), pieces_of(contraction, way)[0]
    packed = [
        0.0 if matrix is None else _pass(contraction, matrix, _packing(contraction, operand), schedule.threads)
        for operand, matrix in enumerate(first.packed)
    ]
    each = packed[way.cut.operand] + blas.predict(first.product, schedule.product, target) + _cost().piece
    if way.last:
        each += _pass(contraction, first.d, _finishing(contraction, way.last == IN_PLACE), schedule.threads)
    return _cost().call + contraction.batch * (packed[1 - way.cut.operand] + count * each)


def _packing(contraction: Contraction, operand: int) -> list[PassEntry]:
    args = (contraction.a_args, contraction.b_args)[operand]
    stored = operand_of(contraction, operand).layout.dtype.itemsize
    values = [PassEntry(stored, operand), PassEntry(multiplied(contraction).itemsize, SPACE_BASE)]
    return [*values, *_aux_entries(contraction, args)]


def _finishing(contraction: Contraction, in_place: bool) -> list[PassEntry]:
    found = [PassEntry(contraction.d.dtype.itemsize, D_BASE)]
    found += [] if in_place else [PassEntry(contraction.arithmetic.accumulate.itemsize, SPACE_BASE)]
    found += [PassEntry(contraction.c.dtype.itemsize, C_BASE)] if contraction.c is not None else []
    return [*found, *_aux_entries(contraction, (*contraction.c_args, *contraction.epilogue_args, *contraction.outputs))]


def _aux_entries(contraction: Contraction, places: tuple[int, ...]) -> list[PassEntry]:
    return [PassEntry(contraction.aux[place].dtype.itemsize, AUX_BASE + place) for place in places]


def _pass(contraction: Contraction, matrix: WorkspaceMatrix, entries: list[PassEntry], threads: int) -> float:
    """Seconds of a pass over a matrix that touches all that."""
    cost, (rows, columns) = _cost(), matrix.shape
    axes = [axes_of(contraction, modes, 1) for modes in (matrix.rows, matrix.columns)]
    seconds, touched = rows * -(-columns // CHUNK) * cost.row, 0
    for entry in entries:
        down = any(axis.steps[entry.base] for axis in axes[0])
        run = WHOLE if entry.base == SPACE_BASE else run_of(axes[1], entry) or WHOLE
        items = (rows if down else 1) * columns
        seconds += items * (cost.item * entry.item / 4 + cost.gathered / run)
        touched += items * entry.item if down and entry.base != SPACE_BASE else 0
    return max(seconds, touched / cost.memory) / threads

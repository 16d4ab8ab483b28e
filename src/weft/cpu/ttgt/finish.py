"""The last pass over pieces of D: tables of where rows and columns lie, and a call of the kernel with them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.cpu.gett.launch import scalar_words
from weft.cpu.gett.layout import Axis, offsets
from weft.cpu.gett.params import AUX_BASE, C_BASE, D_BASE
from weft.cpu.gett.schedule import form_of
from weft.cpu.gett.stages import Stage, result_stage
from weft.cpu.gett.support import AUX
from weft.cpu.jit import compiled
from weft.cpu.team import callback, together
from weft.cpu.ttgt import params as at
from weft.cpu.ttgt.steps import Piece
from weft.cpu.ttgt.ways import Modes, size
from weft.planner.schedule import Scalar
from weft.spec import Contraction

CHUNK = 1024  # items of each entry that are in the first cache at a time
LINE = 64

_Words = ctypes.c_int64 * (at.BASES + AUX_BASE + AUX)
_SOURCE = """\
from numba import cfunc
from weft.cpu.ttgt.kernel import run


@cfunc("void(int64)", cache=True, error_model="numpy")
def entry(frame):
    run(frame)
"""


class Finish:
    """Runs on new pointers. A block of words for each way in which sums reach D, made when it is first asked for."""

    def __init__(self, contraction: Contraction, largest: Piece, threads: int, in_place: bool) -> None:
        self._contraction, self._largest, self._threads, self._in_place = contraction, largest, threads, in_place
        self._address = compiled(_SOURCE, kernel=True)
        self._run = callback(self._address)
        self._plans: dict[tuple[bool, bool, bool], PlanWords] = {}
        self._plan(False, False, False)

    def __call__(self, shape: tuple[int, int, int], bases: Sequence[int], alpha: Scalar, beta: Scalar) -> None:
        """A piece of so many rows and columns, and bytes from row to row. `bases`: see `params`; 0 is no C."""
        words = self._plan(alpha != 1, bases[C_BASE] != 0, beta != 1)
        scalars = scalar_words(alpha, beta, self._contraction.arithmetic.accumulate)
        frame = _Words(words.address, 0, *scalars, *shape, *bases)
        if self._threads == 1:
            self._run(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))

    def _plan(self, scaled: bool, added: bool, weighted: bool) -> PlanWords:
        key = (scaled, added, added and weighted)
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = self._made(key)
        return known


    def _made(self, how: tuple[bool, bool, bool]) -> PlanWords:
        form = form_of(self._contraction)
        stage = result_stage(self._contraction, form, *how, in_place=self._in_place)
        plain = Stage(0, form.item, (), ((form.item, D_BASE),))
        return PlanWords(self._contraction, self._largest, self._threads, stage or plain)


class PlanWords:
    """The words of one plan, and the tables that they point to."""

    def __init__(self, contraction: Contraction, piece: Piece, threads: int, stage: Stage) -> None:
        self._kept: list[np.ndarray] = []
        self._words = np.zeros(at.WORDS, np.int64)
        self.address = self._words.ctypes.data
        rows, columns = (axes_of(contraction, modes) for modes in (piece.rows, piece.columns))
        table = [self._entry(rows, columns, *each) for each in (*stage.reads, *stage.writes)]
        words, count = self._words, size(piece.rows)
        words[at.STAGE], words[at.ITEM] = stage.address, stage.size
        words[at.READS], words[at.WRITES], words[at.ENTRIES] = len(stage.reads), len(stage.writes), self._keep(table)
        words[at.CHUNK] = CHUNK
        words[at.ROW_BLOCK] = -(-count // (4 * threads)) if threads > 1 else count
        words[at.BUFFER] = buffer_bytes(contraction)
        words[at.SCRATCH] = 256 + len(table) * words[at.BUFFER]

    def _keep(self, table: Any) -> int:
        kept = np.ascontiguousarray(table, np.int64)
        self._kept.append(kept)
        return kept.ctypes.data

    def _entry(self, rows: Sequence[Axis], columns: Sequence[Axis], item: int, base: int) -> tuple[int, ...]:
        same = all(axis.steps[base] == 0 for axis in rows)
        tables = (self._keep(offsets(axes, base)) for axes in (rows, columns))
        return item, base, *tables, run_of(columns, base, item), same


def axes_of(contraction: Contraction, modes: Modes) -> list[Axis]:
    """Modes in bytes, in the order of bases."""
    layouts = (contraction.a, contraction.b, contraction.d, contraction.c, *(each.layout for each in contraction.aux))
    widths = [1 if layout is None else layout.dtype.itemsize for layout in layouts]
    found = []
    for mode in modes:
        if mode.extent == 1:
            continue
        a, b, c, d, *aux = mode.strides
        steps = tuple(step * width for step, width in zip((a, b, d, c, *aux), widths, strict=True))
        found.append(Axis(mode.extent, steps))
    return found


def run_of(axes: Sequence[Axis], base: int, item: int) -> int:
    """Columns that lie together: 0 where all are one, `at.WHOLE` where all do."""
    if all(axis.steps[base] == 0 for axis in axes):
        return 0
    length = 1
    for axis in reversed(axes):
        if axis.steps[base] != length * item:
            return length
        length *= axis.extent
    return at.WHOLE


def buffer_bytes(contraction: Contraction) -> int:
    """Of an entry's buffer, which has room for twice a chunk of the widest items."""
    layouts = (contraction.d, contraction.c, *(each.layout for each in contraction.aux))
    return 2 * CHUNK * max(8, *(layout.dtype.itemsize for layout in layouts if layout is not None))


def scratch_bytes(contraction: Contraction) -> int:
    """Of one thread."""
    return 256 + LINE + (2 + len(contraction.aux)) * buffer_bytes(contraction)

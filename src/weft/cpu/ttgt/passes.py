"""Passes between tensors and workspaces: operands that are packed, and sums that become D.

A pass has tables of where rows and columns are stored in every tensor that it touches, and a stage between them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.cpu.gett.family import AUX
from weft.cpu.gett.launch import scalar_words
from weft.cpu.gett.layout import GettAxis, offsets
from weft.cpu.gett.model import form_of
from weft.cpu.gett.params import A_CONSTANTS, AUX_BASE, B_CONSTANTS, D_BASE, D_CONSTANTS
from weft.cpu.gett.stages import GettStage, operand_stage, result_stage, words_of
from weft.cpu.host import callback, together
from weft.cpu.jit import compiled
from weft.cpu.ttgt import params as at
from weft.cpu.ttgt.steps import WorkspaceMatrix
from weft.cpu.ttgt.ways import Modes, multiplied, operand_of
from weft.planner.schedule import Scalar
from weft.spec import Contraction

CHUNK = 1024  # items of each entry that are in the first cache at a time
POINTERS = 256

_Words = ctypes.c_int64 * (at.BASES + AUX_BASE + AUX)
SOURCE = """\
from numba import cfunc
from weft.cpu.ttgt.kernel import run


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    run(frame)
"""


class PassEntry(NamedTuple):
    """A tensor that a pass reads or writes: bytes of an item, and which base."""

    item: int
    base: int


class PassRoute(NamedTuple):
    """The stage, reads and writes of a pass. `reads` begin with the values."""

    stage: int  # by its address; 0 where there is none
    reads: tuple[PassEntry, ...]
    writes: tuple[PassEntry, ...]
    constants: bytes = b""  # of the stage's functions
    in_place: bool = False  # whether the stage leaves values where they are: they are moved to the first write before


class Pass:
    """Runs on new pointers."""

    def __init__(
        self, contraction: Contraction, matrix: WorkspaceMatrix, item: int, route: PassRoute, threads: int
    ) -> None:
        """`item`: bytes of one in the workspace."""
        self._shape = matrix.shape
        self._address = compiled(SOURCE, kernel=True)
        self._threads = threads
        self._kept: list[np.ndarray] = []
        self._words = words = np.zeros(at.WORDS, np.int64)
        rows = axes_of(contraction, matrix.rows, self._shape[1] * item)
        columns = axes_of(contraction, matrix.columns, item)
        table = [self._entry(rows, columns, each) for each in (*route.reads, *route.writes)]
        count = self._shape[0]
        words[at.STAGE], words[at.IN_PLACE] = route.stage, route.in_place
        for place in (A_CONSTANTS, B_CONSTANTS, D_CONSTANTS):  # there is one stage
            words[place] = self._keep(words_of(route.constants))
        words[at.READS], words[at.WRITES], words[at.ENTRIES] = len(route.reads), len(route.writes), self._keep(table)
        words[at.CHUNK] = CHUNK
        words[at.ROW_BLOCK] = -(-count // (4 * threads)) if threads > 1 else count
        words[at.BUFFER] = CHUNK * max(abs(each.item) for each in (*route.reads, *route.writes))
        words[at.SCRATCH] = POINTERS + len(table) * words[at.BUFFER]

    def __call__(self, space: int, bases: Sequence[int], scalars: Sequence[int]) -> None:
        """`space` is the address of the workspace, `bases` are those of A, B, D, C and others, `scalars` four words."""
        frame = _Words(self._words.ctypes.data, 0, *scalars, *self._shape, space, *bases)
        if self._threads == 1:
            callback(self._address)(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))

    def _keep(self, table: Any) -> int:
        kept = np.ascontiguousarray(table, np.int64)
        self._kept.append(kept)
        return kept.ctypes.data

    def _entry(self, rows: Sequence[GettAxis], columns: Sequence[GettAxis], entry: PassEntry) -> tuple[int, ...]:
        same = all(axis.steps[entry.base] == 0 for axis in rows)
        tables = (self._keep(offsets(axes, entry.base)) for axes in (rows, columns))
        return *entry, *tables, run_of(columns, entry), same


def axes_of(contraction: Contraction, modes: Modes, step: int) -> list[GettAxis]:
    """Modes in bytes, in the order of bases; the last is the workspace, with `step` along the innermost mode."""
    layouts = (contraction.a, contraction.b, contraction.d, contraction.c, *(each.layout for each in contraction.aux))
    widths = [1 if layout is None else layout.dtype.itemsize for layout in layouts]
    found = []
    for mode in reversed(modes):
        a, b, c, d, *aux = mode.strides
        steps = [stride * width for stride, width in zip((a, b, d, c, *aux), widths, strict=True)]
        if mode.extent > 1:
            found.append(GettAxis(mode.extent, (*steps, step)))
        step *= mode.extent
    return found[::-1]


def run_of(axes: Sequence[GettAxis], entry: PassEntry) -> int:
    """Columns that are contiguous: `at.WHOLE` where all do, 0 where all are one."""
    if not axes and entry.item > 0:
        return at.WHOLE
    if all(axis.steps[entry.base] == 0 for axis in axes):
        return 0
    length = 1
    for axis in reversed(axes):
        if axis.steps[entry.base] != length * entry.item:
            return length
        length *= axis.extent
    return at.WHOLE


def packing(contraction: Contraction, operand: int) -> PassRoute:
    """An operand to its workspace: what it is, converted and applied to on the way."""
    stored, packed = operand_of(contraction, operand).layout.dtype.itemsize, multiplied(contraction)
    stage = operand_stage(contraction, form_of(contraction)._replace(dtype=packed), "AB"[operand], conjugates=True)
    found = stage or GettStage(0, stored)
    values, others = PassEntry(stored, operand), [PassEntry(*each) for each in found.reads]
    to = PassEntry(packed.itemsize, at.SPACE_BASE)
    return PassRoute(found.address, (values, *others), (to,), found.constants, in_place=stored == packed.itemsize)


def finishing(contraction: Contraction, in_place: bool, how: tuple[bool, bool, bool]) -> PassRoute:
    """Sums to D: from a workspace, or where they are. `how`: whether alpha, C and beta are applied."""
    form = form_of(contraction)
    stage = result_stage(contraction, form, *how, in_place=in_place)
    found = stage or GettStage(0, form.item, (), ((form.item, D_BASE),))
    values = PassEntry(found.size, D_BASE if in_place else at.SPACE_BASE)
    reads, writes = (tuple(map(PassEntry._make, entries)) for entries in (found.reads, found.writes))
    return PassRoute(found.address, (values, *reads), writes, found.constants)


class FinishingPass:
    """The last pass. One for each way in which sums reach D, made when it is first requested."""

    def __init__(self, made: Callable[[tuple[bool, bool, bool]], Pass], dtype: torch.dtype) -> None:
        self._made, self._dtype = made, dtype
        self._known: dict[tuple[bool, bool, bool], Pass] = {}

    def __call__(self, space: int, bases: Sequence[int], scalars: tuple[Scalar, Scalar], *, added: bool) -> None:
        alpha, beta = scalars
        how = (alpha != 1, added, added and beta != 1)
        found = self._known.get(how)
        if found is None:
            found = self._known[how] = self._made(how)
        found(space, bases, scalar_words(alpha, beta, self._dtype))


def scratch_bytes(contraction: Contraction) -> int:
    """The most scratch bytes that one thread takes."""
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d, *(each.layout for each in contraction.aux))
    widest = max(8, contraction.arithmetic.accumulate.itemsize, *(each.dtype.itemsize for each in layouts if each))
    return POINTERS + 128 + (3 + len(contraction.aux)) * CHUNK * widest

"""Many contractions of one equation whose extents differ, as tables of numbers: what kernels for groups are given.

    rows     (pairs, 2 + 4 modes)   where A and B begin, then of each mode its extent and its strides in A, B and D
    outputs  (results, 3)           where D begins, and which rows are summed into it: first, last + 1

All of them count elements. Where a tensor begins is told from a base that comes with the call. Modes stand in the order
batch, m, n, k; each side has one at least, of extent 1 where the equation has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.errors import NotationError, ShapeError
from weft.spec.notation import Label, Notation, label_text

HEAD = 2  # words of a row before its modes
EACH = 4  # words of a mode: extent, strides in A, B and D
SIDES = ("batch", "m", "n", "k")
MOST = 2**31 - 1  # elements that offsets within one tensor reach

Numbers = np.ndarray


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The modes of an equation by side; None stands for one that is not there."""

    notation: Notation
    sides: tuple[tuple[Label | None, ...], ...]  # batch, m, n, k

    @property
    def modes(self) -> tuple[Label | None, ...]:
        return tuple(label for side in self.sides for label in side)

    @property
    def counts(self) -> tuple[int, ...]:
        """Modes of each side."""
        return tuple(map(len, self.sides))

    @property
    def words(self) -> int:
        """Numbers in a row."""
        return HEAD + EACH * len(self.modes)


class GroupTable(NamedTuple):
    """A group: the form, its rows and outputs, and the extents of every side of every row, (pairs, 4)."""

    form: GroupForm
    rows: Numbers
    outputs: Numbers
    sizes: Numbers


@lru_cache(maxsize=1024)
def group_form(notation: Notation) -> GroupForm:
    """Which side each label of an equation of two operands is on."""
    if len(notation.inputs) != 2:
        raise NotationError(f"a group is of pairs, '{notation}' names {len(notation.inputs)} operands")
    if any(Ellipsis in term for term in (*notation.inputs, notation.output)):
        raise NotationError("'...' is not for groups: name every mode")
    a, b, d = (tuple(dict.fromkeys(term)) for term in (*notation.inputs, notation.output))
    batch = tuple(label for label in d if label in a and label in b)
    m, n = (tuple(label for label in d if label in own and label not in batch) for own in (a, b))
    k = tuple(label for label in dict.fromkeys((*a, *b)) if label not in d)
    return GroupForm(notation, tuple(side or (None,) for side in (batch, m, n, k)))


def group_table(
    form: GroupForm, shapes: Sequence[Numbers], strides: Sequence[Numbers], d_strides: Numbers | None = None
) -> tuple[GroupTable, Numbers]:
    """The table of pairs whose A and B have those shapes and strides, (pairs, rank) each, and D's shapes.

    Starts are zero, each row is an output of its own, and D is contiguous unless `d_strides` says how it lies. Raises
    `ShapeError` that names the pair whose extents contradict one another, or are too long.
    """
    count = len(shapes[0])
    modes = form.modes
    place = {label: at for at, label in enumerate(modes)}
    rows = np.zeros((count, HEAD + EACH * len(modes)), np.int64)
    extents, steps = rows[:, HEAD::EACH], [rows[:, HEAD + 1 + tensor :: EACH] for tensor in range(3)]
    extents[:] = 1
    for term, shape in zip(form.notation.inputs, shapes, strict=True):
        for at, label in enumerate(term):
            _join(form, extents[:, place[label]], shape[:, at], label)
    for tensor, term in enumerate(form.notation.inputs):
        for at, label in enumerate(term):
            steps[tensor][:, place[label]] += np.where(shapes[tensor][:, at] == 1, 0, strides[tensor][:, at])
    found = np.stack([extents[:, place[label]] for label in form.notation.output], 1) if form.notation.output else None
    d_shapes = np.zeros((count, 0), np.int64) if found is None else found
    if d_strides is None:
        d_strides = contiguous_strides(d_shapes)
    for at, label in enumerate(form.notation.output):
        steps[2][:, place[label]] = d_strides[:, at]
    reach = max((int(((extents - 1).clip(0) * np.abs(step)).sum(1).max(initial=0)) for step in steps), default=0)
    bounds = np.cumsum([0, *form.counts])
    sizes = np.stack([extents[:, low:high].prod(1) for low, high in itertools.pairwise(bounds)], 1)
    if reach > MOST or sizes.max(initial=0) > MOST:
        raise ShapeError("a tensor of the group reaches past 2**31 elements: contract it alone")
    outputs = np.zeros((count, 3), np.int64)
    outputs[:, 1] = np.arange(count)
    outputs[:, 2] = np.arange(1, count + 1)
    return GroupTable(form, rows, outputs, sizes), d_shapes


def tiles_of(table: GroupTable, m: int, n: int) -> Numbers:
    """All tiles of `m` rows and `n` columns of all outputs, those of the longest sums first, so that threads and
    programs that take them in turn end together: (tiles, 4), int32: output, index of the batch, tile along m, along n.
    """
    batch, rows, columns, k = table.sizes[table.outputs[:, 1]].T
    k = k * (table.outputs[:, 2] - table.outputs[:, 1])
    down, across = -(-rows // m), -(-columns // n)
    counts = batch * down * across
    order = np.argsort(-k, kind="stable")
    which = np.repeat(order, counts[order])
    ends = np.cumsum(counts[order])
    inner = np.arange(len(which)) - np.repeat(ends - counts[order], counts[order])
    around, column = np.divmod(inner, across[which])
    index, row = np.divmod(around, down[which])
    return np.stack([which, index, row, column], 1).astype(np.int32)


def contiguous_strides(shapes: Numbers) -> Numbers:
    """Strides of tensors without gaps, (tensors, rank)."""
    strides = np.ones_like(shapes)
    for at in range(shapes.shape[1] - 2, -1, -1):
        strides[:, at] = strides[:, at + 1] * np.maximum(shapes[:, at + 1], 1)
    return strides


def _join(form: GroupForm, extents: Numbers, other: Numbers, label: Label) -> None:
    """The extents of one label with those of one more dimension, in place; 1 broadcasts."""
    wrong = (extents != other) & (extents != 1) & (other != 1)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ShapeError(
            f"pair {at}: label '{label_text(label)}' of '{form.notation}' has extents {extents[at]} and {other[at]}"
        )
    np.copyto(extents, other, where=extents == 1)

"""Many contractions of one equation whose extents differ, as tables of numbers: what kernels for groups are given.

    rows     (pairs, 3 + 4 modes)   where A and B begin, what the sum of the rows before is multiplied by, then of each
                                    mode its extent and its strides in A, B and D
    outputs  (results, 4)           where D begins, which rows are summed into it (first, last + 1), and what their sum
                                    is multiplied by

Factors are the bits of doubles; everything else counts elements. Where a tensor begins is told from a base that comes
with the call. Modes stand in the order batch, m, n, k; each side has one at least, of extent 1 where the equation has
none. Modes of a side that are contiguous together in all pairs are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.errors import NotationError, ShapeError
from weft.spec.notation import Label, Notation, label_text

HEAD = 3  # words of a row before its modes
EACH = 4  # words of a mode: extent, strides in A, B and D
OUTPUT = 4  # words of an output
ONE = int(np.float64(1).view(np.int64))  # the factor 1
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

    @property
    def has_factors(self) -> bool:
        """Whether any sum is multiplied."""
        return bool((self.rows[:, 2] != ONE).any() or (self.outputs[:, 3] != ONE).any())

    def weighted(self, weights: Numbers) -> GroupTable:
        """The table with a weight for each row: sums before a row of another weight are multiplied by the ratio."""
        rows, outputs = self.rows.copy(), self.outputs.copy()
        before = np.concatenate([weights[:1], weights[:-1]])
        before[outputs[:, 1]] = weights[outputs[:, 1]]
        rows[:, 2] = (before / weights).view(np.int64)
        outputs[:, 3] = weights[outputs[:, 2] - 1].view(np.int64)
        return self._replace(rows=rows, outputs=outputs)


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
    count, read = len(shapes[0]), _reading(form)
    extents, steps = np.concatenate(shapes, 1), np.concatenate(strides, 1)
    joined = extents.copy()
    for at, other, label in read.again:
        _join(form, joined[:, at], extents[:, other], label)
    steps = np.where(extents == 1, 0, steps)
    for at, other in read.diagonals:
        steps[:, at] += steps[:, other]
    d_shapes = joined.take(read.output, 1)
    if d_strides is None:
        d_strides = contiguous_strides(d_shapes)
    constants = np.array([[0, ONE, 1]])
    rows = np.concatenate((constants.repeat(count, 0), joined, steps, d_strides), 1).take(read.words, 1)
    modes = rows[:, HEAD:].reshape(count, -1, EACH)
    reach = (np.abs(modes[:, :, 1:]) * np.maximum(modes[:, :, :1] - 1, 0)).sum(1).max(initial=0)
    sizes = np.multiply.reduceat(modes[:, :, 0], read.sides, 1)
    if reach > MOST or sizes.max(initial=0) > MOST:
        raise ShapeError("a tensor of the group reaches past 2**31 elements: contract it alone")
    outputs = np.zeros((count, OUTPUT), np.int64)
    outputs[:, 1] = np.arange(count)
    outputs[:, 3] = ONE
    outputs[:, 2] = outputs[:, 1] + 1
    return _merged(GroupTable(form, rows, outputs, sizes)), d_shapes


def _merged(table: GroupTable) -> GroupTable:
    """The table with those modes of a side as one that are contiguous together in every tensor of every pair."""
    modes = table.rows[:, HEAD:].reshape(len(table.rows), -1, EACH)
    kept: list[Numbers] = []
    sides, at = [], 0
    for side in table.form.sides:
        labels, own = [side[-1]], [modes[:, at + len(side) - 1]]
        for back in reversed(range(len(side) - 1)):
            outer, inner = modes[:, at + back], own[0]
            follows = (outer[:, 1:] == inner[:, :1] * inner[:, 1:]).all(1)
            if (follows | (outer[:, 0] == 1) | (inner[:, 0] == 1)).all():
                steps = np.where(inner[:, :1] == 1, outer[:, 1:], inner[:, 1:])
                own[0] = np.concatenate((outer[:, :1] * inner[:, :1], steps), 1)
            else:
                own.insert(0, outer)
                labels.insert(0, side[back])
        kept += own
        sides.append(tuple(labels))
        at += len(side)
    if len(kept) == len(table.form.modes):
        return table
    rows = np.concatenate((table.rows[:, :HEAD], *kept), 1)
    return table._replace(form=GroupForm(table.form.notation, tuple(sides)), rows=rows)


class _GroupReading(NamedTuple):
    """Where the words of a row come from: columns of 0, of the factor 1 and of 1, of the extents and the strides of A
    and B, and of D's strides, in that order."""

    words: Numbers
    again: tuple[tuple[int, int, Label], ...]  # columns of extents that are one mode's, the first and a further one
    diagonals: tuple[tuple[int, int], ...]  # columns of strides that one tensor has along one mode
    output: Numbers  # columns of D's extents
    sides: Numbers  # the first mode of each side


@lru_cache(maxsize=1024)
def _reading(form: GroupForm) -> _GroupReading:
    notation = form.notation
    first, second = notation.inputs
    every = (*first, *second)
    known: dict[Label, int] = {}
    again, diagonals = [], []
    for at, label in enumerate(every):
        if known.setdefault(label, at) != at:
            again.append((known[label], at, label))
    for start, term in ((0, first), (len(first), second)):
        diagonals += [(start + term.index(x), start + at) for at, x in enumerate(term) if term.index(x) != at]
    words = [0, 0, 1]
    columns = 3  # of constants
    starts = (columns + len(every), columns + len(every) + len(first), columns + 2 * len(every))
    for label in form.modes:
        words.append(2 if label is None else columns + known[label])
        for start, term in zip(starts, (first, second, notation.output), strict=True):
            words.append(start + term.index(label) if label in term else 0)
    return _GroupReading(
        np.array(words), tuple(again), tuple(diagonals),
        np.array([known[label] for label in notation.output], np.int64), np.cumsum([0, *form.counts[:-1]]),
    )  # fmt: skip


def tiles_of(table: GroupTable, m: int, n: int) -> Numbers:
    """All tiles of `m` rows and `n` columns of all outputs, those of the longest sums first, so that threads and
    programs that take them in turn end together: (tiles, 4), int32: output, index of the batch, tile along m, along n.
    """
    batch, rows, columns, k = table.sizes[table.outputs[:, 1]].T
    k = k * (table.outputs[:, 2] - table.outputs[:, 1])
    down, across = -(-rows // m), -(-columns // n)
    counts = batch * down * across
    order = np.argsort(-k, kind="stable")
    if counts.max(initial=0) == counts.min(initial=1) == 1:
        found = np.zeros((len(order), 4), np.int32)
        found[:, 0] = order
        return found
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

"""The order of the modes in each group of a product, chosen so that as little as possible is copied.

Modes of a group are one dimension of a matrix without a copy where they are contiguous in memory. Each group stands in
the order of one of the tensors that have it; all choices are tried, and the one with the fewest elements to be copied
is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.library.scheme import LibraryScheme
from weft.library.views import A, B, D, Frame, Group, View

_LOOPED = 1 << 22  # multiply-adds of a matrix from which torch on a CPU may write each of a batch by itself


class Arranged(NamedTuple):
    batch: Group
    rows: Group
    columns: Group
    k: Group
    swapped: bool  # rows are B's and columns A's
    left: View | None  # of an operand that needs no copy,
    right: View | None
    place: View | None  # and of D, where the product may be written to

    @property
    def kept(self) -> Group:
        return (*self.batch, *self.rows, *self.columns)


def arranged(scheme: LibraryScheme, frame: Frame) -> Arranged:
    """The arrangement with the least to be copied."""
    roles = scheme.roles
    placed = not scheme.empty and scheme.types.result == scheme.contraction.d.dtype
    best: Arranged | None = None
    least = -1
    for batch, m, n, k in itertools.product(
        _orders(frame, roles.batch, (D, A, B)), _orders(frame, roles.m, (D, A)), _orders(frame, roles.n, (D, B)),
        _orders(frame, roles.k, (A, B)),
    ):  # fmt: skip
        swapped = _swapped(frame, batch, m, n)
        (rows, left), (columns, right) = ((n, B), (m, A)) if swapped else ((m, A), (n, B))
        found = Arranged(
            batch, rows, columns, k, swapped,
            frame.matrix((batch, rows, k), left) if scheme.plain[left] else None,
            frame.matrix((batch, k, columns), right) if scheme.plain[right] else None,
            _place(scheme, frame, (batch, rows, columns), k) if placed else None,
        )  # fmt: skip
        copied = sum(
            frame.size((*batch, *group, *k))
            for at, group, view in ((left, rows, found.left), (right, columns, found.right))
            if view is None and scheme.plain[at]
        )
        if found.place is None and placed:
            copied += frame.size(found.kept)
        if best is None or copied < least:
            best, least = found, copied
        if least == 0:
            break
    assert best is not None, "there is one order at least"
    return best


def _orders(frame: Frame, group: Group, places: Sequence[int]) -> Iterator[Group]:
    """A group's modes outermost first, in each of these tensors."""
    if len(group) < 2:
        return iter((group,))
    modes = frame.modes
    return iter(dict.fromkeys(tuple(sorted(group, key=lambda at: -modes[at].strides[place])) for place in places))


def _swapped(frame: Frame, batch: Group, m: Group, n: Group) -> bool:
    """Whether rows of the product are B's, so that D's innermost mode is innermost in it."""
    if not m or not n:
        return not n and bool(m) and bool(batch) and frame.modes[m[-1]].strides[D] < frame.modes[batch[-1]].strides[D]
    return frame.modes[m[-1]].strides[D] < frame.modes[n[-1]].strides[D]


def _place(scheme: LibraryScheme, frame: Frame, groups: tuple[Group, Group, Group], k: Group) -> View | None:
    view = frame.matrix(groups, D)
    if view is None or scheme.kind != "cpu" or not groups[0]:
        return view
    _, rows, columns = view.shape
    whole = view.strides == (rows * columns, columns, 1)
    return view if whole or rows * columns * frame.size(k) >= _LOOPED else None

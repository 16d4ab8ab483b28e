"""The order of the modes in each group of a product, chosen so that as little as possible is copied.

Modes of a group are one dimension of a matrix without a copy where they are contiguous in memory. Each group stands in
the order of one of the tensors that have it; all choices are tried, and the one with the fewest elements to be copied
is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from weft.library.scheme import LibraryScheme
from weft.library.views import A, B, D, Frame, Group, View

_LOOPED = 1 << 22  # multiply-adds of a matrix from which torch on a CPU may write each of a batch by itself
# Of products with a matrix that is spread over a batch: least columns and multiply-adds, and most elements of the
# matrix. With these torch on a CPU takes 0.27 to 1 of the time of copies and one product (24 cases, one thread and
# two); larger matrices of float64 take up to 1.8, few columns up to 5, fewer multiply-adds 7.
_COLUMNS, _PRODUCT, _ELEMENTS, _ELEMENTS_DOUBLE = 16, 1 << 10, 1 << 14, 1 << 10
# On a GPU: least columns, and multiply-adds for each of them. 0.13 to 0.96, 0.48 in the mean, of 119 cases on an H200;
# fewer columns take up to 7 times as long, fewer multiply-adds up to 56 (`results/h200/spread.json`).
_LEAST_GPU = ((64, 16), (16, 1 << 12))


class ModeGroups(NamedTuple):
    """The modes of a product by their role."""

    batch: Group
    m: Group
    n: Group
    k: Group


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
    """The arrangement with the least to be copied.

    Where something is to be, the outermost modes of D that one operand alone has may be a batch, over which the other
    is spread.
    """
    best, least = _with_least(scheme, frame, ModeGroups(*scheme.roles[:4]))
    for groups in _spread(scheme, frame) if least else ():
        found, copied = _with_least(scheme, frame, groups)
        if not copied:
            return found
    return best


def _spread(scheme: LibraryScheme, frame: Frame) -> Iterator[ModeGroups]:
    """The groups with the outermost modes of D as a batch that A or B lacks, where batches take less than copies."""
    batch, m, n, k = scheme.roles[:4]
    if batch or not m or not n or scheme.types.way != "plain":
        return
    *outermost, innermost = sorted((*m, *n), key=lambda at: -frame.modes[at].strides[D])
    for group in (m, n):
        taken: Group = ()
        for at in itertools.takewhile(group.__contains__, outermost):
            taken = (*taken, at)
            rest = ModeGroups(taken, _without(m, taken), _without(n, taken), k)
            spread, rows = (rest.n, rest.m) if group is m else (rest.m, rest.n)
            columns = frame.size(rest.m if innermost in m else rest.n)
            product = frame.size((*rest.m, *rest.n, *k))
            if rows and _pays(scheme, frame.size((*spread, *k)), columns, product):
                yield rest


def _pays(scheme: LibraryScheme, elements: int, columns: int, product: int) -> bool:
    """Whether a batch of products takes less than copies: of the spread matrix's elements, of columns and multiply-adds
    of each product."""
    if scheme.kind != "cpu":
        return any(columns >= least and product >= each * columns for least, each in _LEAST_GPU)
    most = _ELEMENTS_DOUBLE if scheme.types.result is torch.float64 else _ELEMENTS
    return columns >= _COLUMNS and product >= _PRODUCT and elements <= most


def _without(group: Group, taken: Group) -> Group:
    return tuple([at for at in group if at not in taken])


def _with_least(scheme: LibraryScheme, frame: Frame, groups: ModeGroups) -> tuple[Arranged, int]:
    """The arrangement of these groups with the least to be copied, and how many elements that are."""
    placed = not scheme.empty and scheme.types.result == scheme.contraction.d.dtype
    best: Arranged | None = None
    least = -1
    for batch, m, n, k in itertools.product(
        _orders(frame, groups.batch, (D, A, B)), _orders(frame, groups.m, (D, A)), _orders(frame, groups.n, (D, B)),
        _orders(frame, groups.k, (A, B)),
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
    return best, least


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

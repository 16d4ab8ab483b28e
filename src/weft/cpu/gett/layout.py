"""Modes as rows, slots and k: which operand is vectorised, the order in which elements are visited, and their offsets.

The vectors of a register block run along the *slot* operand's modes, whose innermost in D are contiguous there, so that
D is written by whole vectors; the other operand's items, one for each *row*, are broadcast. A run of D that is no
multiple of a vector has its last slot begin earlier: its first lanes are computed twice, and nothing is masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.base.caches import cached_property
from weft.cpu.gett import params as at
from weft.cpu.host import LINE
from weft.spec import Contraction, Role

LEFT_OVER = 64  # from this K on, lanes that a run leaves over are gathered into slots of their own
Table = np.ndarray


class GettAxis(NamedTuple):
    """A mode as kernels see it: its extent, and bytes between neighbours in each base (params: ROW_BASE, ...)."""

    extent: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Axes:
    """The axes of a contraction by what happens along them."""

    outer: tuple[GettAxis, ...]
    rows: tuple[GettAxis, ...]
    slots: tuple[GettAxis, ...]
    k: tuple[GettAxis, ...]
    swapped: bool  # whether B is the row operand
    bases: int

    @cached_property
    def counts(self) -> tuple[int, int, int, int]:
        return size(self.outer), size(self.rows), size(self.slots), size(self.k)


def size(axes: Sequence[GettAxis]) -> int:
    return math.prod(axis.extent for axis in axes)


def axes_of(contraction: Contraction, real_parts: bool, swapped: bool | None = None, parts: int = 1) -> Axes:
    """Sort modes into axes.

    `real_parts`: complex numbers are two real ones along an axis of their own. `swapped`: whether B must be the row
    operand; None where that is free. `parts`: of each factor, along an axis of k that only a last base moves along.
    """
    layouts = (contraction.a, contraction.b, contraction.d, contraction.c, *(aux.layout for aux in contraction.aux))
    widths = [1 if layout is None else layout.dtype.itemsize for layout in layouts]
    found: dict[Role, list[GettAxis]] = {role: [] for role in Role}
    for mode in contraction.modes:
        a, b, c, d, *aux = mode.strides
        steps = tuple(step * width for step, width in zip((a, b, d, c, *aux), widths, strict=True))
        if mode.extent > 1:
            found[mode.role].append(GettAxis(mode.extent, steps))
    if real_parts:
        on_a, half = contraction.a.dtype.is_complex, contraction.d.dtype.itemsize // 2
        pair = GettAxis(2, (half if on_a else 0, 0 if on_a else half, half, *[0] * (len(widths) - 3)))
        found[Role.M if on_a else Role.N].append(pair)
    m, n = found[Role.M], found[Role.N]
    itemsize = contraction.d.dtype.itemsize // (2 if real_parts else 1)
    if swapped is None:
        swapped = _run(m, itemsize) > _run(n, itemsize) if m and n else bool(m)
    rows, slots = (n, m) if swapped else (m, n)
    groups = [found[Role.BATCH], rows, slots, found[Role.K]]
    if swapped:
        turned = lambda axis: GettAxis(axis.extent, (axis.steps[1], axis.steps[0], *axis.steps[2:]))  # noqa: E731
        groups = [[turned(axis) for axis in group] for group in groups]
    outer, rows, slots, k = groups
    by_d = lambda axis: -axis.steps[at.D_BASE]  # noqa: E731
    bigger = at.SLOT_BASE if size(slots) >= size(rows) else at.ROW_BASE
    if not contraction.invariant:  # else in the order in which they come
        k = sorted(k, key=lambda axis: -axis.steps[bigger])
    bases = len(widths)
    if parts > 1:
        groups = [[GettAxis(axis.extent, (*axis.steps, 0)) for axis in g] for g in (outer, rows, slots, k)]
        outer, rows, slots, k = groups
        k.append(GettAxis(parts, (*[0] * bases, 1)))
        bases += 1
    return Axes(
        tuple(sorted(outer, key=by_d)), tuple(sorted(rows, key=by_d)), tuple(sorted(slots, key=by_d)), tuple(k),
        swapped, bases,
    )  # fmt: skip


def _run(axes: Sequence[GettAxis], itemsize: int) -> int:
    """Items that are contiguous in D."""
    return size(_contiguous(axes, at.D_BASE, itemsize))


def _contiguous(axes: Sequence[GettAxis], base: int, itemsize: int) -> list[GettAxis]:
    """The axes along which a tensor is contiguous, outermost first."""
    found: list[GettAxis] = []
    step = itemsize
    while following := [axis for axis in axes if axis.steps[base] == step and axis not in found]:
        found.insert(0, following[0])
        step *= following[0].extent
    return found


def offsets(axes: Sequence[GettAxis], base: int) -> Table:
    """Bytes from the first element to each, the last axis fastest."""
    found = np.zeros(1, np.int64)
    for axis in axes:
        found = (found[:, None] + axis.steps[base] * np.arange(axis.extent)).reshape(-1)
    return found


class RowTables(NamedTuple):
    """Offsets of rows in each base, padded to whole register blocks by the last row."""

    tables: tuple[Table, ...]
    stored: Table  # in D: `ABSENT` where a row stands again and must not be stored again
    length: int


def row_tables(axes: Axes, height: int, bases: Sequence[int]) -> RowTables:
    count = size(axes.rows)
    pad = -count % height
    tables = [np.zeros(0, np.int64)] * axes.bases
    for base in bases:
        tables[base] = _padded(offsets(axes.rows, base), pad)
    stored = tables[at.D_BASE].copy()
    stored[count:] = at.ABSENT
    return RowTables(tuple(tables), stored, count + pad)


def _padded(table: Table, pad: int) -> Table:
    return np.concatenate([table, np.repeat(table[-1:], pad)]) if pad else table


class SlotTables(NamedTuple):
    """Offsets of all lanes of all slots in each base, an even number of slots."""

    tables: tuple[Table, ...]
    stored: Table
    flags: Table
    length: int


class _Order(NamedTuple):
    """How slots are made: lanes along `run`, whose slots begin at `starts`; then along `rest`."""

    run: list[GettAxis]
    starts: list[int]
    left: list[int]  # lanes of a run that no slot has
    rest: list[GettAxis]
    across: GettAxis | None  # an axis of `rest` along which the slot operand is contiguous, and D is not


def slot_tables(axes: Axes, lanes: int, itemsize: int, bases: Sequence[int], once: bool) -> SlotTables:
    """The slots of the vectorised operand. `once`: no lane may be stored twice (C may be D)."""
    order = _slot_order(axes, lanes, itemsize)
    found = [np.zeros(0, np.int64)] * axes.bases
    for base in bases:
        table = _lanes(axes, order, lanes, base, itemsize)
        odd = len(table) // lanes % at.VECTORS
        found[base] = np.concatenate([table, table[-lanes:]]) if odd else table
    stored = found[at.D_BASE]
    if once:
        places = np.unique(stored, return_index=True)[1]
        kept = np.full_like(stored, at.ABSENT)
        kept[places] = stored[places]
        stored = kept
    flags = _flags(found[at.SLOT_BASE].reshape(-1, lanes), stored.reshape(-1, lanes), itemsize)
    if order is not None and order.across is not None:
        _mark_groups(flags, found[at.SLOT_BASE].reshape(-1, lanes), itemsize)
    return SlotTables(tuple(found), stored, flags, len(flags))


def _slot_order(axes: Axes, lanes: int, itemsize: int) -> _Order | None:
    """The order of slots; None where neither D nor the operand has runs as long as a vector: any lanes make a slot."""
    slots = list(axes.slots)
    run = _run_of_d(axes, lanes, itemsize)
    if _read_rather(axes, run, lanes, itemsize):
        run = _contiguous(slots, at.SLOT_BASE, itemsize)
    length = size(run)
    if length < lanes:
        return None
    starts, left = list(range(0, length - lanes + 1, lanes)), []
    if starts[-1] != length - lanes:
        if size(axes.k) >= LEFT_OVER and (len(starts) + 1) * lanes / length > 1.1:
            left = list(range(starts[-1] + lanes, length))
        else:
            starts.append(length - lanes)
    rest = [axis for axis in slots if axis not in run]
    across = [axis for axis in rest if axis.steps[at.SLOT_BASE] == itemsize]
    transposes = bool(across) and run[-1].steps[at.SLOT_BASE] != itemsize
    return _Order(run, starts, left, rest, across[0] if transposes else None)


def _run_of_d(axes: Axes, lanes: int, itemsize: int) -> list[GettAxis]:
    """The axes along which D is contiguous; long enough for a vector, not on along what the operand has contiguous."""
    run: list[GettAxis] = []
    length = 1
    while following := [axis for axis in axes.slots if axis.steps[at.D_BASE] == length * itemsize and axis not in run]:
        if length >= lanes and following[0].steps[at.SLOT_BASE] == itemsize:
            break
        run.insert(0, following[0])
        length *= following[0].extent
    return run


def _read_rather(axes: Axes, run: Sequence[GettAxis], lanes: int, itemsize: int) -> bool:
    """Whether vectors run along the operand and not along D: it is more than twice as large, and contiguous."""
    one = [axis for axis in axes.slots if axis.steps[at.SLOT_BASE] == itemsize]
    return bool(one) and one[0] not in run and one[0].extent >= lanes and size(axes.k) > 6 * size(axes.rows)


def vectors_along_operand(axes: Axes, lanes: int, itemsize: int) -> bool:
    return _read_rather(axes, _run_of_d(axes, lanes, itemsize), lanes, itemsize)


def one_by_one(axes: Axes, lanes: int, itemsize: int) -> tuple[bool, bool]:
    """Whether the lanes of a slot are read, and written, each by itself: no run is as long as a vector."""
    order = _slot_order(axes, lanes, itemsize)
    along_k = bool(axes.k) and axes.k[-1].steps[at.SLOT_BASE] == itemsize and axes.k[-1].extent >= lanes
    if order is None:
        return not along_k, True
    read = order.run[-1].steps[at.SLOT_BASE] == itemsize or order.across is not None or along_k
    return not read, order.run[-1].steps[at.D_BASE] != itemsize


def _lanes(axes: Axes, order: _Order | None, lanes: int, base: int, itemsize: int) -> Table:
    if order is None:
        return _padded_to(offsets(axes.slots, base), lanes)
    run = offsets(order.run, base)
    of_slots = run[(np.array(order.starts)[:, None] + np.arange(lanes)).reshape(-1)].reshape(-1, lanes)
    rest = [axis for axis in order.rest if axis is not order.across]
    outside = offsets(rest, base)
    if order.across is None:
        found = (outside[:, None, None] + of_slots).reshape(-1)
    else:
        # Square by square: a line's worth of the operand along `across`, under all else.
        extent, step = order.across.extent, order.across.steps[base]
        starts = [min(start, extent - lanes) if extent >= lanes else start for start in range(0, extent, lanes)]
        lines, parts = max(LINE // itemsize // lanes, 1), []
        for first in range(0, len(starts), lines):
            each = [start + np.arange(min(lanes, extent - start)) for start in starts[first : first + lines]]
            places = np.concatenate(each) * step
            squares = outside[:, None, None, None] + of_slots[:, None, :] + places[:, None]
            parts.append(squares.reshape(-1))
        found = np.concatenate(parts)
    if order.left:
        more = _padded_to((offsets(order.rest, base)[:, None] + run[order.left]).reshape(-1), lanes)
        found = np.concatenate([found, more])
    return found


def _padded_to(table: Table, lanes: int) -> Table:
    return _padded(table, -len(table) % lanes)


def _flags(read: Table, stored: Table, itemsize: int) -> Table:
    steps = np.arange(read.shape[1]) * itemsize
    reads = (read - read[:, :1] == steps).all(1) * at.READ_CONTIGUOUS
    writes = ((stored - stored[:, :1] == steps).all(1) & (stored[:, 0] != at.ABSENT)) * at.WRITE_CONTIGUOUS
    return (reads + writes).astype(np.int64)


def _mark_groups(flags: Table, read: Table, itemsize: int) -> None:
    """Where as many slots as a vector has lanes hold neighbouring items: they are packed as a square."""
    lanes = read.shape[1]
    following = (read[1:] - read[:-1] == itemsize).all(1)
    s = 0
    while s + lanes <= len(read):
        if following[s : s + lanes - 1].all():
            flags[s] |= at.TRANSPOSED_GROUP
            s += lanes
        else:
            s += 1


def bases_of_rows(contraction: Contraction, axes: Axes) -> tuple[int, ...]:
    """Bases that tables are needed for: the operands, D, C where there is one, auxiliary operands, parts of factors."""
    addend = (at.C_BASE,) if contraction.c is not None else ()
    return (at.ROW_BASE, at.SLOT_BASE, at.D_BASE, *addend, *range(at.AUX_BASE, axes.bases))

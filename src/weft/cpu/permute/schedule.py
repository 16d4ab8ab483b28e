"""`CpuPermuteSchedule`, and the tiles behind it: which modes run along a tile's two sides.

    run     the mode along which both X and D are contiguous: a cell of items that stay together
    p       the sides of a tile: modes in X's order, a cache line or more of X,
    q       and modes in D's order
    outer   all others, and what is left of the longest of p, q and run, which are cut

Where cells are single items, p contiguous in X and q in D, a tile is transposed in registers, square by square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from weft.cpu.permute.params import LINE
from weft.spec import Mode
from weft.spec.permutation import Permutation

WORDS = (16, 8, 4, 2)  # bytes of the words that neighbours are moved in, where they stay together
# Bytes that a tile reaches along p in X and q in D. Wider along D: its lines are written in pieces, X's are prefetched.
REACH_X, REACH_D = 256, 1024
CELLS = 1 << 15  # and of cells as long as a cache line or longer along q
RUN = 1 << 15  # bytes of a run, above which it is cut
LONG = 1 << 14  # of one that is streamed wherever it begins
BUFFER = 1 << 14  # items of a tile that is computed with
STREAM = 1 << 22  # bytes of D from which it is written past the caches
SMALL = 1 << 17  # bytes moved, up to which one thread is as quick as two
#: Items along a square in registers, by their size, the quickest first; and where whole cache lines are streamed.
SQUARES = {1: (32, 16, 8, 4), 2: (16, 8, 4), 4: (16, 8, 4), 8: (8, 4, 2), 16: (4, 2)}


@dataclass(frozen=True, slots=True)
class CpuPermuteSchedule:
    """One way to carry a permutation out."""

    way: Literal["squares", "cells"]
    tile: tuple[int, int, int] = (1, 1, 1)  # cells along p and q, and items of a cell
    square: int = 0  # items along one
    streams: bool = False
    threads: int = 1
    workspace_bytes: int = 0
    family: str = "permute"

    def __str__(self) -> str:
        p, q, run = self.tile
        how = f"in squares of {self.square}" if self.way == "squares" else f"cells of {run}"
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        return (
            f"permute: tiles of {p} x {q}, {how}{', past the caches' if self.streams else ''}; {threads}; "
            f"workspace {self.workspace_bytes / 1024:.0f} KiB"
        )


class PermuteAxis(NamedTuple):
    """A mode in items: extent, stride in X, stride in D."""

    extent: int
    x: int
    d: int


class Side(NamedTuple):
    """Modes along one side of a tile, innermost first. The last is cut into `pieces`, the last one longer."""

    axes: tuple[PermuteAxis, ...]
    tile: int  # cells of a tile
    pieces: int = 1
    last: int = 0  # cells of the last tile, where there are several

    @property
    def longest(self) -> int:
        return self.last if self.pieces > 1 else self.tile

    @property
    def outer(self) -> PermuteAxis:
        """The axis of the loop over its tiles."""
        units = self.tile // math.prod(axis.extent for axis in self.axes[:-1])
        return PermuteAxis(self.pieces, self.axes[-1].x * units, self.axes[-1].d * units)


class Tiling(NamedTuple):
    """A permutation cut into tiles."""

    x_size: int  # bytes of an item, which may be a word of several elements
    d_size: int
    p: Side
    q: Side
    run: Side
    outer: tuple[PermuteAxis, ...]  # outermost first, those of cut sides among them
    contiguous: bool  # p in X, and q in D
    whole_rows: bool  # q and run together in D

    @property
    def tiles(self) -> int:
        return math.prod(axis.extent for axis in self.outer)


def schedule_of(permutation: Permutation, threads: int) -> CpuPermuteSchedule:
    """The tiles of a permutation that the kernels can do."""
    cut = tiling(permutation)
    square = _square(cut)
    size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
    items = cut.p.longest * cut.q.longest * cut.run.longest
    buffers = 0 if permutation.is_move else items * (cut.x_size + 2 * cut.d_size) + 16 * (cut.p.longest + cut.q.longest)
    threads = min(threads, cut.tiles) if size > SMALL else 1
    return CpuPermuteSchedule(
        "squares" if square else "cells", (cut.p.tile, cut.q.tile, cut.run.tile), square,
        _streams(permutation, cut), threads, threads * (buffers + 2048),
    )  # fmt: skip


def _square(cut: Tiling) -> int:
    """Items along the squares that a tile is made of; 0 where there are none."""
    if not cut.contiguous or cut.run.axes:
        return 0
    return next((n for n in SQUARES[cut.x_size] if n <= min(cut.p.tile, cut.q.tile)), 0)


def _streams(permutation: Permutation, cut: Tiling) -> bool:
    """Whether D is written in whole cache lines, and large enough not to stay in the caches."""
    if permutation.size * permutation.d.dtype.itemsize < STREAM:
        return False
    run = cut.run.tile * cut.d_size
    if run >= LONG:
        return True
    if run > LINE and run % LINE:  # both its ends would go through the caches, and take lines that were streamed back
        return False
    if _square(cut) and permutation.is_move and min(cut.p.tile, cut.q.tile) < LINE // cut.d_size:
        return False
    rows = [side * cut.run.tile * cut.d_size for side in (cut.q.tile, cut.q.longest)]
    steps = [axis.d * cut.d_size for axis in (*cut.outer, *cut.p.axes)]
    return cut.whole_rows and all(step % LINE == 0 for step in (*rows, *steps))


@lru_cache(maxsize=256)
def tiling(permutation: Permutation) -> Tiling:
    """Cut a permutation: p and q in turn take the next mode in X's and D's order, until both reach far enough."""
    axes, x_size = items(permutation)
    d_size = x_size if permutation.is_move else permutation.d.dtype.itemsize
    run = next((axis for axis in axes if axis.x == axis.d == 1), None)
    cell = _side([run] if run else [], max(RUN // x_size, 1))
    free = [axis for axis in axes if axis is not run]
    p, q = _sides(free, cell.tile, (x_size, d_size), squares=run is None)
    most = BUFFER // cell.tile if not permutation.is_move else 1 << 40
    along_q = _side(q, min(_wanted(1, d_size * cell.tile), most))
    along_p = _side(p, min(_wanted(0, x_size * cell.tile), max(most // along_q.tile, 1)))
    around = [axis for axis in free if axis not in p and axis not in q]
    around += [side.outer for side in (cell, along_q) if side.pieces > 1]
    around.sort(key=lambda axis: (-min(axis.x, axis.d), -axis.d))
    around += [along_p.outer] if along_p.pieces > 1 else []
    return Tiling(
        x_size, d_size, along_p, along_q, cell, tuple(around),
        _contiguous([axis.x for axis in p], p) and _contiguous([axis.d for axis in q], q) and bool(p and q),
        _contiguous([axis.d for axis in q], q, cell.tile if cell.pieces == 1 else 0),
    )  # fmt: skip


def _sides(
    free: Sequence[PermuteAxis], cell: int, sizes: tuple[int, int], *, squares: bool
) -> tuple[list[PermuteAxis], list[PermuteAxis]]:
    """The modes of p and q, innermost first."""
    orders = (sorted((a for a in free if a.x), key=lambda a: a.x), sorted(free, key=lambda a: a.d))
    squares = squares and bool(orders[0]) and orders[0][0].x == orders[1][0].d == 1
    found: tuple[list[PermuteAxis], list[PermuteAxis]] = ([], [])
    lengths, open_ = [1, 1], [True, True]
    while any(open_):
        # The side that is shorter of what it wants goes on; q begins.
        side = min((1, 0), key=lambda s: (not open_[s], lengths[s] * sizes[s] * (4, 1)[s]))
        mine, other = found[side], found[1 - side]
        following = next((axis for axis in orders[side] if axis not in mine), None)
        wanted = _wanted(side, sizes[side] * cell)
        stride = following[1 + side] if following else 0
        if following is None or following in other or lengths[side] >= wanted or (squares and stride != lengths[side]):
            open_[side] = False
            continue
        mine.append(following)
        lengths[side] *= following.extent
    return found


def _wanted(side: int, cell: int) -> int:
    """Cells of so many bytes along a side of a tile."""
    return max((REACH_X, REACH_D if cell < LINE else CELLS)[side] // cell, 1)


def _side(axes: Sequence[PermuteAxis], wanted: int) -> Side:
    """Cut the last mode so that a tile has about `wanted` cells, in tiles of one length but for a longer last one."""
    if not axes:
        return Side((), 1)
    inner, extent = math.prod(axis.extent for axis in axes[:-1]), axes[-1].extent
    units = max(wanted // inner, 1)
    count = max(extent // units, 1)
    if count == 1:
        return Side(tuple(axes), inner * extent)
    return Side(tuple(axes), inner * units, count, inner * (extent - (count - 1) * units))


def _contiguous(strides: Sequence[int], axes: Sequence[PermuteAxis], step: int = 1) -> bool:
    for stride, axis in zip(strides, axes, strict=True):
        if stride != step:
            return False
        step *= axis.extent
    return True


def items(permutation: Permutation) -> tuple[list[PermuteAxis], int]:
    """The modes in items, and bytes of one in X: of a plain move the widest words of up to 16 bytes, else elements."""
    axes = [PermuteAxis(max(mode.extent, 1), mode.strides.a, mode.strides.d) for mode in permutation.modes]
    size = permutation.x.dtype.itemsize
    if permutation.is_move:
        for width in WORDS:
            if width > size and _folds(permutation, width // size):
                return [axis for axis in _folded(permutation.modes, width // size) if axis.extent > 1], width
    return axes, size


def _folds(permutation: Permutation, fold: int) -> bool:
    """Whether `fold` neighbours stay together on the way."""
    if not permutation.modes:
        return False
    *outer, inner = permutation.modes
    if inner.strides.a != 1 or inner.strides.d != 1 or inner.extent % fold:
        return False
    return all(mode.strides.a % fold == 0 and mode.strides.d % fold == 0 for mode in outer)


def _folded(modes: tuple[Mode, ...], fold: int) -> list[PermuteAxis]:
    *outer, inner = modes
    found = [PermuteAxis(max(mode.extent, 1), mode.strides.a // fold, mode.strides.d // fold) for mode in outer]
    return [*found, PermuteAxis(max(inner.extent // fold, 1), 1, 1)]

"""The blocks that the algebra family considers: how large, which modes they run along, and what a thread holds of them.

Threads number in powers of two and so do tiles, but a side of 24 or 72 needs no power of two: a tile that holds the
whole side is computed in equal *pieces*, as many as the side has, and the rest of the tile is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.tiling import D, TiledAxis, by_stride, nearest
from weft.spec import Contraction, Mode

MOST_HELD = {4: 80, 8: 40}  # elements of D in each thread, by bytes of the accumulator: more would spill
LEAST_HELD = {4: 12, 8: 6}  # where a side is in pieces: the others have that choice already
LONGEST_SIDE = 96  # that is computed in pieces: a longer one wastes little of the usual tiles
MOST_PIECES = 12
USUAL_DEPTH = 8  # of a step along k; deeper ones take more registers
_RUNS = (8, 16, 32)  # lengths of an operand's own run where a side needs two


class Share(NamedTuple):
    """How the threads of a program share one side of its block.

    Element `i` of run `r` of thread `t` in piece `p` stands at ((p * held / run + r) * threads + t) * run + i. Threads
    side by side thus read from shared memory side by side, and each of them as much at once as lies together there.
    """

    pieces: int  # of the tile that are computed
    slots: int  # pieces in the tile, a power of two
    log_slots: int
    held: int  # elements of each piece in each thread
    threads: int
    run: int  # neighbours among these


class Shape(NamedTuple):
    """A block of D in pieces, a step along k, and the share of a thread: the threads of all warps cover each piece."""

    m: int  # of one piece
    n: int
    k: int
    rows: int  # of one piece
    columns: int
    warps: int
    stages: int = 3
    pieces: tuple[int, int] = (1, 1)  # along m and n


# By bytes of the accumulator: 64 registers of it in each thread, fewer in small blocks.
_SHAPES = {
    4: (
        Shape(128, 128, 8, 8, 8, 8), Shape(128, 128, 4, 8, 8, 8), Shape(256, 64, 8, 8, 8, 8),
        Shape(64, 256, 8, 8, 8, 8), Shape(128, 64, 8, 8, 8, 4), Shape(64, 128, 8, 8, 8, 4),
        Shape(64, 64, 8, 8, 4, 4), Shape(64, 64, 8, 8, 8, 2), Shape(32, 128, 8, 4, 8, 4),
        Shape(128, 32, 8, 8, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(64, 32, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4),
        Shape(256, 16, 8, 8, 4, 4), Shape(16, 256, 8, 4, 8, 4), Shape(16, 64, 8, 2, 4, 4), Shape(64, 16, 8, 4, 2, 4),
        Shape(16, 16, 8, 2, 2, 2), Shape(64, 64, 16, 8, 8, 2), Shape(128, 64, 16, 8, 8, 4), Shape(64, 128, 16, 8, 8, 4),
    ),
    8: (
        Shape(128, 64, 4, 8, 4, 8), Shape(64, 64, 8, 4, 4, 8), Shape(64, 64, 4, 4, 4, 8), Shape(64, 64, 4, 8, 4, 4),
        Shape(64, 32, 8, 4, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4), Shape(128, 16, 8, 4, 4, 4),
        Shape(16, 128, 8, 4, 4, 4), Shape(16, 16, 8, 2, 2, 2),
    ),
}  # fmt: skip


def shapes(contraction: Contraction) -> tuple[Shape, ...]:
    """The blocks worth a thought: the usual ones, and those that fit a short side."""
    size = max(contraction.arithmetic.accumulate.itemsize, 4)
    along_m = (_turned(shape) for shape in fitting(contraction.m, size))
    fitted = (*fitting(contraction.n, size), *along_m)
    if max(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize) <= 2:
        fitted = tuple(shape._replace(k=2 * shape.k) for shape in fitted)  # a row of a step takes as many bytes
    return (*_SHAPES[size], *fitted)


@lru_cache
def fitting(extent: int, size: int) -> tuple[Shape, ...]:
    """Blocks whose n is this extent in pieces, where the next power of two would waste a tenth of the lanes or more."""
    if extent > LONGEST_SIDE:
        return ()
    found: list[Shape] = []
    for piece in (4, 8, 16):
        count = -(-extent // piece)
        if 1 < count <= MOST_PIECES and 10 * count * piece <= 9 * power_of_two(extent):
            found += _pieces(count, piece, size)
    return tuple(found)


def _pieces(count: int, piece: int, size: int) -> Iterator[Shape]:
    """128 threads over each piece."""
    for columns in (1, 2, 4):
        threads = piece // columns
        for rows in (2, 4, 8):
            m = 128 // threads * rows
            if LEAST_HELD[size] <= rows * columns * count <= MOST_HELD[size] and m <= 512:
                yield Shape(m, piece, 8 if size == 4 else 4, rows, columns, 4, pieces=(1, count))


def _turned(shape: Shape) -> Shape:
    return shape._replace(
        m=shape.n, n=shape.m, rows=shape.columns, columns=shape.rows, pieces=(shape.pieces[1], shape.pieces[0])
    )


def tile_axes(modes: Sequence[Mode], operand: int, tile: int, pieces: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of m or n: in D's order, in the operand's, or along both runs."""
    by_d = by_stride(modes, D)
    for order in dict.fromkeys((by_d, by_stride(modes, operand))):
        yield (TiledAxis(order, tile),)
    near = nearest(modes, operand)
    if pieces == 1 and near is not None and near is not by_d[0]:
        others = tuple(mode for mode in by_d if mode is not near)
        for run in _RUNS:
            if tile // run >= 8 and run < 2 * near.extent:
                yield (TiledAxis(others, tile // run), TiledAxis((near,), run))


def share(cuts: tuple[TiledAxis, ...], held: int, pieces: int, itemsize: int, depth: TiledAxis, operand: int) -> Share:
    """Of one side, whose operand's elements take `itemsize` bytes.

    The operand lies in shared memory along its own run: neighbours of this side lie together where that is its run, and
    else steps along k do.
    """
    slots = power_of_two(pieces)
    tile = math.prod(cut.tile for cut in cuts)
    contiguous = _runs(cuts[-1], operand) and not _runs(depth, operand)
    run = min(held, max(VECTOR // itemsize, 1)) if contiguous else 1
    return Share(pieces, slots, slots.bit_length() - 1, held, tile // slots // held, run)


def _runs(cut: TiledAxis, operand: int) -> bool:
    """Whether neighbours along a cut are neighbours in an operand."""
    return bool(cut.modes) and cut.modes[0].strides[operand] == 1


def power_of_two(extent: int) -> int:
    """The least power of two that is not under `extent`."""
    return 1 << max(extent - 1, 0).bit_length()

"""The output tiles that the family considers: how large, and what a thread holds of them.

Threads number in powers of two and so do tiles, but a dim of 24 or 72 needs no power of two: a tile that holds the
whole dim is computed in equal *subtiles*, as many as the dim has, and the rest of the tile is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common.constraints import power_of_two
from weft.spec import Contraction

MOST_HELD = {4: 80, 8: 40}  # elements of D in each thread, by bytes of the accumulator: more would spill
LEAST_HELD = {4: 12, 8: 6}  # where a dim is in subtiles: the others have that choice already
LONGEST_DIM = 96  # that is computed in subtiles: a longer one wastes little of the usual tiles
MOST_SUBTILES = 12
USUAL_DEPTH = 8  # of a step along k; deeper ones take more registers


class Shape(NamedTuple):
    """An output tile in subtiles, a step along k, and a thread's part: the threads of all warps cover each subtile."""

    m: int  # of one subtile
    n: int
    k: int
    rows: int  # of one subtile, in each thread
    columns: int
    warps: int
    stages: int = 3
    subtiles: tuple[int, int] = (1, 1)  # along m and n


# By bytes of the accumulator: 64 registers of it in each thread, fewer in small tiles.
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
    """The shapes worth a thought: the usual ones, and those that fit a short dim."""
    size = max(contraction.arithmetic.accumulate.itemsize, 4)
    along_m = (_transposed(shape) for shape in fitting(contraction.m, size))
    fitted = (*fitting(contraction.n, size), *along_m)
    if max(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize) <= 2:
        fitted = tuple(shape._replace(k=2 * shape.k) for shape in fitted)  # a row of a step takes as many bytes
    return (*_SHAPES[size], *fitted)


@lru_cache
def fitting(extent: int, size: int) -> tuple[Shape, ...]:
    """Shapes whose n is this extent in subtiles, where the next power of two would waste a tenth of the lanes."""
    if extent > LONGEST_DIM:
        return ()
    found: list[Shape] = []
    for subtile in (4, 8, 16):
        count = -(-extent // subtile)
        if 1 < count <= MOST_SUBTILES and 10 * count * subtile <= 9 * power_of_two(extent):
            found += _in_subtiles(count, subtile, size)
    return tuple(found)


def _in_subtiles(count: int, subtile: int, size: int) -> Iterator[Shape]:
    """128 threads over each subtile."""
    for columns in (1, 2, 4):
        threads = subtile // columns
        for rows in (2, 4, 8):
            m = 128 // threads * rows
            if LEAST_HELD[size] <= rows * columns * count <= MOST_HELD[size] and m <= 512:
                yield Shape(m, subtile, 8 if size == 4 else 4, rows, columns, 4, subtiles=(1, count))


def _transposed(shape: Shape) -> Shape:
    return shape._replace(
        m=shape.n, n=shape.m, rows=shape.columns, columns=shape.rows, subtiles=(shape.subtiles[1], shape.subtiles[0])
    )

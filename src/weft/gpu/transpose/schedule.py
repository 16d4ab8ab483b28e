"""How matrices are transposed in place: the tile of square ones, the decomposition of rectangular ones.

A rectangular matrix is transposed in stages, each of which moves runs of memory. Its last stage or its first moves
*super-elements*, each of q contiguous elements, along the cycles of a permutation. So do F. Gustavson and T. Swirszcz
(PARA 2006), and on GPUs I.-J. Sung et al. (PPoPP 2014). There are two decompositions:

Squares of side q, for a main part of (a q) x (b q) elements. Each square is transposed where it lies. That leaves
super-elements in the order [a][q][b] that should be [b][q][a]. Every element is moved twice.

Panels of q rows, for a main part of (m q) rows. Each panel is transposed by way of a workspace. That leaves
super-elements in the order [m][columns] that should be [columns][m]. Every element is moved three times, once of it
within the L2. Panels of q columns are the same backwards: the super-elements first. Panels are for matrices that are
too thin for squares, or have a side with a divisor that suits while the two have none in common.

Rows and columns outside the main part are kept in the workspace. Columns that are left over are padding of the main
part, which is taken out first; rows make padding in the result, which is put in last. Either is one move more where
little is left over, else two by way of the workspace (`padding`).

So it is two moves where the extents share a good divisor, three or four where they nearly do or one of them has a good
one, and never more than six. The decomposition into column-to-row passes (C2R: B. Catanzaro, A. Keller and M. Garland,
PPoPP 2014) needs no remainders. But it gathers single elements within rows and columns, which GPUs do at a fraction of
their memory's rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from weft.gpu.common.hardware import LINE, VECTOR
from weft.gpu.transpose.cost import panels_seconds, squares_seconds
from weft.spec import Layout

LEAST_WORKSPACE = 8 << 20  # bytes that may always be used: a matrix up to here goes out and comes back
MOST_WORKSPACE = 32 << 20  # bytes that are never exceeded

# Rows and columns of a tile and warps of its program, by bytes of an element, as they were fastest on an H200. Large
# tiles are for runs of two lines and more. They are for matrices of many tiles, and where each access takes 16 bytes:
# with narrower ones a thread holds too many addresses.
_LARGE = {1: (64, 8), 2: (128, 16), 4: (64, 8), 8: (64, 8), 16: (16, 4)}
_SMALL = {1: (64, 8), 2: (64, 8), 4: (32, 4), 8: (32, 4), 16: (16, 4)}
_ON_LINES = {2: (128, 8)}  # where rows begin with lines, fewer warps are waited for
_MANY = 8  # tiles along a side

Kind = Literal["squares", "row panels", "column panels"]


@dataclass(frozen=True, slots=True)
class TransposeSchedule:
    """A decomposition: the main part of `rows` x `columns` consists of whole squares or panels of side `side`."""

    kind: Kind
    rows: int
    columns: int
    side: int
    seconds: float  # predicted


def workspace_bytes(moved_bytes: int) -> int:
    """What one call may use beside its matrices: an eighth of them, at least 8 MiB and at most 32 MiB."""
    return min(max(moved_bytes // 8, LEAST_WORKSPACE), MOST_WORKSPACE)


@lru_cache(maxsize=256)
def best(rows: int, columns: int, itemsize: int, workspace: int) -> TransposeSchedule:
    """The decomposition of least predicted time for a matrix that does not fit into the workspace."""
    found = (
        _squares(rows, columns, itemsize, workspace),
        _panels(rows, columns, itemsize, workspace, "row panels"),
        _panels(columns, rows, itemsize, workspace, "column panels"),
    )
    return min(found, key=lambda schedule: schedule.seconds)


def square_tile(matrices: Layout) -> tuple[int, int]:
    """(rows and columns of a tile, warps) for squares (outer batch, inner batch, n, n) or (..., n, n, words)."""
    size = matrices.dtype.itemsize * (matrices.shape[4] if len(matrices.shape) > 4 else 1)
    tile, warps = _ON_LINES.get(size, _LARGE[size]) if _are_whole(matrices, LINE) else _LARGE[size]
    return (tile, warps) if matrices.shape[2] >= _MANY * tile and _are_whole(matrices, VECTOR) else _SMALL[size]


def _are_whole(matrices: Layout, size: int) -> bool:
    """Whether all rows, or all columns, begin `size` bytes apart or multiples of it, and are made of accesses of 16."""
    unit = max(size // matrices.dtype.itemsize, 1)
    sides = zip(matrices.strides, matrices.shape, strict=True)
    whole = all(stride % unit == 0 for stride, extent in sides if extent > 1 and stride != 1)
    accesses = matrices.shape[3] * matrices.dtype.itemsize % VECTOR == 0 and matrices.alignment == VECTOR
    return whole and accesses and 1 in matrices.strides[2:]


def _squares(rows: int, columns: int, itemsize: int, workspace: int) -> TransposeSchedule:
    sides = np.arange(1, min(rows, columns) + 1)
    side, seconds = _fastest(sides, squares_seconds(rows, columns, sides, itemsize, workspace))
    return TransposeSchedule("squares", rows // side * side, columns // side * side, side, seconds)


def _panels(divided: int, other: int, itemsize: int, workspace: int, kind: Kind) -> TransposeSchedule:
    """Panels across the extent `divided`."""
    thickest = min(workspace // (other * itemsize), divided)
    sides = np.arange(max(thickest >> 10, 1), thickest + 1)
    side, seconds = _fastest(sides, panels_seconds(divided, other, sides, itemsize, workspace))
    main = divided // side * side
    return TransposeSchedule(kind, *((main, other) if kind == "row panels" else (other, main)), side, seconds)


def _fastest(sides: np.ndarray, seconds: np.ndarray) -> tuple[int, float]:
    """The side of least time, and that time; infinite where none is possible."""
    if sides.size == 0:
        return 1, math.inf
    at = np.argmin(seconds)
    return int(sides[at]), float(seconds[at])

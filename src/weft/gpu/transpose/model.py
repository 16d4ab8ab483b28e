"""Which decomposition serves a matrix that is transposed in place, what it tells the kernels, and tables of cycles."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.gpu.common.constraints import LINE, VECTOR, power_of_two
from weft.spec import Layout

LEAST_WORKSPACE = 8 << 20  # bytes that may always be used: a matrix up to here goes out and comes back
MOST_WORKSPACE = 32 << 20  # bytes that are never exceeded


def workspace_bytes(moved_bytes: int) -> int:
    """Bytes that one call may use beside its matrices: an eighth of them, at least 8 MiB and at most 32 MiB."""
    return min(max(moved_bytes // 8, LEAST_WORKSPACE), MOST_WORKSPACE)


class SquareParams(NamedTuple):
    n: int  # rows and columns
    tiles: int  # along a side, even: an odd number is counted one more
    pairs: int  # tiles on and above the diagonal, each with its mirror image
    tile: int  # rows and columns of a tile
    inner: int  # matrices along the inner of two batch dimensions
    strides: tuple[int, ...]  # (outer batch, inner batch, row, column)
    words: int  # of an element, contiguous
    wide: bool  # offsets need 64 bits


def square_params(matrices: Layout, tile: int) -> SquareParams:
    """Parameters for matrices (outer batch, inner batch, n, n), with a last dimension of words where elements are
    two."""
    _, inner, n, _, *words = matrices.shape
    half = -(-n // (2 * tile))
    # Lanes may overhang the extents by a tile before they are masked.
    reach = sum(stride * (extent + tile) for stride, extent in zip(matrices.strides, matrices.shape, strict=True))
    pairs, strides = half * (2 * half + 1), matrices.strides[:4]
    return SquareParams(n, 2 * half, pairs, tile, inner, strides, math.prod(words), reach >= 2**31)


# Rows and columns of a tile and warps of its program, by bytes of an element, as they were fastest on an H200. Large
# tiles are for runs of two lines and more. They are for matrices of many tiles, and where each access takes 16 bytes:
# with narrower ones a thread holds too many addresses.
_LARGE = {1: (64, 8), 2: (128, 16), 4: (64, 8), 8: (64, 8), 16: (16, 4)}
_SMALL = {1: (64, 8), 2: (64, 8), 4: (32, 4), 8: (32, 4), 16: (16, 4)}
_ON_LINES = {2: (128, 8)}  # where rows begin with lines, fewer warps are waited for
_MANY = 8  # tiles along a side


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


class Slots(NamedTuple):
    """A dense matrix as slots of `side` elements, as many to a row as are whole; row after row, numbered from 0."""

    rows: int
    row: int  # elements from one row to the next
    side: int
    per_row: int

    @classmethod
    def of(cls, rows: int, columns: int, side: int) -> Slots:
        """One to a row where they stand without gaps."""
        if columns % side:
            return cls(rows, columns, side, columns // side)
        return cls(rows * columns // side, side, side, 1)


_WIDTH = 1024  # bytes of each slot that a program moves: runs that memory likes
_HELD = 16384  # bytes that it holds in registers
_GROUPS = (16, 128)  # slots that it moves: at least 16, for an eighth of all would have to be saved with less


class MoveParams(NamedTuple):
    group: int  # slots of a program
    width: int  # words of each that it moves, a power of two
    parts: int  # programs side by side along a slot
    span: int  # words of a slot that are moved
    per_row: int  # slots
    row: int  # from one row to the next
    slot: int  # from one slot to the next
    step: int  # from one word to the next
    wide: bool  # offsets need 64 bits


def move_group(span: int, size: int) -> tuple[int, int]:
    """(slots, words of each) of a program, for slots of so many words of so many bytes."""
    width = min(_WIDTH // size, power_of_two(span))
    return min(max(_HELD // (width * size), _GROUPS[0]), _GROUPS[1]), width


def move_params(slots: Slots, group: int, width: int, span: int, step: int, saved: int) -> MoveParams:
    """Parameters for `span` words of each slot; so many slots are saved."""
    wide = max((slots.rows * slots.row + width) * step, saved * span + width) >= 2**31
    lengths = (slots.per_row, slots.row * step, slots.side * step, step)
    return MoveParams(group, width, -(-span // width), span, *lengths, wide)


def move_tables(source: np.ndarray, group: int) -> tuple[np.ndarray, ...]:
    """Slots to be saved, and the moves of the permutation x[i] <- x[source[i]] of fewer than 2^31 slots.

    Both are (moves, 2) in int32: the slot that is written and the one that it becomes, those saved as -1, -2 and so on.
    Moves of one group may be made at once, and groups in any order; what fills up the last one is alike.
    """
    order = cycle_order(source)
    place = np.empty(source.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    wanted = source[order]
    crossing = np.flatnonzero(place[wanted] // group != np.arange(order.size) // group)
    aside = -1 - np.arange(crossing.size)
    saving = np.stack([aside, wanted[crossing]], 1)
    wanted[crossing] = aside
    moves = saving, np.stack([order, wanted], 1)
    return tuple(np.pad(each, ((0, -len(each) % group), (0, 0))).astype(np.int32) for each in moves)


def cycle_order(source: np.ndarray) -> np.ndarray:
    """All i but fixed points such that source[i] follows i, but for the last of each cycle."""
    after = source.tolist()
    left = bytearray((source != np.arange(source.size)).tobytes())
    order = []
    for start in range(len(after)):
        at = start
        while left[at]:
            left[at] = 0
            order.append(at)
            at = after[at]
    return np.array(order, dtype=np.int64)


# In moves of the whole matrix, as they were measured on an H200.
_VIA_WORKSPACE = 0.7  # that a pass by way of the workspace takes more than one without
_WORD, _LEFT = 2.0, 0.1  # that slots cost more which are moved by single bytes, and rows with gaps behind their slots
_MOST_SLOTS = 1 << 20  # their tables, which are made on the host, count for one


class TransposeSchedule(NamedTuple):
    """A decomposition into squares or panels of that side."""

    kind: str  # "squares", "row panels" or "column panels"
    side: int


@lru_cache(maxsize=256)
def best(rows: int, columns: int, itemsize: int, workspace: int) -> TransposeSchedule:
    """The decomposition for a matrix that does not fit into the workspace: squares as large as they can be, or panels
    that the workspace holds, whichever has the longer slots and moves them by the longer words."""

    def moves(sides: np.ndarray, divided: int) -> np.ndarray:
        words = np.gcd(np.gcd(sides, divided) * itemsize, VECTOR)
        return LINE / (sides * itemsize) + _WORD / words + rows * columns / (sides * _MOST_SLOTS)

    common = math.gcd(rows, columns)
    found = [(float(moves(np.array(common), common)), TransposeSchedule("squares", common))]
    for kind, divided, other in (("row panels", rows, columns), ("column panels", columns, rows)):
        thickest = min(3 * workspace // (4 * other * itemsize), divided)
        sides = np.arange(max(thickest >> 10, 1), thickest + 1)
        sides = sides[divided % sides * other * itemsize <= workspace // 4]  # what is left over
        if sides.size:
            cost = _VIA_WORKSPACE + moves(sides, divided) + _LEFT * (divided % sides > 0)
            at = np.argmin(cost)
            found.append((float(cost[at]), TransposeSchedule(kind, int(sides[at]))))
    return min(found)[1]

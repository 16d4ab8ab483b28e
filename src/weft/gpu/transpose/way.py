"""How a rectangular matrix is taken apart to be transposed in place on the GPU: a value, chosen by a model of its time.

Two ways, both of kernels that read and write runs of memory:

Squares of side q, for a main part of (a q) x (b q) elements. Each square is transposed where it lies. That leaves
chunks of q contiguous elements in the order [a][q][b] that should be [b][q][a]; they change places along the cycles of
that permutation (`transpose_chunks`). Every element is moved twice.

Panels of q rows, for a main part of (m q) rows. Each panel is transposed through a buffer. That leaves chunks of q
elements in the order [m][columns] that should be [columns][m]. Every element is moved three times, once of it within
the L2. Panels of q columns are the same backwards: the chunks first. For matrices that are too thin for squares, or
have a side with a divisor that suits while the two have none in common.

Rows and columns outside the main part are kept in the workspace. For columns that are left over, the others close up
first; for rows, the columns of the result move apart last. Either is one move more where little is left over
(`transpose_slide`), else two through a buffer. The other decomposition in use (Catanzaro, Keller and Garland, PPoPP
2014) needs no remainders, but gathers single elements within rows and columns, which GPUs do at a fraction of their
memory's rate. So it is two moves where the extents share a good divisor, three or four where they nearly do or one of
them has a good one, and never more than six.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from weft.gpu.transpose.slide import LEAST_PROGRAMS, MOST_PROGRAMS

LEAST_WORKSPACE = 8 << 20  # bytes that may always be used: a matrix up to here goes out and comes back
MOST_WORKSPACE = 32 << 20  # bytes that are never exceeded

Kind = Literal["squares", "row panels", "column panels"]

# The model: of an H200, but only the proportions matter.
_RATE = 4e12  # bytes per second
_LAUNCH = 3e-6  # seconds
_BUFFERED = 1.7  # moves for a pass through a buffer, which mostly stays in the L2
_LINE = 128
_MOST_LEFT = 0.25  # of the workspace may keep what lies outside the main part
_MOST_CHUNKS = 1 << 20  # the tables are 8 bytes for each, and are made on the host
_WORD_COST = {1: 3.0, 2: 1.6, 4: 1.1, 8: 1.0, 16: 1.0}  # of a move, by the bytes a thread moves at a time


@dataclass(frozen=True, slots=True)
class Way:
    """A decomposition: its main part of `rows` x `columns` are whole squares or panels of side `side`."""

    kind: Kind
    rows: int
    columns: int
    side: int
    seconds: float


def workspace_bytes(moved_bytes: int) -> int:
    """What one call may use beside its matrices: an eighth of them, at least 8 MiB and at most 32 MiB."""
    return min(max(moved_bytes // 8, LEAST_WORKSPACE), MOST_WORKSPACE)


@lru_cache(maxsize=256)
def choose(rows: int, columns: int, itemsize: int, workspace: int) -> Way:
    """The way of least predicted time for a matrix that does not fit into the workspace."""
    ways = [
        *_squares(rows, columns, itemsize, workspace),
        *_panels(rows, columns, itemsize, workspace, "row panels"),
        *_panels(columns, rows, itemsize, workspace, "column panels"),
    ]
    return min(ways, key=lambda way: way.seconds)


def _squares(rows: int, columns: int, itemsize: int, workspace: int) -> list[Way]:
    side = np.arange(1, min(rows, columns) + 1)
    down, across = rows // side * side, columns // side * side
    left = (rows * columns - down * across) * itemsize
    matrix_bytes = rows * columns * itemsize
    move = 2 * matrix_bytes / _RATE
    turns = matrix_bytes / np.maximum(workspace - left, 1)
    right, low = (columns - across) * down * itemsize, (rows - down) * across * itemsize  # that rows and columns slide
    seconds = (
        move * np.maximum(1, _LINE / (2 * side * itemsize))
        + move * _chunk_cost(side * itemsize)
        + _slide(move, right, workspace - left, turns)
        + _slide(move, low, workspace - left, turns)
        + _table_cost(down * across // side, move)
    )
    best = _best(seconds, left <= workspace * _MOST_LEFT)
    if best is None:
        return []
    return [Way("squares", int(down[best]), int(across[best]), int(side[best]), float(seconds[best]))]


def _panels(cut: int, other: int, itemsize: int, workspace: int, kind: Kind) -> list[Way]:
    """Panels across the extent `cut`."""
    thickest = min(workspace // (other * itemsize), cut)
    side = np.arange(max(thickest >> 10, 1), thickest + 1)
    main = cut // side * side
    left = (cut - main) * other * itemsize
    room = workspace - left
    matrix_bytes = cut * other * itemsize
    move = 2 * matrix_bytes / _RATE
    together = room // (side * other * itemsize)
    seconds = (
        _through_buffer(move, main // side / np.maximum(together, 1))
        + move * _chunk_cost(side * itemsize)
        + _slide(move, left, room, matrix_bytes / np.maximum(room, 1))
        + _table_cost(main // side * other, move)
    )
    best = _best(seconds, (left <= workspace * _MOST_LEFT) & (together > 0))
    if best is None:
        return []
    rows, columns = (int(main[best]), other) if kind == "row panels" else (other, int(main[best]))
    return [Way(kind, rows, columns, int(side[best]), float(seconds[best]))]


def _best(seconds: np.ndarray, possible: np.ndarray) -> int | None:
    """Where the least of the possible times stands."""
    found = np.flatnonzero(possible)
    return int(found[np.argmin(seconds[found])]) if found.size else None


def _through_buffer(move: float, turns: np.ndarray) -> np.ndarray:
    """Seconds of a pass through a buffer that takes so many turns, of two launches each."""
    return _BUFFERED * move + 2 * _LAUNCH * np.ceil(turns)


def _slide(move: float, gaps: np.ndarray, room: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Seconds to close or open gaps of so many bytes in all: a move where enough programs can do it at once."""
    programs = 2 * room / np.maximum(gaps, 1)
    alone = np.where(programs < MOST_PROGRAMS, 1.6, 1.3) * move + 2 * _LAUNCH
    return (gaps > 0) * np.where(programs < LEAST_PROGRAMS, _through_buffer(move, turns), alone)


def _chunk_cost(chunk_bytes: np.ndarray) -> np.ndarray:
    """Moves that one of chunks of some length counts for."""
    word = np.gcd(chunk_bytes, 16)
    cost = np.select([word == size for size in _WORD_COST], list(_WORD_COST.values()))
    return np.maximum(cost, 1) * np.maximum(1, _LINE / chunk_bytes) + 0.2 * np.minimum(1, _LINE / chunk_bytes)


def _table_cost(chunks: np.ndarray, move: float) -> np.ndarray:
    """Tables past the size they should have must pay: each such size counts for a move."""
    return move * np.maximum(chunks / _MOST_CHUNKS - 1, 0)

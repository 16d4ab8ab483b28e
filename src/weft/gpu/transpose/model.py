"""Schedules of transpositions in place, what they tell the kernels, their cost, and tables of cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from weft.gpu.common.constraints import LINE, SM_COUNT, VECTOR
from weft.planner.coefficients import fitted
from weft.spec import Layout

LEAST_SLIDING, MOST_SLIDING = SM_COUNT, 4 * SM_COUNT  # programs that slide rows at once
_SLIDE_BYTES = 8192  # of a tile


class SquareParams(NamedTuple):
    n: int  # rows and columns
    tiles: int  # along a side, even: an odd number is counted one more
    tile: int  # rows and columns of a tile
    inner: int  # matrices along the inner of two batch dimensions
    strides: tuple[int, ...]  # (outer batch, inner batch, row, column)
    words: int  # of an element, contiguous
    wide: bool  # offsets need 64 bits

    @property
    def pairs(self) -> int:
        """Tiles on and above the diagonal, each with its mirror image."""
        return self.tiles // 2 * (self.tiles + 1)


class CycleParams(NamedTuple):
    group: int  # super-elements of a program
    width: int  # words of each that it moves, a power of two
    parts: int  # programs side by side along a super-element
    span: int  # words of a super-element that are moved
    pitch: int  # from one super-element to the next
    step: int  # from one word to the next
    wide: bool  # offsets need 64 bits


class SlideParams(NamedTuple):
    columns: int  # of a row without padding
    padding: int  # behind each row
    total: int  # in all rows without padding
    reach: int  # from the first to the last word, as they lie beforehand
    step: int  # from one word to the next
    insert: bool  # padding is put in, else taken out
    programs: int
    segment: int  # words of a program: whole tiles
    growth: int  # each segment saves so many words more than the one before
    tile: int
    parts: int  # programs that save what one segment needs
    wide: bool  # offsets need 64 bits

    @property
    def saved(self) -> int:
        """Words to be saved."""
        return self.growth * (self.programs * (self.programs + 1) // 2)


def square_params(matrices: Layout, tile: int) -> SquareParams:
    """Parameters for matrices (outer batch, inner batch, n, n), with a last dimension of words where elements are
    two."""
    _, inner, n, _, *words = matrices.shape
    tiles = -(-n // tile)
    # Lanes may overhang the extents by a tile before they are masked.
    reach = sum(stride * (extent + tile) for stride, extent in zip(matrices.strides, matrices.shape, strict=True))
    return SquareParams(n, tiles + tiles % 2, tile, inner, matrices.strides[:4], math.prod(words), reach >= 2**31)


def cycle_params(part: Layout, group: int, width: int, saved: int) -> CycleParams:
    """Parameters for a part of all super-elements, the rows of a matrix; so many of them are saved."""
    count, span = part.shape
    pitch, step = part.strides
    wide = max(count * pitch + width * step, saved * span + width) >= 2**31
    return CycleParams(group, width, -(-span // width), span, pitch, step, wide)


def slide_params(
    rows: int, columns: int, padding: int, step: int, itemsize: int, workspace: int, *, insert: bool
) -> SlideParams | None:
    """How rows are shared out; None where too few programs could work, for what they would have to save."""
    total = rows * columns
    tile = _SLIDE_BYTES // itemsize
    fitting = 2 * workspace // max(rows * padding * itemsize, 1)
    for programs in (min(MOST_SLIDING, fitting), min(MOST_SLIDING, fitting) * 3 // 4):
        if programs < LEAST_SLIDING:
            return None
        segment = -(-total // (programs * tile)) * tile
        programs = -(-total // segment)
        growth = -(-segment * padding // columns)
        reach = total if insert else total + (rows - 1) * padding
        wide = (total + rows * padding + segment) * step >= 2**31
        parts = -(-programs * growth // tile)
        params = SlideParams(columns, padding, total, reach, step, insert, programs, segment, growth, tile, parts, wide)
        if params.saved * itemsize <= workspace:
            return params
    return None


_FITTED = fitted("transpose")

_RATE = _FITTED("rate")  # bytes per second
_LAUNCH = _FITTED("launch")  # seconds
_VIA_WORKSPACE = _FITTED("via_workspace")  # moves for a pass by way of the workspace, which mostly stays in the L2
_MOST_SUPER_ELEMENTS = _FITTED("super_elements")  # the tables are 8 bytes for each, and are made on the host
_MOST_LEFT = _FITTED("left")  # of the workspace may keep what lies outside the main part
_SMALL_SLIDE, _SLIDE = _FITTED("small_slide"), _FITTED("slide")  # moves, with few programs at once and with many
_SUPER_ELEMENT_LINE = _FITTED("super_element_line")  # moves that super-elements of a line or less add
_WORD_COST = {int(word): cost for word, cost in _FITTED.table("word_moves").items()}  # of a move, by a thread's bytes


def squares_seconds(rows: int, columns: int, side: np.ndarray, itemsize: int, workspace: int) -> np.ndarray:
    """Seconds by squares of each side, infinite where too much is left over."""
    down, across = rows // side * side, columns // side * side
    matrix_bytes = rows * columns * itemsize
    left = matrix_bytes - down * across * itemsize
    room = workspace - left
    move = 2 * matrix_bytes / _RATE
    rounds = matrix_bytes / np.maximum(room, 1)
    padding_right, padding_below = (columns - across) * down * itemsize, (rows - down) * across * itemsize
    seconds = (
        move * np.maximum(1, LINE / (2 * side * itemsize))
        + move * _super_element_moves(side * itemsize)
        + _padding_seconds(move, padding_right, room, rounds)
        + _padding_seconds(move, padding_below, room, rounds)
        + _table_seconds(down * across // side, move)
    )
    return np.where(left <= workspace * _MOST_LEFT, seconds, np.inf)


def panels_seconds(divided: int, other: int, side: np.ndarray, itemsize: int, workspace: int) -> np.ndarray:
    """Seconds by panels of each thickness across the extent `divided`, infinite where too much is left over."""
    panels = divided // side
    left = (divided - panels * side) * other * itemsize
    room = workspace - left
    matrix_bytes = divided * other * itemsize
    move = 2 * matrix_bytes / _RATE
    together = room // (side * other * itemsize)  # panels that the workspace holds at a time
    seconds = (
        _workspace_seconds(move, panels / np.maximum(together, 1))
        + move * _super_element_moves(side * itemsize)
        + _padding_seconds(move, left, room, matrix_bytes / np.maximum(room, 1))
        + _table_seconds(panels * other, move)
    )
    return np.where((left <= workspace * _MOST_LEFT) & (together > 0), seconds, np.inf)


def _workspace_seconds(move: float, rounds: np.ndarray) -> np.ndarray:
    """Seconds of a pass by way of the workspace that takes so many rounds, of two launches each."""
    return _VIA_WORKSPACE * move + 2 * _LAUNCH * np.ceil(rounds)


def _padding_seconds(move: float, padding: np.ndarray, room: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Seconds to take out or put in so many bytes of padding: a move where enough programs can slide at once."""
    programs = 2 * room / np.maximum(padding, 1)
    slide = np.where(programs < MOST_SLIDING, _SMALL_SLIDE, _SLIDE) * move + 2 * _LAUNCH
    return (padding > 0) * np.where(programs < LEAST_SLIDING, _workspace_seconds(move, rounds), slide)


def _super_element_moves(size: np.ndarray) -> np.ndarray:
    """Moves that the one of super-elements of so many bytes counts for."""
    word = np.gcd(size, VECTOR)
    cost = np.select([word == each for each in _WORD_COST], list(_WORD_COST.values()))
    return np.maximum(cost, 1) * np.maximum(1, LINE / size) + _SUPER_ELEMENT_LINE * np.minimum(1, LINE / size)


def _table_seconds(super_elements: np.ndarray, move: float) -> np.ndarray:
    """Tables past the size they should have must pay: each such size counts for a move."""
    return move * np.maximum(super_elements / _MOST_SUPER_ELEMENTS - 1, 0)


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
    """Bytes that one call may use beside its matrices: an eighth of them, at least 8 MiB and at most 32 MiB."""
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


_SPACING = 64  # elements between the places where cycles are first entered, on average

Table = TypeVar("Table")  # an array, or a tensor on a device


class CycleTables(NamedTuple, Generic[Table]):
    """Super-element ``target[k]`` becomes ``source[k]``, or ``saved[-1 - source[k]]`` where that is negative.

    The lists are padded to whole groups: `target` and `saved` with -1, `source` with 0.
    """

    target: Table  # (moves,) int32
    source: Table  # (moves,) int32
    saved: Table  # (saved super-elements,) int32: which ones


def cycle_tables(source: np.ndarray, group: int) -> CycleTables[np.ndarray]:
    """The tables of the permutation x[i] <- x[source[i]] of fewer than 2^31 super-elements, fixed points left out."""
    order = cycle_order(source)
    place = np.empty(source.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    wanted = source[order]
    crossing = np.flatnonzero(place[wanted] // group != np.arange(order.size) // group)
    saved = wanted[crossing]
    wanted[crossing] = -1 - np.arange(crossing.size)
    return CycleTables(_padded(order, group, -1), _padded(wanted, group, 0), _padded(saved, group, -1))


def cycle_order(source: np.ndarray) -> np.ndarray:
    """All i but fixed points such that source[i] follows i, but for the last of each cycle.

    Cycles are entered at random places and followed from all of them at once, each until the next such place. What
    lies on none of these paths are short cycles; these are followed once from their smallest elements.
    """
    moving = source != np.arange(source.size)
    if not moving.any():
        return np.empty(0, dtype=np.int64)
    entries = np.flatnonzero((np.random.default_rng(0).random(source.size) * _SPACING < 1) & moving)
    path, element, after = _followed(source, entries)
    rank = _linked(after)
    left = moving
    left[element] = False
    smallest = _smallest_of_cycles(source, np.flatnonzero(left))
    short_path, short_element, _ = _followed(source, smallest)
    long = element[np.argsort(rank[path], kind="stable")]
    return np.concatenate([long, short_element[np.argsort(short_path, kind="stable")]])


def _followed(source: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(path of each element, element, next path of each path): from every entry to before the next, in steps."""
    number = np.full(source.size, -1, dtype=np.int64)
    number[entries] = path = np.arange(entries.size)
    at = entries
    paths, elements = [path], [at]
    after = np.empty(entries.size, dtype=np.int64)
    while at.size:
        at = source[at]
        reached = number[at]
        ended = reached >= 0
        after[path[ended]] = reached[ended]
        path, at = path[~ended], at[~ended]
        paths.append(path)
        elements.append(at)
    return np.concatenate(paths), np.concatenate(elements), after


def _linked(after: np.ndarray) -> np.ndarray:
    """The rank of each path when every path is followed by the next one of its cycle."""
    following = after.tolist()
    rank = [-1] * len(following)
    count = 0
    for start in range(len(following)):
        at = start
        while rank[at] < 0:
            rank[at] = count
            count += 1
            at = following[at]
    return np.array(rank, dtype=np.int64)


def _smallest_of_cycles(source: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The smallest element of each of some whole cycles: the one from which no smaller is met before it comes again."""
    start, at = elements, source[elements]
    found = []
    while start.size:
        found.append(start[at == start])
        larger = at > start
        start, at = start[larger], source[at[larger]]
    return np.concatenate([*found, np.empty(0, dtype=np.int64)])


def _padded(values: np.ndarray, group: int, filler: int) -> np.ndarray:
    padded = np.full(-(-values.size // group) * group, filler, dtype=np.int32)
    padded[: values.size] = values
    return padded

"""A permutation of chunks as tables that many programs can follow at once.

The moves are listed cycle by cycle and cut into groups. A program reads all chunks of its group before it writes any,
so a chunk that one move of a group overwrites and another one needs is safe. Only chunks that another group would
overwrite are kept in the workspace beforehand: about one for each group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_SPACING = 64  # elements between the places where cycles are first entered, on average


class Moves(NamedTuple):
    """Chunk ``target[k]`` becomes chunk ``source[k]``, or ``kept[-1 - source[k]]`` where that is negative.

    The lists are padded to whole groups: targets and kept chunks with -1, sources with 0.
    """

    target: np.ndarray  # (moves,) int32
    source: np.ndarray  # (moves,) int32
    kept: np.ndarray  # (kept chunks,) int32: which ones


def moves(source: np.ndarray, group: int) -> Moves:
    """The tables of the permutation x[i] <- x[source[i]] of fewer than 2^31 chunks, fixed points left out."""
    order = by_cycles(source)
    place = np.empty(source.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    wanted = source[order]
    crossing = np.flatnonzero(place[wanted] // group != np.arange(order.size) // group)
    kept = wanted[crossing]
    wanted[crossing] = -1 - np.arange(crossing.size)
    return Moves(_padded(order, group, -1), _padded(wanted, group, 0), _padded(kept, group, -1))


def by_cycles(source: np.ndarray) -> np.ndarray:
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
    """Of whole cycles, each one's smallest element: the one from which no smaller is met before it comes again."""
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

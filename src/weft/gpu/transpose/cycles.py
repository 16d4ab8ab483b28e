"""Cycle following by many programs at once: a permutation of super-elements as tables.

The moves are listed cycle by cycle and cut into groups. A program reads all super-elements of its group before it
writes any, so one that a move of the group overwrites and another move needs is safe. Only super-elements that another
group would overwrite are saved in the workspace beforehand: about one for each group. So no program waits for another;
I.-J. Sung et al. (PPoPP 2014) coordinate them by flags in memory.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

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

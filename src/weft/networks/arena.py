"""One piece of memory for all intermediates: places by liveness, and how much is needed at most.

An intermediate lives from the step that makes it to the step that takes it. Two whose lives overlap get places apart;
others may share. The largest are placed first, each as low as its neighbours in time allow (Y. Pisarchyk, J. Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020: greedy by size).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from weft.networks.tree import Step, Tree

ALIGNMENT = 256  # bytes, as CUDA's allocations have
_SHARE = 64  # part of the whole from which an intermediate is large
Placed = tuple[int, int, int, int]  # first byte, past the last, and the first and last step of the life
SMALL = 1 << 20  # bytes up to which nothing shares a place: then steps may run side by side


@dataclass(frozen=True, slots=True)
class Arena:
    """Where every intermediate lies, in bytes."""

    places: Mapping[int, int]  # by node
    size: int
    shared: bool  # whether some place serves several

    def tensor(self, base: torch.Tensor, node: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The intermediate as a view of the arena, whose bytes are `base`."""
        place, count = self.places[node], 1
        for extent in shape:
            count *= extent
        return base[place : place + count * dtype.itemsize].view(dtype).view(shape)


def arena(
    tree: Tree, item: Mapping[int, int], once: Collection[int], *, keep: bool = False, apart: int = SMALL
) -> Arena:
    """The arena of a tree. `item` has the bytes of an element of each node.

    Nodes in `once` are made before the first slice and kept for all, where a step of each slice takes them. `keep`:
    every intermediate is kept, for the next call. Up to `apart` bytes in all nothing shares a place.
    """
    sizes = _sizes(tree, item)
    total = sum(sizes.values())
    if keep or total <= apart:
        return _in_turn(sizes)
    lives = _lives(tree, sizes, once)
    capacity = least(tree, item, once)
    found = _by_size(sizes, lives)
    if found.size > capacity:
        other = _from_both_ends(tree, sizes, lives, capacity)
        found = other if other is not None and other.size < found.size else found
    return found


def _by_size(
    sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]], placed: list[Placed] | None = None,
    places: dict[int, int] | None = None,
) -> Arena:  # fmt: skip
    """The largest first, each as low as it can lie, around those that are `placed`."""
    placed, places = placed if placed is not None else [], places if places is not None else {}
    for node in sorted(sizes, key=lambda node: (-sizes[node], lives[node])):
        if node not in places:
            gaps = _gaps(placed, lives[node], None)
            low = next(low for low, high in gaps if high is None or high - low >= sizes[node])
            _place(placed, places, node, low, sizes[node], lives[node])
    return Arena(places, max(stop for _, stop, _, _ in placed), True)


def _from_both_ends(
    tree: Tree, sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]], capacity: int
) -> Arena | None:
    """Large ones in the order of time, each at the other end than the larger of the two that it is made of; then the
    rest. None where a large one does not fit.

    In a chain of large intermediates each meets its two neighbours alone, and so no more than two lie there at once.
    """
    made = {step.node: step for step in tree.steps}
    placed: list[Placed] = []
    places: dict[int, int] = {}
    for node in sorted(sizes, key=lambda node: lives[node]):
        if _SHARE * sizes[node] < capacity:
            continue
        gaps = [gap for gap in _gaps(placed, lives[node], capacity) if (gap[1] or 0) - gap[0] >= sizes[node]]
        if not gaps:
            return None
        larger = max(made[node].left, made[node].right, key=lambda child: sizes.get(child, 0))
        high = places.get(larger) == 0
        low = (gaps[-1][1] or 0) - sizes[node] if high else gaps[0][0]
        _place(placed, places, node, low, sizes[node], lives[node])
    return _by_size(sizes, lives, placed, places)


def _gaps(
    placed: list[Placed], life: tuple[int, int], capacity: int | None
) -> list[tuple[int, int | None]]:
    """Free bytes during a life, from low to high; without a `capacity` the last gap has no end."""
    low, found = 0, []
    for start, stop, first, last in placed:  # sorted by their first byte
        if first <= life[1] and life[0] <= last:
            if low < start:
                found.append((low, start))
            low = max(low, stop)
    return [*found, (low, capacity)]


def _place(
    placed: list[Placed], places: dict[int, int], node: int, low: int, size: int,
    life: tuple[int, int],
) -> None:  # fmt: skip
    places[node] = low
    insort(placed, (low, low + size, *life))


def least(tree: Tree, item: Mapping[int, int], once: Collection[int]) -> int:
    """Bytes that are alive at once, at most: what an arena takes at least."""
    sizes = _sizes(tree, item)
    lives = _lives(tree, sizes, once)
    change = [0] * (len(tree.steps) + 2)
    for node, (born, dies) in lives.items():
        change[born] += sizes[node]
        change[dies + 1] -= sizes[node]
    most = now = 0
    for each in change:
        now += each
        most = max(most, now)
    return most


def _in_turn(sizes: Mapping[int, int]) -> Arena:
    places, end = {}, 0
    for node, size in sizes.items():
        places[node] = end
        end += size
    return Arena(places, end, False)


def _lives(tree: Tree, sizes: Mapping[int, int], once: Collection[int]) -> dict[int, tuple[int, int]]:
    """The first and the last step at which each intermediate must be there; steps in the order in which they run."""
    order = ordered(tree, once)
    at = {step.node: place for place, step in enumerate(order)}
    taken = tree.consumers()
    lives = {}
    for node in sizes:
        last = at[taken[node].node]
        if node in once and taken[node].node not in once:
            last = len(order) - 1
        lives[node] = (at[node], last)
    return lives


def ordered(tree: Tree, once: Collection[int]) -> list[Step]:
    """Steps as they run: first those of no slice."""
    return [step for step in tree.steps if step.node in once] + [step for step in tree.steps if step.node not in once]


def _sizes(tree: Tree, item: Mapping[int, int]) -> dict[int, int]:
    """Bytes of each intermediate."""
    steps = [step.node for step in tree.steps if step.node != tree.root]
    return {node: _aligned(tree.size(node) * item[node]) for node in steps}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

"""Tensors in one piece of memory, by their lives: two whose lives overlap get places apart, others may share.

The largest are placed first, each as low as its neighbours in time allow (Y. Pisarchyk, J. Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020: greedy by size).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

ALIGNMENT = 256  # bytes, as CUDA's allocations have
Life = tuple[int, int]  # the first and the last step that need a tensor
Placed = tuple[int, int, int, int]  # first byte, past the last, and the life


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def most_alive(sizes: Mapping[int, int], lives: Mapping[int, Life]) -> int:
    """Bytes that are alive at once, at most."""
    change: dict[int, int] = {}
    for each, (born, dies) in lives.items():
        change[born] = change.get(born, 0) + sizes[each]
        change[dies + 1] = change.get(dies + 1, 0) - sizes[each]
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def place_by_size(
    sizes: Mapping[int, int], lives: Mapping[int, Life], placed: list[Placed], places: dict[int, int]
) -> int:
    """Add to `places` every tensor that has none, around those that are `placed`. Returns the bytes of all."""
    for each in sorted(sizes, key=lambda each: (-sizes[each], lives[each])):
        if each not in places:
            found = gaps(placed, lives[each], None)
            low = next(low for low, high in found if high is None or high - low >= sizes[each])
            place(placed, places, each, low, sizes[each], lives[each])
    return max((stop for _, stop, _, _ in placed), default=0)


def gaps(placed: list[Placed], life: Life, capacity: int | None) -> list[tuple[int, int | None]]:
    """Free bytes during a life, from low to high; without a `capacity` the last gap has no end."""
    low, found = 0, []
    for start, stop, first, last in placed:  # sorted by their first byte
        if first <= life[1] and life[0] <= last:
            if low < start:
                found.append((low, start))
            low = max(low, stop)
    return [*found, (low, capacity)]


def place(placed: list[Placed], places: dict[int, int], each: int, low: int, size: int, life: Life) -> None:
    places[each] = low
    insort(placed, (low, low + size, *life))

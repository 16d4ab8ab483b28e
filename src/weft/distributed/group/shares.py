"""Which slices each rank takes: so many that all ranks are predicted to end together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Pace(NamedTuple):
    """What a rank is predicted to take, in seconds: for a slice, and once for what all slices share."""

    slice: float
    once: float = 0.0


def shares(numbers: Sequence[int], paces: Sequence[Pace]) -> list[list[int]]:
    """The numbers for each rank, in order and without gaps; `paces` are those of the ranks.

    Each next one goes to the rank that would be done with it first, the lower rank where that is a tie; so the last
    rank to end ends as early as possible. Slices that follow one another add to the same part of a result: a rank's
    share is therefore one stretch of them. A rank to which nothing goes does not pay `once`.
    """
    counts = [0] * len(paces)
    turns = [(pace.once + pace.slice, rank) for rank, pace in enumerate(paces)]
    heapq.heapify(turns)
    for _ in numbers:
        _, rank = turns[0]
        counts[rank] += 1
        pace = paces[rank]
        heapq.heapreplace(turns, (pace.once + (counts[rank] + 1) * pace.slice, rank))
    found, at = [], 0
    for count in counts:
        found.append(list(numbers[at : at + count]))
        at += count
    return found

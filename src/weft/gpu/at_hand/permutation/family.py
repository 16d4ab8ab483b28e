"""Permutations at hand: compiled once for a handful of structures, they move tensors of any rank and extents.

Asked by `planner.at_hand` alone: the family permute is what is made to measure.
"""

from __future__ import annotations

from weft.gpu.at_hand.permutation.cost import predict
from weft.gpu.at_hand.permutation.launch import HandPermuteLaunch, structures
from weft.gpu.at_hand.permutation.schedule import NAME, HandPermuteSchedule, schedule, too_long
from weft.gpu.common.launch import MOST_PROGRAMS
from weft.gpu.permute import family as permute
from weft.gpu.permute.words import in_words
from weft.planner.schedule import Candidates, Target
from weft.spec.permutation import Permutation

__all__ = ["NAME", "HandPermuteSchedule", "build", "predict", "schedules", "structures", "supports"]


def supports(permutation: Permutation, target: Target) -> str | None:
    if (reason := permute.supports(permutation, target)) is not None:
        return reason
    if too_long(permutation):
        return "indices or strides do not fit into 32 bits"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    found = schedule(in_words(permutation), target)
    if found.programs > MOST_PROGRAMS:
        return Candidates((), ("a grid holds at most 2^31 - 1 blocks",))
    return Candidates((found,))


def build(permutation: Permutation, schedule: HandPermuteSchedule, target: Target) -> HandPermuteLaunch:
    return HandPermuteLaunch(permutation, schedule, target)

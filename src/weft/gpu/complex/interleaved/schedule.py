"""The tiles that a transfer may move: those of `permute`, over elements of 8 or 16 bytes."""

from __future__ import annotations

import math

from weft.gpu.common.launch import MOST_PROGRAMS
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.permute.schedule import PermuteSchedule, programs, tilings
from weft.planner.schedule import Candidates

NAME = "interleaved"

WIDE_BLOCK = 32768  # bytes of X that eight warps move, less than that four


def candidates(transfer: Transfer) -> Candidates:
    permutation = transfer.permutation
    found: dict[PermuteSchedule, None] = {}
    for axes in tilings(permutation):
        size = math.prod(axis.tile for axis in axes) * permutation.x.dtype.itemsize
        schedule = PermuteSchedule(axes, 8 if size >= WIDE_BLOCK else 4, family=NAME)
        if programs(permutation, schedule) <= MOST_PROGRAMS:
            found[schedule] = None
    return Candidates(tuple(found), () if found else ("a grid holds at most 2^31 - 1 blocks",))

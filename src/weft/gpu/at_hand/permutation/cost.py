"""Predicted time of a permutation at hand: instructions, what memory moves with sectors taken in part, a launch."""

from __future__ import annotations

import math

from weft.gpu.at_hand.permutation.schedule import HandPermuteSchedule, rooms, run_bytes
from weft.gpu.common.hardware import LINE, SECTOR, sm_count
from weft.gpu.common.tiling import A, C, D
from weft.gpu.permute.cost import CLOCK, COPY_RATE, LAUNCH, LOAD_SECONDS
from weft.gpu.permute.words import in_words
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation

RESIDENT = 4  # programs on an SM
# Instructions of a thread, of the machine code for sm_90: for each vector that it moves; and for each index that it
# takes apart, times the modes that there is room for. It has all indices along one side of a tile, few along the other.
PER_VECTOR, PER_DIGIT, FEW = 20.0, 12.0, 4
SCHEDULERS = 4  # of an SM, each of which issues one instruction of a warp in a cycle


def predict(permutation: Permutation, schedule: HandPermuteSchedule, target: Target) -> float:
    """Seconds."""
    words, sms = in_words(permutation), sm_count(target)
    moved = cycles = 0.0
    for tensor, layout in ((A, words.x), (C, words.c), (D, words.d)):
        if layout is None:
            continue
        size = layout.dtype.itemsize
        run = run_bytes(words, A if tensor == A else D, schedule, size)
        distinct = size * math.prod([mode.extent for mode in words.modes if mode.strides[tensor]])
        moved += distinct * max(1.0, SECTOR / run)
        width = size * schedule.vectors[tensor]
        cycles += size * words.size * max(1 / (32 * width), 1 / min(LINE, run))
    tile = math.prod([group.tile for group in schedule.groups])
    vectors = tile / (32 * schedule.warps * max(schedule.vectors))  # of a thread
    issued = schedule.warps * (PER_VECTOR * vectors + PER_DIGIT * max(rooms(schedule)[1:]) * (vectors + FEW))
    issue = max(schedule.programs, 1) * issued / (SCHEDULERS * sms * CLOCK)
    waves = math.ceil(max(schedule.programs, 1) / (sms * RESIDENT))
    loads = waves * LOAD_SECONDS * RESIDENT * tile * words.d.dtype.itemsize / 16384
    pipes = (moved / COPY_RATE, cycles / (sms * CLOCK), loads, issue)
    return LAUNCH + math.hypot(*pipes)

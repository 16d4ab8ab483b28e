"""Predicted time of a permutation at hand: what memory moves, sectors taken in part included, and a launch."""

from __future__ import annotations

import math

from weft.gpu.at_hand.permutation.schedule import HandPermuteSchedule, run_bytes
from weft.gpu.common.hardware import LINE, SECTOR, sm_count
from weft.gpu.common.tiling import A, C, D
from weft.gpu.permute.cost import CLOCK, COPY_RATE, LAUNCH, LOAD_SECONDS
from weft.gpu.permute.words import in_words
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation

RESIDENT = 4  # programs on an SM


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
    waves = math.ceil(max(schedule.programs, 1) / (sms * RESIDENT))
    tile_bytes = words.d.dtype.itemsize * math.prod([group.tile for group in schedule.groups])
    pipes = (moved / COPY_RATE, cycles / (sms * CLOCK), waves * LOAD_SECONDS * RESIDENT * tile_bytes / 16384)
    return LAUNCH + math.hypot(*pipes)

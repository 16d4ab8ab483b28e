"""How many different elements a strided tensor holds: what must be read however often each is used."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_ENUMERATED = 1 << 22  # offsets: up to here they are listed where no rule counts them


def distinct_elements(extents: Sequence[int], strides: Sequence[int]) -> int:
    """The number of different offsets ``sum(index * stride)`` over all indices; strides count elements.

    A stride of 0 (an expanded mode) adds nothing, a sliding window counts each element once. The count is exact for
    nested and for sliding modes, and for any other overlap up to 4 Mi indices; beyond that it is a lower bound.
    """
    if 0 in extents:
        return 0
    steps = sorted((s, e) for e, s in zip(extents, strides, strict=True) if e > 1 and s != 0)
    if not steps:
        return 1
    within, reach = 1, 0  # distinct offsets of one block, and its last offset
    (grain, blocks), *rest = steps  # blocks lie `grain` apart
    for stride, extent in rest:
        if stride % grain == 0 and stride <= blocks * grain:  # the same grid of blocks, made longer
            blocks += (extent - 1) * (stride // grain)
        elif stride > reach + (blocks - 1) * grain:  # past the end of all blocks: they become one block
            within, reach = within * blocks, reach + (blocks - 1) * grain
            grain, blocks = stride, extent
        elif math.prod(e for _, e in steps) <= _ENUMERATED:
            return _listed(steps)
        # else: leave the mode out; what the others reach is there in any case
    return within * blocks


def _listed(steps: Sequence[tuple[int, int]]) -> int:
    offsets = np.zeros(1, dtype=np.int64)
    for stride, extent in steps:
        offsets = np.unique(offsets[:, None] + stride * np.arange(extent))
    return int(offsets.size)

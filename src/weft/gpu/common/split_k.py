"""A program's part of a sum that is split, see `splits`. Device code, inlined everywhere."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def range_start(number, STREAM_K: tl.constexpr):
    """The first step of a work range."""
    return number * STREAM_K.base + tl.minimum(number, STREAM_K.longer)


@triton.jit
def range_of(step, STREAM_K: tl.constexpr):
    """The work range that has a step."""
    LONGER: tl.constexpr = STREAM_K.longer * (STREAM_K.base + 1)
    short = STREAM_K.longer + (step - LONGER) // STREAM_K.base
    return tl.where(step < LONGER, step // (STREAM_K.base + 1), short)


@triton.jit
def splits_of(block, STREAM_K: tl.constexpr):
    """How many partials the sum of an output tile has."""
    first = block // STREAM_K.n_tiles * STREAM_K.steps
    return range_of(first + STREAM_K.steps - 1, STREAM_K) - range_of(first, STREAM_K) + 1


@triton.jit
def split_of_tile(work_tile, number, STREAM_K: tl.constexpr):
    """The share of a work range in a work tile: the number of its part of the sum, its first step, and how many
    steps."""
    before = work_tile * STREAM_K.steps
    first = tl.maximum(range_start(number, STREAM_K) - before, 0)
    end = tl.minimum(range_start(number + 1, STREAM_K) - before, STREAM_K.steps)
    return number - range_of(before, STREAM_K), first, end - first

"""Shares of split sums that are not alike: fewer of the last block, or all sums cut end to end.

Where the last block of rows takes less time, it may have *fewer* and longer shares than others.

Where blocks of D are few and do not go into the number of processors, shares of whole sums leave some of these without
work. In a *stream* all sums lie end to end and are cut into equal portions, one for each program, or for each worker
that has a ring of its own: a portion ends in the middle of one sum, and the next one begins there (Stream-K: M. Osama
and others, "Stream-K: Work-Centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP
2023). A sum then has a share for each portion that it meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl


class TailSplits(NamedTuple):
    """Shares of the sum of the last block, where those are fewer than of others; 0 where not."""

    shares: int
    steps: int  # in each of them


class StreamK(NamedTuple):
    """Tasks of so many steps, and the portions that they are cut into."""

    steps: int  # of each task
    base: int  # of each portion
    longer: int  # portions, the first ones, that have one more
    abreast: int  # blocks of D that a task is of


def stream(tasks: int, steps: int, portions: int, abreast: int) -> StreamK:
    return StreamK(steps, *divmod(tasks * steps, portions), abreast)


def most_splits(tasks: int, cut: StreamK) -> int:
    """Portions that one task meets."""

    def portion(step: int) -> int:
        short = step - cut.longer * (cut.base + 1)
        return step // (cut.base + 1) if short < 0 else cut.longer + short // cut.base

    return max(portion((task + 1) * cut.steps - 1) - portion(task * cut.steps) + 1 for task in range(tasks))


def split_counts(steps: int, tiles: int, sms: int, fills: Sequence[int], least_steps: int) -> list[int]:
    """Numbers of equal parts of every sum with which `tiles` output tiles fill `sms` SMs so many times; none of the
    parts is empty, and none of fewer than `least_steps` steps along k."""
    found = []
    for wanted in dict.fromkeys([-(-fill * sms // max(tiles, 1)) for fill in fills]):
        part = -(-steps // wanted)
        if part >= least_steps and -(-steps // part) > 1:
            found.append(-(-steps // part))
    return found


@triton.jit
def split_with_tail(
    program, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, STEPS: tl.constexpr, TAIL_SPLITS: tl.constexpr
):
    """A program's block of D, the number of its share, of how many, and its steps. The last programs have none of the
    last block."""
    OTHERS: tl.constexpr = BLOCKS - 1
    over = program - TAIL_SPLITS.shares * BLOCKS
    share = tl.where(over < 0, program // BLOCKS, TAIL_SPLITS.shares + over // OTHERS)
    block = tl.where(over < 0, program % BLOCKS, over % OTHERS)
    last = block == OTHERS
    return block, share, tl.where(last, TAIL_SPLITS.shares, SPLITS), tl.where(last, TAIL_SPLITS.steps, STEPS)


@triton.jit
def range_start(number, STREAM_K: tl.constexpr):
    """The first step of a portion."""
    return number * STREAM_K.base + tl.minimum(number, STREAM_K.longer)


@triton.jit
def range_of(step, STREAM_K: tl.constexpr):
    """Which portion has a step."""
    LONGER: tl.constexpr = STREAM_K.longer * (STREAM_K.base + 1)
    short = STREAM_K.longer + (step - LONGER) // STREAM_K.base
    return tl.where(step < LONGER, step // (STREAM_K.base + 1), short)


@triton.jit
def splits_of(block, STREAM_K: tl.constexpr):
    """How many shares the sum of a block of D has."""
    first = block // STREAM_K.abreast * STREAM_K.steps
    return range_of(first + STREAM_K.steps - 1, STREAM_K) - range_of(first, STREAM_K) + 1


@triton.jit
def split_of_tile(task, number, STREAM_K: tl.constexpr):
    """What a portion has of a task: the number of the share, its first step, and how many they are."""
    before = task * STREAM_K.steps
    first = tl.maximum(range_start(number, STREAM_K) - before, 0)
    end = tl.minimum(range_start(number + 1, STREAM_K) - before, STREAM_K.steps)
    return number - range_of(before, STREAM_K), first, end - first

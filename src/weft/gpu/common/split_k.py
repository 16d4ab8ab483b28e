"""Shares of split sums that are not alike: fewer of the last block, or all sums cut end to end.

Where the last block of rows takes less time, it may have *fewer* and longer shares than others.

Where blocks of D are few and do not go into the number of processors, shares of whole sums leave some of these without
work. In a *stream* all sums lie end to end and are cut into equal portions, one for each program, or for each worker
that has a ring of its own: a portion ends in the middle of one sum, and the next one begins there (Stream-K: M. Osama
and others, "Stream-K: Work-Centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP
2023). A sum then has a share for each portion that it meets.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Fewer(NamedTuple):
    """Shares of the sum of the last block, where those are fewer than of others; 0 where not."""

    shares: int
    steps: int  # in each of them


class Stream(NamedTuple):
    """Tasks of so many steps, and the portions that they are cut into."""

    steps: int  # of each task
    base: int  # of each portion
    longer: int  # portions, the first ones, that have one more
    abreast: int  # blocks of D that a task is of


def stream(tasks: int, steps: int, portions: int, abreast: int) -> Stream:
    return Stream(steps, *divmod(tasks * steps, portions), abreast)


def most_shares(tasks: int, cut: Stream) -> int:
    """Portions that one task meets."""

    def portion(step: int) -> int:
        short = step - cut.longer * (cut.base + 1)
        return step // (cut.base + 1) if short < 0 else cut.longer + short // cut.base

    return max(portion((task + 1) * cut.steps - 1) - portion(task * cut.steps) + 1 for task in range(tasks))


@triton.jit
def part_with_fewer(program, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, STEPS: tl.constexpr, FEWER: tl.constexpr):
    """A program's block of D, the number of its share, of how many, and its steps. The last programs have none of the
    last block."""
    OTHERS: tl.constexpr = BLOCKS - 1
    over = program - FEWER.shares * BLOCKS
    share = tl.where(over < 0, program // BLOCKS, FEWER.shares + over // OTHERS)
    block = tl.where(over < 0, program % BLOCKS, over % OTHERS)
    last = block == OTHERS
    return block, share, tl.where(last, FEWER.shares, SPLITS), tl.where(last, FEWER.steps, STEPS)


@triton.jit
def portion_start(number, STREAM: tl.constexpr):
    """The first step of a portion."""
    return number * STREAM.base + tl.minimum(number, STREAM.longer)


@triton.jit
def portion_of(step, STREAM: tl.constexpr):
    """Which portion has a step."""
    LONGER: tl.constexpr = STREAM.longer * (STREAM.base + 1)
    short = STREAM.longer + (step - LONGER) // STREAM.base
    return tl.where(step < LONGER, step // (STREAM.base + 1), short)


@triton.jit
def shares_of(block, STREAM: tl.constexpr):
    """How many shares the sum of a block of D has."""
    first = block // STREAM.abreast * STREAM.steps
    return portion_of(first + STREAM.steps - 1, STREAM) - portion_of(first, STREAM) + 1


@triton.jit
def part_of_task(task, number, STREAM: tl.constexpr):
    """What a portion has of a task: the number of the share, its first step, and how many they are."""
    before = task * STREAM.steps
    first = tl.maximum(portion_start(number, STREAM) - before, 0)
    end = tl.minimum(portion_start(number + 1, STREAM) - before, STREAM.steps)
    return number - portion_of(before, STREAM), first, end - first

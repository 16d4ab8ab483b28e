"""Long sums laid end to end and cut into equal portions, one for each worker, wherever that cuts a sum.

Where blocks of D are few and do not go into the number of processors, shares of whole sums leave some of these without
work. A portion instead ends in the middle of one sum and the next one begins there, so that all have as many steps
(M. Osama, D. Merrill, C. Cecka, M. Garland and J. D. Owens, "Stream-K: Work-Centric Parallel Decomposition for Dense
Matrix-Matrix Multiplication on the GPU", PPoPP 2023). A sum then has a share for each portion that it meets.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


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

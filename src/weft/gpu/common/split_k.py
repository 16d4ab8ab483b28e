"""How sums are split over programs: in equal parts, with fewer parts of the last output tile, or by Stream-K.

Split-K: where output tiles are too few to fill the device, several programs share the sum of each. Each leaves a
*partial* tile in a workspace, and a second kernel adds them in a fixed order.

Where the last row of output tiles takes less time, its sums may have fewer and longer parts than others.

Where output tiles are few and no divisor of the number of SMs, equal parts of whole sums leave some SMs without work.
Stream-K lays all sums end to end and divides them into equal work ranges, one for each program, or for each consumer
with a pipeline of its own. A range ends in the middle of one sum, and the next begins there. The sum of an output tile
then has a partial for each range that it meets (M. Osama and others, "Stream-K: Work-Centric Parallel Decomposition for
Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl


class TailSplits(NamedTuple):
    """Parts of the sum of the last output tile, where those are fewer than of others; 0 where not."""

    splits: int
    steps: int  # along k, in each of them


class StreamK(NamedTuple):
    """Work tiles of so many steps along k, and the work ranges that these are divided into."""

    steps: int  # of each work tile
    base: int  # steps of each range
    longer: int  # ranges, the first ones, that have one step more
    n_tiles: int  # output tiles in a work tile, next to each other along n


def stream(tiles: int, steps: int, ranges: int, n_tiles: int) -> StreamK:
    """Stream-K over so many work tiles of so many steps along k."""
    return StreamK(steps, *divmod(tiles * steps, ranges), n_tiles)


def most_splits(tiles: int, ranges: StreamK) -> int:
    """The most work ranges that one of so many work tiles meets."""

    def range_with(step: int) -> int:
        short = step - ranges.longer * (ranges.base + 1)
        return step // (ranges.base + 1) if short < 0 else ranges.longer + short // ranges.base

    met = [range_with((at + 1) * ranges.steps - 1) - range_with(at * ranges.steps) + 1 for at in range(tiles)]
    return max(met)


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
    """A program's output tile, the number of its part of the sum, of how many, and its steps along k.

    The last programs have nothing of the last output tile.
    """
    OTHERS: tl.constexpr = BLOCKS - 1
    over = program - TAIL_SPLITS.splits * BLOCKS
    share = tl.where(over < 0, program // BLOCKS, TAIL_SPLITS.splits + over // OTHERS)
    block = tl.where(over < 0, program % BLOCKS, over % OTHERS)
    last = block == OTHERS
    return block, share, tl.where(last, TAIL_SPLITS.splits, SPLITS), tl.where(last, TAIL_SPLITS.steps, STEPS)


@triton.jit
def range_start(number, STREAM_K: tl.constexpr):
    """The first step of a work range."""
    return number * STREAM_K.base + tl.minimum(number, STREAM_K.longer)


@triton.jit
def range_of(step, STREAM_K: tl.constexpr):
    """Which work range has a step."""
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

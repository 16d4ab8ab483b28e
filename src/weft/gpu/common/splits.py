"""How sums are split over programs: in equal parts, or by Stream-K.

Split-K: where output tiles are too few to fill the device, several programs share the sum of each. Each leaves a
*partial* tile in a workspace, and a second kernel adds them in a fixed order.

Where output tiles are few and no divisor of the number of SMs, equal parts of whole sums leave some SMs without work.
Stream-K lays all sums end to end and divides them into equal work ranges, one for each program, or for each consumer
with a pipeline of its own. A range ends in the middle of one sum, and the next begins there. The sum of an output tile
then has a partial for each range that it meets (M. Osama and others, "Stream-K: Work-Centric Parallel Decomposition for
Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from weft.planner.schedule import Target
from weft.spec import Contraction

# Where bits are not to depend on extents: programs that the sums of one row are to have, output elements of each, and
# the fewest products of a run, or of one where rows are short. None of them is the device's, so that no bit is.
PROGRAMS, WIDTH, FEWEST, OF_SHORT = 64, 64, 1024, 256
SHORT = 4 * WIDTH
RUN_DEPTH = {1: 128, 2: 64, 4: 32, 8: 16}  # products that a run is a multiple of, by their bytes


def product_bytes(contraction: Contraction) -> int:
    """Bytes of an element as matrix units take it."""
    arithmetic = contraction.arithmetic
    return 8 if arithmetic.accumulate is torch.float64 else arithmetic.product.itemsize


def run_count(contraction: Contraction) -> int:
    """Runs of each sum where bits are not to depend on extents: programs may share them, where rows are few."""
    tiles = -(-contraction.invariant // WIDTH)
    fewest = OF_SHORT if contraction.invariant < SHORT else FEWEST
    return max(min(-(-PROGRAMS // tiles), contraction.k // fewest), 1)


def runs_of(contraction: Contraction, depth: int) -> int:
    """Runs of each sum, of whole tiles of so many products along k."""
    steps = -(-contraction.k // depth)
    return -(-steps // -(-steps // run_count(contraction)))


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


def split_over(
    contraction: Contraction, schedule: Any, tiles: int, target: Target, full: int, fills: Sequence[int], least: int
) -> Iterator[Any]:
    """The schedule with every sum split over programs, where so many output tiles leave SMs without `full` of them.

    The parts of all sums fill the device so many times; no part is empty, and none has fewer than `least` steps.
    """
    sms, steps = max(target.processors, 8), math.prod([axis.blocks for axis in schedule.k])
    if tiles < full * sms:
        for wanted in dict.fromkeys([-(-fill * sms // max(tiles, 1)) for fill in fills]):
            part = -(-steps // wanted)
            if part >= least and -(-steps // part) > 1:
                yield with_splits(contraction, schedule, tiles, -(-steps // part))


def with_splits(contraction: Contraction, schedule: Any, tiles: int, splits: int) -> Any:
    """The schedule with so many parts of every sum, and the workspace that they need."""
    held = math.prod(schedule.computed) * contraction.arithmetic.accumulate.itemsize
    return replace(schedule, splits=splits, workspace_bytes=splits * tiles * held)

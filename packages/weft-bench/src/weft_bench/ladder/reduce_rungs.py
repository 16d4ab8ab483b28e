"""The rungs of sums of rows, and of a histogram."""

from __future__ import annotations

import torch

from weft.errors import DTypeError
from weft_bench.ladder.problems import Histogram, Sums
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Rung, Size

USUAL = 8192

SUMS = (
    Rung("neighbours", "reduce.neighbours", Prediction(1.6, "eight steps with a barrier, and 32 loads per thread")),
    Rung("halves", "reduce.halves", Prediction(1.3, "the same steps, from the fourth on by one warp")),
    Rung("shuffles", "reduce.shuffles", Prediction(1.1, "no barriers: only loads are waited for")),
    Rung("weft", "reduce.weft_call", Prediction(1.05, "one pass at the speed of memory"), tool="weft"),
    Rung("torch", "reduce.library", Prediction(1.05, "one pass at the speed of memory"), tool="torch"),
)  # fmt: skip

HISTOGRAM = (
    Rung("atomics", "reduce.atomics", Prediction(30, "the L2 executes an addition to an address every few cycles")),
    Rung("bins of a block", "reduce.block_bins", Prediction(2, "shared memory executes 32 additions in a few cycles")),
    Rung("torch", "reduce.library", Prediction(3, "it copies, and finds the largest element first"),
         function="run_bincount", tool="torch"),
)  # fmt: skip


def _sums(size: Size, kind: str) -> Sums:
    _only(size, torch.float32)
    return Sums(size.extent or USUAL, size.extent or USUAL)


def _histogram(size: Size, kind: str) -> Histogram:
    _only(size, torch.int32)
    return Histogram((size.extent or USUAL) ** 2)


def _only(size: Size, dtype: torch.dtype) -> None:
    if size.dtype not in (None, dtype):
        asked, only = (str(each).removeprefix("torch.") for each in (size.dtype, dtype))
        raise DTypeError(f"this flight is of {only}, not of {asked}")


LADDER = Ladder(
    "reduce",
    "Many numbers to few: sums of rows by trees and shuffles, and a histogram by atomic additions.",
    (
        Flight("sums", "The sum of each row of a matrix; the roof is a copy's rate, which what only reads can exceed.",
               _sums, SUMS),
        Flight("histogram", "How often each of 256 numbers occurs among random ones.", _histogram, HISTOGRAM),
    ),
    tiny=17,
)  # fmt: skip

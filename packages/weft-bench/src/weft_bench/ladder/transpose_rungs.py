"""The rungs of a transposition, in their order, for both orders of storage."""

from __future__ import annotations

import torch

from weft_bench.ladder.problems import Transposition
from weft_bench.ladder.published import transposition_kernel
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Rung, Size

USUAL = 16384

_WAITS = "8 kB on their way to an SM, where some 11 kB would keep the memory busy"

RUNGS = (
    Rung("thread an element", "transpose.by_reads",
         Prediction(3.4, "eight stores to each sector: the L2 is asked for 4.5 times the sectors of a copy")),
    Rung("diagonal tiles", "transpose.diagonal_tiles", Prediction(1.4, f"whole transactions; {_WAITS}"),
         (transposition_kernel("2.1"),)),
    Rung("one kernel", "transpose.one_kernel", Prediction(1.4, "the same accesses by half of the code"),
         (transposition_kernel("2.2", "2.1"),)),
    Rung("padded tiles", "transpose.padded_tiles", Prediction(1.4, f"fewer instructions, which did not bind; {_WAITS}"),
         (transposition_kernel("2.3", "2.2"),)),
    Rung("in place", "transpose.in_place", Prediction(1.2, "two tiles a block: twice the loads before a barrier"),
         (transposition_kernel("2.4", "2.3"),), kind="in place"),
    Rung("wide tiles", "transpose.wide_tiles", Prediction(1.05, "sixteen loads a thread on their way at once"),
         over="padded tiles"),
    Rung("weft in place", "transpose.weft_call", Prediction(1.1, "whole sectors on both sides, two tiles a program"),
         function="run_in_place", kind="in place", tool="weft", over="in place"),
    Rung("weft", "transpose.weft_call", Prediction(1.05, "whole sectors on both sides"), tool="weft",
         over="wide tiles"),
    Rung("copy", "transpose.copy", Prediction(1.0, "the roof is this rate"), kind="copy", tool="torch"),
)  # fmt: skip


def _rows(size: Size, kind: str) -> Transposition:
    return _matrix(size, kind, by_columns=False)


def _columns(size: Size, kind: str) -> Transposition:
    return _matrix(size, kind, by_columns=True)


def _matrix(size: Size, kind: str, by_columns: bool) -> Transposition:
    extent = size.extent or USUAL
    return Transposition(extent, extent, size.dtype or torch.float32, by_columns, kind)


LADDER = Ladder(
    "transpose",
    "A matrix and its transposed, from a thread for each element to the rate of a copy.",
    (
        Flight("rows", "Matrices stored by rows.", _rows, RUNGS),
        Flight("columns", "Matrices stored by columns: the same kernels on the same memory.", _columns, RUNGS),
    ),
    tiny=35,
)

"""The rungs of a transposition, in their order, for both orders of storage."""

from __future__ import annotations

from dataclasses import replace

import torch

from weft.errors import DTypeError
from weft_bench.ladder.problems import Transposition
from weft_bench.ladder.published import transposition_kernel
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Rung, Size

USUAL = 16384
PUBLISHED = 10000  # of the thesis's matrices

_WAITS = "8 kB in flight to an SM, while some 11 kB would keep the memory busy"

RUNGS = (
    Rung("thread an element", "transpose.by_reads",
         Prediction(3.4, "eight stores to each sector: the L2 is asked for 4.5 times the sectors of a copy")),
    Rung("diagonal tiles", "transpose.diagonal_tiles", Prediction(1.4, f"whole transactions; {_WAITS}")),
    Rung("one kernel", "transpose.one_kernel", Prediction(1.4, "the same accesses by half of the code")),
    Rung("padded tiles", "transpose.padded_tiles",
         Prediction(1.4, f"fewer instructions, which did not bind; {_WAITS}")),
    Rung("in place", "transpose.in_place", Prediction(1.2, "two tiles a block: twice the loads before a barrier"),
         kind="in place"),
    Rung("wide tiles", "transpose.wide_tiles", Prediction(1.05, "sixteen loads in flight per thread"),
         over="padded tiles"),
    Rung("weft in place", "transpose.weft_call", Prediction(1.1, "whole sectors on both sides, two tiles a program"),
         function="run_in_place", kind="in place", tool="weft", over="in place"),
    Rung("weft", "transpose.weft_call", Prediction(1.05, "whole sectors on both sides"), tool="weft",
         over="wide tiles"),
    Rung("copy", "transpose.copy", Prediction(1.0, "the roof is this rate"), kind="copy", tool="torch"),
)  # fmt: skip

_DOUBLE = "elements are twice as wide: 16 kB in flight to an SM keep the memory busy"


def _double(name: str, module: str, number: str, before: str | None = None, kind: str = "") -> Rung:
    """A kernel of the dense thesis in the type that it was published in."""
    published = (transposition_kernel(number, before),)
    return Rung(name, f"transpose.{module}", Prediction(1.1, _DOUBLE), published, kind=kind)


FP64 = (
    _double("diagonal tiles", "diagonal_tiles", "2.1"),
    _double("one kernel", "one_kernel", "2.2", "2.1"),
    _double("padded tiles", "padded_tiles", "2.3", "2.2"),
    _double("in place", "in_place", "2.4", "2.3", "in place"),
    *(replace(rung, over="padded tiles" if rung.name == "weft" else rung.over) for rung in RUNGS[-3:]),
)


def _rows(size: Size, kind: str) -> Transposition:
    return _matrix(size, kind, by_columns=False)


def _columns(size: Size, kind: str) -> Transposition:
    return _matrix(size, kind, by_columns=True)


def _doubles(size: Size, kind: str) -> Transposition:
    if size.dtype not in (None, torch.float64):
        raise DTypeError(f"flight 'fp64' is of float64, not of {str(size.dtype).removeprefix('torch.')}")
    extent = size.extent or PUBLISHED
    return Transposition(extent, extent, torch.float64, False, kind)


def _matrix(size: Size, kind: str, by_columns: bool) -> Transposition:
    extent = size.extent or USUAL
    return Transposition(extent, extent, size.dtype or torch.float32, by_columns, kind)


LADDER = Ladder(
    "transpose",
    "A matrix and its transpose, from a thread for each element to the rate of a copy.",
    (
        Flight("rows", "Matrices stored by rows.", _rows, RUNGS),
        Flight("columns", "Matrices stored by columns: the same kernels on the same memory.", _columns, RUNGS),
        Flight("fp64", "Double precision, as the kernels of the dense thesis were published.", _doubles, FP64),
    ),
    tiny=35,
)

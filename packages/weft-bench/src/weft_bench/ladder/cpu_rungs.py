"""The rungs of a product of matrices on one thread of a CPU, in their order."""

from __future__ import annotations

import torch

from weft.errors import DTypeError
from weft_bench.ladder.problems import LadderContraction, product
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Rung, Size

USUAL = 512

RUNGS = (
    Rung("scalar", "cpu.scalar", Prediction(128, "one addition in four cycles, not two of 16 numbers in each cycle"),
         tool="numba"),
    Rung("vector", "cpu.vector",
         Prediction(4, "two loads and a store per product, from the second-level cache: two cycles, not half a one"),
         tool="numba"),
    Rung("blocked", "cpu.blocked", Prediction(1.5, "five loads and a store for four products: three cycles"),
         tool="numba"),
    Rung("weft", "multiply.weft_call", Prediction(1.0, "the cost model chooses the library here"), tool="weft"),
    Rung("torch", "multiply.library", Prediction(1.0, "the roof is what this library reaches"), tool="torch"),
)  # fmt: skip


def _single(size: Size, kind: str) -> LadderContraction:
    if size.dtype not in (None, torch.float32, torch.float64):
        asked = str(size.dtype).removeprefix("torch.")
        raise DTypeError(f"flight 'one thread' is of float32 or float64, not of {asked}")
    extent = size.extent or USUAL
    return product(extent, extent, extent, size.dtype or torch.float32)


LADDER = Ladder(
    "cpu",
    "A product of two square matrices on one thread of a CPU, from three loops to the vendor's library.",
    (Flight("one thread", "Rows, vectors, caches. These rungs are timed without a GPU, too.", _single, RUNGS),),
    tiny=40,
    on="cpu",
)

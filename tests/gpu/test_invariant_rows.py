"""`invariant=` on a GPU: large contractions, which are packed and read by TMA, have the bits of their parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft_bench.cases import tccg
from weft_bench.compile_ahead import _described
from weft_bench.peers.registry import invariant_modes

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
TYPES = {
    "fp16": ((HALF, HALF, SINGLE), {}),
    "bf16": ((BRAIN, BRAIN, BRAIN), {}),
    "tf32": ((SINGLE, SINGLE, SINGLE), {"precision": "tf32"}),
    "fp64": ((DOUBLE, DOUBLE, DOUBLE), {}),
}
CASES = (2, 9, 10, 13, 14, 17, 19, 20, 25, 31)  # of TCCG: packed or not, in runs, of few rows
H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
MODERATE = 1.35  # times as long as the model lets a contraction take that it lets take bits which depend on extents


@pytest.mark.gpu
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("number", CASES)
def test_parts_have_the_bits_of_the_whole(number: int, types: str) -> None:
    dtypes, options = TYPES[types]
    case = replace(tccg()[number - 1], dtypes=dtypes)
    shapes = [[-(-extent // 2) if types == "fp64" else extent for extent in shape] for shape in case.shapes]
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
    rows = invariant_modes(case)
    words = {"invariant": rows, "out_dtype": dtypes[2], "specialize": "now", **options}
    whole = weft.contract(case.equation, a, b, **words)
    first, output = case.notation.inputs[0], case.notation.output
    for label in rows:
        extent = a.shape[first.index(label)]
        for begin, length in ((0, 1), (extent // 3, 5), (1, extent - 2)):
            part = a.narrow(first.index(label), begin, length)
            found = weft.contract(case.equation, part, b, **words)
            assert torch.equal(found, whole.narrow(output.index(label), begin, length)), (label, begin, length)


@pytest.mark.parametrize("number", [1, 20, 25, 28, 31, 37, 48])
def test_they_take_little_longer_by_the_model(number: int) -> None:
    """On a Hopper GPU, whatever modes k has and wherever they lie."""
    plain, invariant = _described(replace(tccg()[number - 1], dtypes=(HALF, HALF, SINGLE)), invariant=True)
    times = [choose(each, "triton", H200).best.seconds for each in (plain, invariant)]
    assert times[1] < MODERATE * times[0]

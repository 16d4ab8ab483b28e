"""Products of halves in narrow tiles, of every family on a GPU: matrix units read rows of 32 and 64 bytes in them.

A tile of 32 columns of a second operand came out wrong in cascades on Hopper, from Triton 3.6. Small whole numbers are
exact in every order of sums.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest
import torch

import weft
from weft.planner.registry import FAMILIES

pytestmark = pytest.mark.gpu

EQUATIONS = ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "kn,mk->nm", "bmk,bkn->bmn"]
_NARROW, _SHALLOW = 32, 16


def is_narrow(schedule: Any) -> bool:
    tile = re.search(r"(\d+)x(\d+)x(\d+)", str(schedule))
    return bool(tile) and (min(int(tile[1]), int(tile[2])) <= _NARROW or int(tile[3]) <= _SHALLOW)  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("functions", [{}, {"b_fn": torch.relu, "epilogue": torch.abs}], ids=["plain", "functions"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("n", [16, 32, 40])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_narrow_tiles(equation: str, n: int, dtype: torch.dtype, functions: dict[str, Any]) -> None:
    draw = torch.Generator("cuda").manual_seed(n)
    extents = {"b": 3, "m": 264, "n": n, "k": 96}
    a, b = (
        torch.randint(-2, 3, [extents[label] for label in term], generator=draw, device="cuda").to(dtype)
        for term in equation.partition("->")[0].split(",")
    )
    plan = weft.plan(equation, a, b, backend="triton", **functions)
    contraction, target = plan.contraction, plan._request.target
    exact = torch.einsum(equation, a.double(), b.double().relu() if functions else b.double())
    exact = exact.abs() if functions else exact
    tried = 0
    for name in FAMILIES["triton"]:
        family: Any = import_module(name)
        if family.supports(contraction, target) is not None:
            continue
        for schedule in filter(is_narrow, family.schedules(contraction, target).schedules):
            out = torch.full(plan.shape, float("nan"), device="cuda", dtype=dtype)
            family.build(contraction, schedule, target)(a, b, None, out, 1.0, 0.0)
            assert torch.equal(out.double(), exact.to(dtype).double()), str(schedule)
            tried += 1
    assert tried


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("n", [8, 16, 24, 32, 40])
def test_calls_that_are_narrow(n: int, dtype: torch.dtype) -> None:
    """The kernels that serve unasked, of contractions and groups."""
    draw = torch.Generator("cuda").manual_seed(n)
    a, b = (torch.randint(-2, 3, s, generator=draw, device="cuda").to(dtype) for s in ((264, 96), (96, n)))
    exact = (a.double() @ b.double()).to(dtype)
    for specialize in ("never", "now"):
        assert torch.equal(weft.contract("mk,kn->mn", a, b, backend="triton", specialize=specialize), exact)
        assert torch.equal(weft.contract("mk,nk->mn", a, b.mT.contiguous(), backend="triton"), exact)
    for found in weft.grouped("mk,kn->mn", [(a, b), (a[:70], b)], backend="triton"):
        assert torch.equal(found, exact[: len(found)])

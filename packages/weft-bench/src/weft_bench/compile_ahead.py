"""The kernels of a suite, compiled by other processes before the suite comes to them.

What weft's plans will launch is known from the cases alone; compiling it takes longer than measuring it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from weft.errors import WeftError
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.target import target_of
from weft.plans.select import ServiceRequest, select
from weft.selftest.case import PermuteCase
from weft.testing import layout_strides
from weft.tune.compile_pool import Compiler
from weft_bench.cases import FUNCTIONS
from weft_bench.cases.everyday import EverydayCase
from weft_bench.cases.small import SmallCase
from weft_bench.entry import Entry
from weft_bench.everyday.calls import planned
from weft_bench.peers.registry import invariant_modes


@contextmanager
def compiling_ahead(
    entries: Sequence[Entry], device: torch.device, tune: str | None = None, invariant: bool = False
) -> Iterator[list[Future[str | None]]]:
    """Within, the kernels that weft needs for `entries` are being compiled in the background, on NVIDIA GPUs.

    Yields a future for each, of None or of what went wrong. With `invariant`, those of `weft-invariant` too.
    A kernel that is not ready when its case comes is compiled there; what is still open at the end is given up.
    """
    if device.type != "cuda" or tune == "measure":  # a tuner compiles for itself
        yield []
        return
    target = target_of("triton", device)
    with Compiler(target, "triton") as compiler:
        yield [compiler.submit(*task) for task in tasks(entries, target, tune, invariant)]


def tasks(
    entries: Sequence[Entry], target: Target, tune: str | None = None, invariant: bool = False
) -> Iterator[tuple[Description, Ranked]]:
    """The plans that weft will make for each entry; unsupported cases and matrices in place are left out."""
    for entry in entries:
        try:
            for described in _described(entry.case, invariant):
                yield described, select(ServiceRequest(described, "triton", target, tune=tune)).best
        except WeftError:
            continue


def _described(case: Any, invariant: bool = False) -> Sequence[Description]:
    """The contractions and permutations that plans for the case are made of; none for what is not planned here."""
    from weft.api.contract import plan
    from weft.api.permute import plan_permute

    if isinstance(case, EverydayCase):
        return _everyday(case)
    if isinstance(case, PermuteCase):
        if "in place" in case.tags:
            return []
        x = torch.empty(case.shape, dtype=case.dtype, device="meta")
        function = FUNCTIONS[case.fn] if case.fn else None
        # The oracle takes tensors on any device: what it is to do is described as it is for the others.
        moving: Any = plan_permute(x, case.equation, fn=function, out_dtype=case.out_dtype, backend="reference")
        return [moving.permutation]
    if isinstance(case, SmallCase):
        return []
    if case.add or "offset" in case.layouts or case.layouts[3] != "contiguous":
        return []  # meta tensors have no addresses by which C, D and what is not aligned could be told apart
    options = case.options()
    del options["alpha"], options["beta"]
    a, b = (
        meta(shape, dtype, layout, flag)
        for shape, dtype, layout, flag in zip(case.shapes, case.dtypes, case.layouts, case.conjugate, strict=False)
    )
    plain = plan(case.equation, a, b, backend="reference", **options).contraction
    rows = invariant_modes(case) if invariant else ()
    if not rows:
        return [plain]
    others = [case.extents[label] for label in case.notation.output if label not in rows]
    return [plain, replace(plain, invariant=math.prod(others))]


def _everyday(case: EverydayCase) -> Sequence[Description]:
    if case.task == "group" or case.count > 2 > len(case.steps) or "offset" in case.layouts:
        return []
    layouts = [*case.layouts, *["contiguous"] * len(case.terms)]
    tensors = [meta(shape, case.dtype, layout, False) for shape, layout in zip(case.shapes(), layouts, strict=False)]
    plans = planned(case, tensors, "now", backend="reference").plans
    return [plan.permutation if case.task == "move" else plan.contraction for plan in plans]


def meta(shape: tuple[int, ...], dtype: torch.dtype, layout: str, conjugated: bool) -> torch.Tensor:
    """A tensor that lies as an operand of a case does, without memory."""
    strides, _ = layout_strides(shape, layout)
    found = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return found.conj() if conjugated else found

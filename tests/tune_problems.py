"""Descriptions that the tests of tuning share."""

from __future__ import annotations

from typing import Any

import torch

import weft
from weft.oracle.problem import Problem
from weft.planner import validity
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.spec import Contraction
from weft.testing import poisoned
from weft_bench.cases import Case, operands

CPU = torch.device("cpu")


def contraction_of(case: Case) -> Contraction:
    """The canonical contraction that a call with this case's tensors makes."""
    return reference_plan(case).contraction


def reference_plan(case: Case) -> weft.Plan:
    """A plan of its own: one that is found again may have been made for another C or D."""
    validity.outdate()
    options = case.options()
    del options["alpha"], options["beta"]
    a, b, c = operands(case)
    place = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3]).tensor
    return weft.plan(case.equation, a, b, c=c, out=place, backend="reference", **options)


def described(equation: str, *shapes: tuple[int, ...], **options: Any) -> Contraction:
    """The canonical contraction of contiguous float32 operands."""
    dtype = options.pop("dtype", torch.float32)
    a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    return weft.plan(equation, a, b, backend="reference", **options).contraction


def choice_of(contraction: Any, backend: str = "cpu", target: Target | None = None) -> Choice:
    return choose(contraction, backend, target or target_of(backend, CPU))


def problem_of(contraction: Any) -> Problem:
    return Problem(contraction, CPU)

"""The way by torch's own operations: what it takes, says and allocates."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import weft
from cpu.problems import TARGET, Problem, operands
from weft.cpu import plain
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Contraction

EXTENTS = {"m": 8, "n": 9, "k": 10}


def contraction_of() -> Contraction:
    problem = Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS))
    return problem.contraction(torch.empty(8, 9))


def test_supports() -> None:
    contraction = contraction_of()
    assert plain.supports(contraction, TARGET) is None
    assert "cuda" in str(plain.supports(contraction, Target("cuda")))
    boolean = dataclasses.replace(contraction, a=contraction.a._replace(dtype=torch.bool))
    assert "bool" in str(plain.supports(boolean, TARGET))
    parts = dataclasses.replace(contraction, arithmetic=Arithmetic(torch.complex64, torch.float32))
    assert plain.supports(parts, TARGET) == "products in complex64 do not add up in float32"


def test_no_triton_function() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    function = TritonFunction(twice, "twice", ("x",), (torch.float32,))
    sentence = plain.supports(dataclasses.replace(contraction_of(), epilogue=function), TARGET)
    assert sentence == "twice is a Triton function; the CPU needs it written with torch operations"


def test_schedules_are_values_that_print_themselves() -> None:
    contraction = contraction_of()
    first, again = (plain.schedules(contraction, TARGET).schedules for _ in range(2))
    assert first == again
    assert str(first[0]) == f"torch: passes over whole tensors; workspace {(80 + 90 + 2 * 72) * 4 / 1024:.0f} KiB"
    assert 0 < plain.predict(contraction, first[0], TARGET) < 1  # type: ignore[arg-type]


def test_serves_empty_sums() -> None:
    p = weft.plan("mk,kn->mn", torch.ones(3, 0), torch.ones(0, 4), backend="cpu")
    assert p.schedule.family == "torch"
    assert "gett: a mode is empty" in str(p.explain())

"""The way by torch's own operations: what it takes, says and allocates."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import weft
from cpu.extended import Extended, check_exact
from cpu.problems import TARGET, Problem, operands
from weft.cpu import eager
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Contraction

EXTENTS = {"m": 8, "n": 9, "k": 10}


def contraction_of() -> Contraction:
    problem = Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS))
    return problem.contraction(torch.empty(8, 9))


def test_supports() -> None:
    contraction = contraction_of()
    assert eager.supports(contraction, TARGET) is None
    assert "cuda" in str(eager.supports(contraction, Target("cuda")))
    boolean = dataclasses.replace(contraction, a=contraction.a._replace(dtype=torch.bool))
    assert "bool" in str(eager.supports(boolean, TARGET))
    parts = dataclasses.replace(contraction, arithmetic=Arithmetic(torch.complex64, torch.float32))
    assert eager.supports(parts, TARGET) == "products in complex64 do not add up in float32"


def test_no_triton_function() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    function = TritonFunction(twice, "twice", ("x",), (torch.float32,))
    sentence = eager.supports(dataclasses.replace(contraction_of(), epilogue=function), TARGET)
    assert sentence == "twice is a Triton function; the CPU needs it written with torch operations"


def test_schedules_are_values_that_print_themselves() -> None:
    contraction = contraction_of()
    first, again = (eager.schedules(contraction, TARGET).schedules for _ in range(2))
    assert first == again
    assert str(first[0]) == f"torch: passes over tensors; workspace {2 * (80 + 90 + 72) * 4 / 1024:.0f} KiB"
    assert 0 < eager.predict(contraction, first[0], TARGET) < 1  # type: ignore[arg-type]


@pytest.mark.parametrize("algebra", ["plus_times", "max_plus"])
def test_blocks(algebra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors in small blocks, along every mode; coordinates count on."""
    monkeypatch.setattr(eager, "BLOCK", 60)
    options = {
        "algebra": algebra, "a_fn": lambda x, k, s: x * s + k, "epilogue": lambda x, m: (x - m, m + x),
        "indices": {"k": "k", "m": "m"}, "operands": {"s": ("m", torch.arange(9.0))},
    }  # fmt: skip
    a, b = (torch.randint(-3, 4, shape).float() for shape in ((2, 9, 3, 11), (2, 11, 7)))
    check_exact(Extended("bmlk,bkn->bnm", a, b, options=options))


def test_workspace_is_bounded() -> None:
    a, b = torch.empty(300, 400, 500, device="meta"), torch.empty(500, 400, 300, device="meta")
    shapes = {"abc,cde->abde": (300, 400, 400, 300), "abc,cba->": (), "abc,cba->cab": (500, 300, 400)}
    for equation, shape in shapes.items():
        contraction = Problem(equation, a, b).contraction(torch.empty(shape, device="meta"))
        assert eager.schedules(contraction, TARGET).schedules[0].workspace_bytes <= 8 * eager.BLOCK


def test_serves_empty_sums() -> None:
    p = weft.plan("mk,kn->mn", torch.ones(3, 0), torch.ones(0, 4), backend="cpu")
    assert p.schedule.family == "torch"
    assert "gett: a mode is empty" in str(p.explain())

"""Single-operand modes, summed in their operand before anything is multiplied."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from support import Backend, integers
from weft import reference
from weft.planner import pre_reduce as family
from weft.planner.schedule import Target

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)

CASES = [
    ("iak,kbj->ij", (5, 30, 6), (6, 40, 7)),
    ("ia,j->ij", (5, 100), (4,)),
    ("ab,cd->", (13, 20), (25, 9)),
    ("xia,xj->xij", (3, 5, 50), (3, 4)),
]
TYPES: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.float16, {"out_dtype": torch.float32}),
    (torch.int32, {}),
    (torch.float32, {"a_fn": torch.relu, "b_fn": torch.abs, "epilogue": torch.neg}),
    (torch.float16, {"a_fn": torch.relu, "out_dtype": torch.float32}),
]


@pytest.mark.parametrize(("dtype", "options"), TYPES)
@pytest.mark.parametrize(("equation", "a_shape", "b_shape"), CASES)
def test_sums_first_give_the_same_integers(
    equation: str,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    dtype: torch.dtype,
    options: dict[str, Any],
    backend: Backend,
) -> None:
    a, b = integers(a_shape, backend, 1, dtype), integers(b_shape, backend, 2, dtype)
    plan = weft.plan(equation, a, b, backend=backend.name, **options)
    contraction, target = plan.contraction, plan._request.target
    assert family.supports(contraction, target) is None
    one: Any = 1 if dtype is torch.int32 else 1.0
    functions = {name: fn for name, fn in options.items() if name != "out_dtype"}
    for schedule in family.schedules(contraction, target).schedules:
        d = torch.full(plan.shape, -77, device=backend.device).to(plan.dtype)
        family.build(contraction, schedule, target)(a, b, None, d, one, 0 * one)
        assert torch.equal(d.double(), reference.contract(equation, a, b, **functions).double())


def test_sums_may_keep_their_operand_s_order() -> None:
    """Sums over the outermost mode of B are written as they are read, or with k innermost."""
    a, b = torch.ones(4, 5), torch.ones(3, 5, 6)
    plan = weft.plan("mk,xkn->mn", a, b, backend="reference")
    sums = [schedule.choices[0].description for schedule in family.schedules(plan.contraction, H200).schedules]
    steps = {each.d.shape: [mode.labels for mode in each.modes] for each in sums}
    assert steps == {(5, 6): [("k", "n"), ("x",)], (6, 5): [("n",), ("k",), ("x",)]}


def test_sums_of_both_operands_cost_their_sum_and_not_their_product(quick_backend: Backend) -> None:
    """A hundred thousand by a hundred thousand products that need not be made: they would take many seconds."""
    a, b = integers((100_000, 3), quick_backend, 1), integers((100_000, 3), quick_backend, 2)
    plan = weft.plan("ak,bk->", a, b, backend=quick_backend.name)
    assert plan.schedule.family == family.NAME
    products = [math.prod(mode.extent for mode in each.description.modes) for each in plan.schedule.choices]
    assert products[:2] == [300_000, 300_000]
    assert sum(products) < 1_000_000
    assert plan(a, b).item() == (a.double().sum(0) * b.double().sum(0)).sum()


def test_there_is_nothing_to_sum_first_beside_a_single_number() -> None:
    a, one = torch.ones(4, 5), torch.ones(())
    plan = weft.plan("ab,->a", a, one)
    assert "no mode" in str(family.supports(plan.contraction, plan._request.target))


def test_kernels_of_every_step_are_named(triton_backend: Backend) -> None:
    a, b = integers((5, 30, 6), triton_backend, 1), integers((6, 40, 7), triton_backend, 2)
    plan = weft.plan("iak,kbj->ij", a, b, backend="triton")
    schedule = family.schedules(plan.contraction, plan._request.target).schedules[0]
    launch = family.build(plan.contraction, schedule, plan._request.target)
    assert len(launch.kernels) >= len(schedule.steps) == 3

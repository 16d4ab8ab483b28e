"""Programs: steps over named tensors, intermediates in one allocation by lifetime, constants made when built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.base import kept
from weft.planner.planner import Choice, choose
from weft.planner.program import (
    SLOT_A,
    SLOT_B,
    SLOT_D,
    Program,
    ProgramStep,
    Slot,
    as_called,
    build,
    literal,
    number_slot,
    work,
)
from weft.planner.schedule import Target
from weft.selftest.gate import parts
from weft.spec import Contraction, Layout, canonical
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.notation import parse

CPU = Target("cpu", name="CPU", processors=1)
N = 24


def product(
    dtype: torch.dtype = torch.float64, equation: str = "mk,kn->mn", c: bool = False, **parts: Any
) -> Choice:
    """A contraction of matrices of N rows, or of a matrix and a number."""
    notation, extents = parse(equation), dict.fromkeys("mkn", N)
    a, b, d = (Layout.contiguous([N] * len(term), dtype) for term in (*notation.inputs, notation.output))
    added = d if c else None
    modes = class_modes(notation, a, b, added, d, extents)
    described = canonical(Contraction(modes, a, b, added, d, resolve(dtype, dtype)))
    return choose(replace(described, **parts), "cpu", CPU)


def program_of(*steps: ProgramStep) -> Program:
    layouts: dict[int, Layout] = {}
    for step in steps:
        if step.writes != SLOT_D:
            layouts[step.writes.at] = step.choice.description.d
    return Program("steps", steps, len(steps) - 1, "steps", tuple(layouts[at] for at in sorted(layouts)))


def chain(length: int) -> Program:
    """((A B) B) B ..., each product in an intermediate of its own."""
    choice, left, steps = product(), SLOT_A, []
    for at in range(length - 1):
        steps.append(ProgramStep(choice, (left, SLOT_B), writes=work(at)))
        left = work(at)
    return program_of(*steps, as_called(choice, left, SLOT_B))


def run(program: Program, a: torch.Tensor, b: torch.Tensor, c: Any = None, **options: float) -> torch.Tensor:
    d = torch.full((N, N), torch.nan, dtype=a.dtype)
    launch = build(program.product.description, program, CPU)
    for _ in range(2):  # nothing of a call is left for the next
        launch(a, b, c, d, options.get("alpha", 1.0), options.get("beta", 0.0))
    return d


def integers(seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randint(-2, 3, (N, N), generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6])
def test_a_chain_of_products_holds_two_intermediates_at_once(length: int) -> None:
    a, b = integers(1), integers(2)
    program = chain(length)
    expected = a
    for _ in range(length):
        expected = expected @ b
    assert torch.equal(run(program, a, b), expected)
    step = max(each.best.schedule.workspace_bytes for each in program.choices)
    assert program.workspace_bytes == min(length - 1, 2) * N * N * 8 + step
    held = sum(each.numel() for each in build(program.product.description, program, CPU)._work.tensors(a.device)[:2])
    assert held * 8 == program.workspace_bytes - step
    assert program.seconds == pytest.approx(length * program.product.best.seconds)


def test_intermediates_of_several_types_share_one_allocation() -> None:
    sums = product(torch.float32, "mk,->m")
    wide = replace(sums.description, d=Layout.contiguous((N,), torch.float64))  # type: ignore[arg-type]
    steps = [
        ProgramStep(sums, (SLOT_A, number_slot(2, torch.float32)), writes=work(0)),
        ProgramStep(choose(wide, "cpu", CPU), (SLOT_A, number_slot(3, torch.float32)), writes=work(1)),
    ]
    outer = product(torch.float64, "m,n->mn")
    layouts = replace(outer.description, a=steps[0].choice.description.d)  # type: ignore[arg-type]
    program = program_of(*steps, as_called(choose(layouts, "cpu", CPU), work(0), work(1)))
    a = integers(3, torch.float32)
    launch, d = build(layouts, program, CPU), torch.full((N, N), torch.nan, dtype=torch.float64)
    launch(a, a, None, d, 1.0, 0.0)
    assert torch.equal(d, (2 * a.sum(1)).double()[:, None] * (3 * a.sum(1)).double())
    first, second = launch._work.tensors(torch.device("cpu"))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)
    assert second.data_ptr() >= first.data_ptr() + N * 4


def test_the_last_step_takes_what_the_call_gives() -> None:
    """C, alpha and beta belong to the step that writes D; the steps before it compute plain products."""
    a, b, c = (integers(seed) for seed in (1, 2, 3))
    program = program_of(
        ProgramStep(product(), (SLOT_A, SLOT_B), writes=work(0)), as_called(product(c=True), work(0), SLOT_B)
    )
    assert torch.equal(run(program, a, b, c, alpha=3.0, beta=-2.0), 3 * a @ b @ b - 2 * c)


def test_constants_are_there_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call makes within a CUDA graph's capture would be the graph's own."""
    kept.forget()
    sums = product(torch.float64, "mk,->m")
    first = ProgramStep(sums, (SLOT_A, number_slot(7, torch.float64)), writes=work(0))
    program = program_of(first, as_called(product(torch.float64, "m,kn->mn"), work(0), SLOT_B))
    launch = build(program.product.description, program, CPU)
    assert (7, torch.float64, torch.device("cpu")) in kept._constants
    monkeypatch.setattr(kept, "_made", lambda key: pytest.fail(f"{key} is made in a call"))
    a, b, d = integers(1), integers(2), torch.full((N, N), torch.nan, dtype=torch.float64)
    launch(a, b, None, d, 1.0, 0.0)
    assert torch.equal(d, 7 * a.sum(1)[:, None] * b.sum(0))


def test_the_self_test_finds_every_step() -> None:
    program = chain(3)
    outer = replace(program.product, best=replace(program.product.best, schedule=program))
    assert next(parts(outer))[2] is program
    assert len(list(parts(outer))) == 4


def test_the_printed_form_holds_labels_of_any_kind() -> None:
    program = replace(chain(1), form=f"as {literal('{x}·m')}; {{0}}")
    assert str(program) == f"as {{x}}·m; {program.product.best.schedule}"


def test_programs_that_wire_their_steps_in_another_way_differ() -> None:
    choice = product()
    one, other = (program_of(as_called(choice, *reads)) for reads in ((SLOT_A, SLOT_B), (SLOT_B, SLOT_A)))
    assert one != other
    assert len({one, other, program_of(as_called(choice, Slot(SLOT_A.kind), SLOT_B))}) == 2

"""The family that sums single-operand modes first: modes of K that stand in A alone or in B alone.

    sum over i, j, k of a[m, k, i] * b[n, k, j] = sum over k of (sum over i of a[m, k, i]) * (sum over j of b[n, k, j])

Summed where the products are made they would cost the product of their extents. It has no kernels of its own: each
step is a contraction that the other families plan. Sums are kept in the accumulator's type, and the last product is
made in it, so nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.planner import program
from weft.planner.program import SLOT_A, SLOT_B, Program, ProgramStep, RewrittenTensor, build, predict
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Role, Strides, canonical

if TYPE_CHECKING:
    from weft.planner.planner import Choice

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "pre_reduce"

A, B = range(2)


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.aux:
        return "its steps pass on no operands, coordinates or further results of functions"
    if contraction.algebra is not None:
        return "products of sums are sums of products in plus-times only"
    if not any(_has_single_operand_modes(contraction, operand) for operand in (A, B)):
        return "no mode is summed in one operand alone"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.errors import UnsupportedError
    from weft.planner.planner import choose

    backend = "cpu" if target.kind == "cpu" else "triton"
    summed = [_has_single_operand_modes(contraction, operand) for operand in (A, B)]
    arithmetic = contraction.arithmetic
    if arithmetic.product != arithmetic.accumulate:
        # The last product is made in the accumulator's type: a function must have seen the product's before.
        functions = (contraction.a_fn, contraction.b_fn)
        summed = [some or function is not None for some, function in zip(summed, functions, strict=True)]
    found: dict[tuple[Contraction | None, ...], Program] = {}
    try:
        for by_role in (False, True):
            sums = [_sums(contraction, at, by_role) if wanted else None for at, wanted in enumerate(summed)]
            steps = [_step(contraction, at, each) if each is not None else None for at, each in enumerate(sums)]
            if tuple(steps) not in found:
                chosen = [choose(step, backend, target) if step is not None else None for step in steps]
                product = choose(_product(contraction, sums), backend, target)
                found[tuple(steps)] = _program(chosen, product)
    except UnsupportedError as error:
        return Candidates((), (str(error),))
    return Candidates(tuple(found.values()))


def _program(chosen: Sequence[Choice | None], product: Choice) -> Program:
    """Sum each operand over its single-operand modes, then multiply; None for an operand that is used as it is."""
    reads, printed = [SLOT_A, SLOT_B], []
    steps: list[ProgramStep] = []
    for operand, choice in enumerate(chosen):
        if choice is not None:
            space, at = program.work(len(steps)), len(steps)
            one = program.number_slot(1, choice.description.b.dtype)  # type: ignore[union-attr]
            steps.append(ProgramStep(choice, (reads[operand], one), writes=space))
            printed.append(f"{'AB'[operand]}: {{{at}}}")
            reads[operand] = space
    last = program.as_called(product, *reads)
    form = f"{NAME} {'; '.join(printed)}; then {{{len(steps)}}}"
    return Program(NAME, (*steps, last), len(steps), form)


def _has_single_operand_modes(contraction: Contraction, operand: int) -> bool:
    """Whether an operand has single-operand modes, and the other operand has modes at all."""
    other = 1 - operand
    if not any(mode.strides[other] for mode in contraction.modes):
        return False
    return any(mode.strides[operand] and not mode.strides[other] for mode in contraction.of_role(Role.K))


def _sums(contraction: Contraction, operand: int, by_role: bool) -> RewrittenTensor:
    """Where an operand's sums go: in its own order, so that they are written as they are read, or by their roles, k
    innermost."""
    kept = [
        mode for mode in contraction.modes
        if mode.strides[operand] and (mode.role is not Role.K or mode.strides[1 - operand])
    ]  # fmt: skip
    if not by_role:
        kept.sort(key=lambda mode: -mode.strides[operand])
    return RewrittenTensor.row_major(kept, contraction.arithmetic.accumulate)


def _step(contraction: Contraction, operand: int, sums: RewrittenTensor) -> Contraction:
    """The sum of one operand over its single-operand modes."""
    own = {mode.labels: mode for mode in contraction.modes if mode.strides[operand]}
    kept = [own[labels] for labels in sums.strides]
    summed = [mode for mode in own.values() if mode.labels not in sums.strides]
    modes = [
        mode._replace(role=role, strides=Strides(mode.strides[operand], 0, 0, sums.stride(mode)))
        for role, group in ((Role.M, kept), (Role.K, summed))
        for mode in group
    ]
    return program.alone(contraction, operand, modes, sums.layout)


def _product(contraction: Contraction, sums: Sequence[RewrittenTensor | None]) -> Contraction:
    """The contraction that remains, with the sums in the operands' places; single-operand modes are summed by now."""
    left = program.of_placed(contraction, *sums)
    modes = [
        mode for mode, own in zip(left.modes, contraction.modes, strict=True)
        if mode.role is not Role.K or any(mode.strides[:2]) or not any(own.strides[:2])
    ]  # fmt: skip
    arithmetic = replace(contraction.arithmetic, product=contraction.arithmetic.accumulate)
    return canonical(replace(left, modes=tuple(modes), arithmetic=arithmetic))

"""The family that sums single-operand modes first: modes of K that stand in A alone or in B alone.

    sum over i, j, k of a[m, k, i] * b[n, k, j] = sum over k of (sum over i of a[m, k, i]) * (sum over j of b[n, k, j])

Summed where the products are made they would cost the product of their extents. It has no kernels of its own: each
step is a contraction that the other families plan. Sums are kept in the accumulator's type, and the last product is
made in it, so nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.planner.program import SLOT_A, SLOT_B, Program, ProgramStep, as_called, build, number_slot, predict, work
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Label, Layout, Role, Strides, canonical

if TYPE_CHECKING:
    from weft.planner.planner import Choice

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "pre_reduce"

A, B = range(2)


class OperandSums(NamedTuple):
    """An operand as the product reads it: summed over its single-operand modes, or as it is."""

    layout: Layout
    strides: dict[tuple[Label, ...], int]  # by the labels of a mode, outermost first where it is summed
    summed: bool


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
            sums = [_sums(contraction, operand, wanted, by_role) for operand, wanted in enumerate(summed)]
            steps = [_step(contraction, operand, each) if each.summed else None for operand, each in enumerate(sums)]
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
            space, at = work(len(steps)), len(steps)
            one = number_slot(1, choice.description.b.dtype)  # type: ignore[union-attr]
            steps.append(ProgramStep(choice, (reads[operand], one), writes=space))
            printed.append(f"{'AB'[operand]}: {{{at}}}")
            reads[operand] = space
    layouts = tuple(step.choice.description.d for step in steps)
    last = as_called(product, *reads)
    form = f"{NAME} {'; '.join(printed)}; then {{{len(steps)}}}"
    return Program(NAME, (*steps, last), len(steps), form, layouts)


def _has_single_operand_modes(contraction: Contraction, operand: int) -> bool:
    """Whether an operand has single-operand modes, and the other operand has modes at all."""
    other = 1 - operand
    if not any(mode.strides[other] for mode in contraction.modes):
        return False
    return any(mode.strides[operand] and not mode.strides[other] for mode in contraction.of_role(Role.K))


def _sums(contraction: Contraction, operand: int, wanted: bool, by_role: bool) -> OperandSums:
    """Where an operand's sums go: in its own order, so that they are written as they are read, or by their roles, k
    innermost."""
    other = 1 - operand
    if not wanted:
        strides = {mode.labels: mode.strides[operand] for mode in contraction.modes}
        return OperandSums((contraction.a, contraction.b)[operand], strides, False)
    kept = [
        mode for mode in contraction.modes if mode.strides[operand] and (mode.role is not Role.K or mode.strides[other])
    ]
    if not by_role:
        kept.sort(key=lambda mode: -mode.strides[operand])
    layout = Layout.contiguous([mode.extent for mode in kept], contraction.arithmetic.accumulate)
    return OperandSums(layout, dict(zip([mode.labels for mode in kept], layout.strides, strict=True)), True)


def _step(contraction: Contraction, operand: int, sums: OperandSums) -> Contraction:
    """The sum of one operand over its single-operand modes, as a contraction with a 0-d one."""
    layout = (contraction.a, contraction.b)[operand]
    own = {mode.labels: mode for mode in contraction.modes if mode.strides[operand]}
    kept = [own[labels] for labels in sums.strides]
    alone = [mode for mode in own.values() if mode.labels not in sums.strides]
    modes = [
        mode._replace(role=role, strides=Strides(mode.strides[operand], 0, 0, sums.strides.get(mode.labels, 0)))
        for role, group in ((Role.M, kept), (Role.K, alone))
        for mode in group
    ]
    return canonical(
        replace(
            contraction, modes=tuple(modes), a=layout, b=Layout((), (), layout.dtype), c=None, d=sums.layout,
            a_fn=(contraction.a_fn, contraction.b_fn)[operand], b_fn=None, c_fn=None, epilogue=None,
            conjugate_a=(contraction.conjugate_a, contraction.conjugate_b)[operand], conjugate_b=False,
        )
    )  # fmt: skip


def _product(contraction: Contraction, sums: Sequence[OperandSums]) -> Contraction:
    """The contraction that remains, with the sums in the operands' places."""
    modes = []
    for mode in contraction.modes:
        a, b = (each.strides.get(mode.labels, 0) for each in sums)
        if mode.role is Role.K and not a and not b and (mode.strides.a or mode.strides.b):
            continue  # a single-operand mode, summed by now
        modes.append(mode._replace(strides=Strides(a, b, *mode.strides[2:])))
    a_sums, b_sums = sums
    arithmetic, accumulate = contraction.arithmetic, contraction.arithmetic.accumulate
    return canonical(
        replace(
            contraction, modes=tuple(modes), arithmetic=replace(arithmetic, product=accumulate),
            a=a_sums.layout, b=b_sums.layout,
            a_fn=None if a_sums.summed else contraction.a_fn, b_fn=None if b_sums.summed else contraction.b_fn,
            conjugate_a=contraction.conjugate_a and not a_sums.summed,
            conjugate_b=contraction.conjugate_b and not b_sums.summed,
        )
    )  # fmt: skip

"""Operands packed first, then a product of matrices, and D permuted where no product writes it well (TTGT)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import UnsupportedError
from weft.gpu.common.cost import FUNCTION_RATE, READING_SLOTS
from weft.gpu.composite.ttgt.packing import TILED, epilogue_on_d, packings, products, reads_by_tma
from weft.gpu.composite.ttgt.result import ways
from weft.gpu.permute.model import LAUNCH
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
    predict,
    work,
)
from weft.planner.schedule import Candidates, Ranked, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice


__all__ = ["NAME", "adds_in_order", "build", "predict", "schedules", "supports"]

NAME = "ttgt"
KEPT = 4  # schedules of the product that are proposed for each way to pack, besides the best of each family
LEAST_FLOPS = 2**27  # of a product that is worth another launch


class Packs(NamedTuple):
    """The passes that pack operands, what the product reads then, and how that is printed."""

    steps: tuple[ProgramStep, ...]
    reads: tuple[Slot, Slot]
    text: str


def packs_of(a: Choice | None, b: Choice | None) -> Packs:
    """The passes of A and of B; None for one that is used as it lies."""
    reads, names = [SLOT_A, SLOT_B], []
    steps: list[ProgramStep] = []
    for operand, choice in enumerate((a, b)):
        if choice is not None:
            space = work(len(steps))
            steps.append(ProgramStep(choice, (reads[operand],), writes=space, predicted=_seconds(choice)))
            names.append(f"{'AB'[operand]} as {literal(choice.description.text)}")
            reads[operand] = space
    once = a is not None and b is not None and pairs(a, b)
    if once:
        steps[0] = replace(steps[0], paired=True, predicted=steps[0].seconds - LAUNCH)
    text = f"{', '.join(names) or 'nothing packed'}{' in one launch' if once else ''}"
    return Packs(tuple(steps), (reads[0], reads[1]), text)


def program_of(
    packs: Packs, product: Choice, finish: Choice | None = None, written: Choice | None = None
) -> Program:
    """Pack operands, multiply, and apply an epilogue that the product leaves to D where it lies; or have D `written`
    from the workspace of the product."""
    steps, main = [*packs.steps], len(packs.steps)
    layouts, last = [step.choice.description.d for step in packs.steps], ""
    if written is None:
        steps.append(as_called(product, *packs.reads))
    else:
        steps += _by_workspace(packs, product, written)
        layouts, last = [*layouts, product.description.d], "; D permuted"
    if finish is not None:
        steps.append(ProgramStep(finish, (SLOT_D,), writes=SLOT_D, predicted=_seconds(finish)))
        last = "; epilogue on D"
    return Program(NAME, tuple(steps), main, f"{NAME} {packs.text}; {{{main}}}{last}", tuple(layouts))


def _by_workspace(packs: Packs, product: Choice, written: Choice) -> tuple[ProgramStep, ProgramStep]:
    space = work(len(packs.steps))
    if isinstance(written.description, Permutation):  # which scales nothing
        multiply = ProgramStep(product, packs.reads, writes=space, factors=None)
        return multiply, ProgramStep(written, (space,), writes=SLOT_D)
    one = number_slot(1, product.description.d.dtype)
    return ProgramStep(product, packs.reads, writes=space), as_called(written, space, one)


def pairs(a: Choice, b: Choice) -> bool:
    """Whether one launch packs both operands."""
    from weft.gpu.permute.family import PermuteMove, supports_pair
    from weft.gpu.permute.schedule import PermuteSchedule

    if not all(isinstance(step.best.schedule, PermuteSchedule) for step in (a, b)):
        return False
    return supports_pair(*(PermuteMove(step.description, step.best.schedule) for step in (a, b)))  # type: ignore[arg-type]


def _seconds(step: Choice) -> float:
    """Seconds of a pass; its function hides behind memory as far as it takes no longer."""
    return math.hypot(step.best.seconds, _function_seconds(step))


def _function_seconds(step: Choice) -> float:
    """Seconds of the function that a step applies."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return 0.0
    elements = math.prod(mode.extent for mode in permutation.modes)
    return elements * (READING_SLOTS + permutation.fn.issue_slots) / FUNCTION_RATE


def adds_in_order(contraction: Contraction, schedule: Program) -> bool:
    """As its product, of operands that are packed with the modes of k in order: `packings` has no others then."""
    return True


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.invariant and (contraction.a_fn is not None or contraction.b_fn is not None):
        return "the bits of a function might depend on the kernel that applies it"
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that packing would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"{dtype_name(contraction.arithmetic.product)} is packed by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    excluded: dict[str, None] = {}
    found = _packed(contraction, target, excluded)
    for way in dict.fromkeys(ways(contraction)):
        try:
            written = choose(way.finish, "triton", target, without=(NAME, "pre_reduce"))
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        found += _packed(way.product, target, excluded, written, TILED if way.by_library else ())
    return Candidates(tuple(found), tuple(excluded))


def _packed(
    contraction: Contraction, target: Target, excluded: dict[str, None], written: Choice | None = None,
    without: tuple[str, ...] = (),
) -> list[Program]:  # fmt: skip
    """Programs of every way to pack operands; with what writes D where the product does not."""
    from weft.planner.planner import choose

    found: list[Program] = []
    by_tma = reads_by_tma(contraction, target)
    last = epilogue_on_d(contraction) if not contraction.invariant else None
    finish = choose(last, "triton", target) if last is not None else None
    for packed in dict.fromkeys(packings(contraction, by_tma)):
        try:
            a, b = (choose(each.permutation, "triton", target) if each is not None else None for each in packed)
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        packs = packs_of(a, b)
        for way in products(contraction, packed, by_tma, finish, alone=written is not None):
            try:
                product = choose(way.product, "triton", target, without=(*way.without, *without))
            except UnsupportedError as error:
                excluded[str(error)] = None
                continue
            kept = product.led_by_each(_kept(product.ranked))
            found += [program_of(packs, each, way.finish, written) for each in kept]
    return found


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of each family."""
    best: dict[str, Ranked] = {}
    for each in ranked:
        best.setdefault(each.schedule.family, each)
    return tuple(each for at, each in enumerate(ranked) if at < KEPT or each is best[each.schedule.family])

"""The logarithm's algebra by matrix products: programs of six steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from weft import algebra as algebras
from weft.errors import UnsupportedError
from weft.fn.pointwise import RecordedFunction
from weft.gpu.composite.logsumexp.steps import (
    MARKS,
    SCALE,
    factors_of,
    largest_of,
    marks_of,
    operand_count,
    product_of,
    with_marks,
)
from weft.planner.program import (
    SLOT_A,
    SLOT_B,
    SLOT_D,
    Program,
    ProgramStep,
    Slot,
    SlotKind,
    build,
    number_slot,
    predict,
    work,
)
from weft.planner.schedule import Candidates, Launch, Ranked, Target
from weft.spec import Contraction

if TYPE_CHECKING:
    from weft.gpu.semiring.schedule import SemiringSchedule
    from weft.planner.planner import Choice

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "logsumexp"
UNUSED = 1e-5  # seconds of a launch that finds no tile to compute
LEAST_FLOPS = 2**24  # of a product that is worth six launches
LONGEST = 2**18  # sums of factors that are scaled as in `functions` cannot overflow


def supports(contraction: Contraction, target: Target) -> str | None:
    from weft.gpu.semiring import family as semiring

    accumulate = contraction.arithmetic.accumulate
    if contraction.algebra is None or accumulate not in SCALE or contraction.algebra != _log(accumulate):
        return "only the algebra log is a product of exponentials"
    if contraction.c is not None:
        return "C is added by the direct form only"
    if contraction.a_args or contraction.b_args:
        return "operands of a_fn and b_fn are for the direct form only"
    functions = (contraction.a_fn, contraction.b_fn, contraction.epilogue)
    if any(function is not None and not isinstance(function, RecordedFunction) for function in functions):
        return "a Triton function cannot be composed with exponentials"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if contraction.k > LONGEST:
        return f"sums of {contraction.k} scaled products could overflow"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth six launches"
    return semiring.supports(contraction, target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    direct = _direct(contraction, target)
    found, excluded = [], []
    try:
        largest, factors = (
            [choose(step(contraction, operand), "triton", target) for operand in (0, 1)]
            for step in (largest_of, factors_of)
        )
        for precision in _precisions(contraction):
            step = product_of(contraction, precision)
            product = _rounded(choose(step, "triton", target, without=("ttgt", "pre_reduce")))
            found.append(_program(contraction, precision, (*largest, *factors, product, direct)))
    except UnsupportedError as error:
        excluded.append(str(error))
    return Candidates(tuple(found), tuple(excluded))


def _program(contraction: Contraction, precision: str, choices: tuple[Choice, ...]) -> Program:
    """The largest values of A and of B, exponentials of both, their product, and the tiles that are computed again."""
    *passes, product, direct = choices
    given = operand_count(contraction)
    named = tuple(Slot(SlotKind.AUX, index) for index in range(len(contraction.aux)))
    operands, outputs = named[:given], named[given:]
    layouts = (*(choice.description.d for choice in passes), marks_of(contraction).layout)
    *tops, p, q, marks = map(work, range(len(layouts)))
    inputs, steps = (SLOT_A, SLOT_B), []
    for at, choice in enumerate(passes):
        number = number_slot(int(at > 1), choice.description.b.dtype)  # type: ignore[union-attr]
        top = (tops[at - 2],) if at > 1 else ()
        steps.append(ProgramStep(choice, (inputs[at % 2], number), writes=work(at), aux=top, factors=(1, 1)))
    steps += [
        ProgramStep(product, (p, q), SLOT_D, aux=(*operands, *tops, *outputs, marks), factors=(1, 1)),
        ProgramStep(direct, inputs, SLOT_D, aux=(*operands, marks, *outputs), factors=(1, 1)),
    ]
    return Program(NAME, tuple(steps), 4, f"{NAME} {precision}; {{4}}; sums out of range: {{5}}", layouts)


class _Direct:
    """The direct form of the output tiles that hold marks, as the family of a step."""

    __name__ = __name__  # whose trials cover it
    NAME = NAME

    def build(self, described: Contraction, schedule: SemiringSchedule, target: Target) -> Launch:
        from weft.gpu.semiring import family as semiring

        guard = next(at for at, each in enumerate(described.aux) if each.name == MARKS)
        return semiring.build(described, schedule, target, guard=guard)


def _direct(contraction: Contraction, target: Target) -> Choice:
    """The best whole schedule of the direct form; no tile of it is expected to be computed."""
    from weft.gpu.semiring import family as semiring
    from weft.planner.planner import Choice

    described = with_marks(contraction)
    whole = [each for each in semiring.schedules(described, target).schedules if not each.workspace_bytes]
    best = min(whole, key=lambda each: semiring.predict(described, each, target))  # type: ignore[arg-type]
    rank = Ranked(best, UNUSED, _Direct())  # type: ignore[arg-type]
    return Choice(described, "triton", target, rank, (rank,))


def _rounded(product: Choice) -> Choice:
    """Each step of tf32x3 added by a rounded sum: tensor cores cut off what they add, thousands of times one way."""
    if product.description.arithmetic.precision != "tf32x3":  # type: ignore[union-attr]
        return product
    ranked = tuple(replace(each, schedule=replace(each.schedule, apart=True)) for each in product.ranked)  # type: ignore[type-var]
    return replace(product, best=ranked[0], ranked=ranked)


def _precisions(contraction: Contraction) -> Iterator[str]:
    yield "ieee"
    if contraction.arithmetic.accumulate is torch.float32:
        yield "tf32x3"


@lru_cache
def _log(accumulate: torch.dtype) -> Any:
    return algebras.log.traced(accumulate)

"""The logarithm's algebra by matrix products: programs of six steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from weft import algebra as algebras
from weft.errors import UnsupportedError
from weft.fn import Pointwise, trace
from weft.fn.pointwise import RecordedFunction
from weft.gpu.common.tiling import A, B
from weft.planner import program
from weft.planner.exponentials import Exponent, exponent_of, least_sum
from weft.planner.program import (
    SLOT_A,
    SLOT_B,
    SLOT_D,
    Program,
    ProgramStep,
    RewrittenTensor,
    Slot,
    SlotKind,
    build,
    predict,
)
from weft.planner.schedule import Candidates, Launch, Ranked, Target
from weft.spec import Arithmetic, Aux, Contraction, Mode, Role, Strides, canonical

if TYPE_CHECKING:
    from weft.gpu.semiring.schedule import SemiringSchedule
    from weft.planner.planner import Choice


# Logarithms, by accumulator: of what each factor is scaled by, exact in that type, so that products stay in range.
SCALE = {torch.float32: 37.0, torch.float64: 332.0}


def factor_fn(accumulate: torch.dtype) -> Pointwise:
    """exp(value - top + scale), the rounding of both sums made good. A top of -inf is of a row without terms."""
    scale = SCALE[accumulate]

    def factor(value: Tensor, top: Tensor) -> Tensor:
        top = torch.where(top == -math.inf, 0.0, top)
        off, first = _sum(value, -top)
        power, second = _sum(off, scale)
        lost = torch.where(torch.abs(power) < math.inf, first + second, 0.0)
        return torch.exp(power) * (1 + lost)

    return trace(factor, (accumulate, accumulate), names=("top",), hook="factor")


def _sum(x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """A rounded sum and what rounding took (Knuth, The Art of Computer Programming 2, 4.2.2, theorem B)."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def epilogue_fn(contraction: Contraction) -> Pointwise:
    """From a sum of products to the logarithm and on through the contraction's own epilogue; then the mark."""
    accumulate = contraction.arithmetic.accumulate
    scale = SCALE[accumulate]
    bound = least_sum(contraction.k, accumulate, math.exp(scale))
    down = math.exp(-2 * scale)  # which float64 must be able to take as well
    bound = max(bound, 2 * torch.finfo(torch.float64).tiny / down)
    own = contraction.epilogue
    names = [f"aux{at}" for at in range(len(contraction.epilogue_args))]

    def epilogue(total: Tensor, p: Tensor, q: Tensor, **aux_args: Tensor) -> tuple[Tensor, ...]:
        empty = ((p == -math.inf) & (q < math.inf)) | ((q == -math.inf) & (p < math.inf))
        value = (p.double() + q.double()) + torch.log(total.double() * down)
        value = torch.where(empty, -math.inf, value).to(accumulate)
        mark = ~((total >= bound) & (total < math.inf)) & ~empty
        results = value if own is None else own._module.forward(value, *aux_args.values())  # type: ignore[attr-defined]
        return (*results, mark) if isinstance(results, tuple) else (results, mark)

    aux_args = own.dtypes[1:] if own is not None else ()
    return trace(epilogue, (accumulate, accumulate, accumulate, *aux_args), names=("p", "q", *names), hook="epilogue")


MARKS = "sums out of range"


def largest_of(contraction: Contraction, operand: int) -> Contraction:
    """The largest value of an operand over k."""
    top = _top(contraction, operand)
    modes = [
        mode._replace(
            role=Role.K if mode.role is Role.K else Role.M,
            strides=Strides(mode.strides[operand], 0, 0, top.stride(mode)),
        )
        for mode in _own(contraction, operand)
    ]
    algebra = algebras.max_plus.traced(contraction.arithmetic.accumulate)
    return program.alone(contraction, operand, modes, top.layout, algebra=algebra)


def factors_of(contraction: Contraction, operand: int) -> Contraction:
    """The scaled exponentials of an operand's values under the largest."""
    accumulate, product = contraction.arithmetic.accumulate, contraction.arithmetic.product
    stored, top = _factors(contraction, operand), _top(contraction, operand)
    modes = [
        mode._replace(role=Role.M, strides=Strides(mode.strides[operand], 0, 0, stored.stride(mode), top.stride(mode)))
        for mode in _own(contraction, operand)
    ]
    return program.alone(
        contraction, operand, modes, stored.layout, algebra=None, arithmetic=Arithmetic(product, accumulate),
        epilogue=factor_fn(accumulate), epilogue_args=(0,), aux=(Aux("top", "operand", top.layout, accumulate),),
    )  # fmt: skip


def product_of(contraction: Contraction, precision: str) -> Contraction:
    """The product of the exponentials, brought back to logarithms, and the marks."""
    accumulate, given = contraction.arithmetic.accumulate, operand_count(contraction)
    tops = [_top(contraction, operand) for operand in (A, B)]
    named = [(Aux(f"top {n}", "operand", top.layout, accumulate), top) for n, top in enumerate(tops)]
    step = program.with_aux(contraction, given, *named)
    step = program.with_aux(step, len(step.aux), _marks(contraction, "output"))
    return canonical(
        program.of_placed(
            step, *(_factors(contraction, operand) for operand in (A, B)), algebra=None,
            arithmetic=Arithmetic(accumulate, accumulate, precision), epilogue=epilogue_fn(contraction),
            epilogue_args=(given, given + 1, *contraction.epilogue_args),
        )
    )  # fmt: skip


def with_marks(contraction: Contraction) -> Contraction:
    """The contraction itself, which takes the marks as an operand."""
    return program.with_aux(contraction, operand_count(contraction), _marks(contraction, "operand"))


def _marks(contraction: Contraction, kind: Literal["operand", "output"]) -> tuple[Aux, RewrittenTensor]:
    marks = marks_of(contraction)
    return Aux(MARKS, kind, marks.layout, torch.bool), marks


def marks_of(contraction: Contraction) -> RewrittenTensor:
    """A mark for each element of D whose sum is out of range."""
    own = contraction.of_role(Role.BATCH, Role.M, Role.N)
    return RewrittenTensor.row_major(sorted(own, key=lambda mode: -mode.strides.d), torch.bool)


def operand_count(contraction: Contraction) -> int:
    """Auxiliary operands and coordinates: further results come behind them."""
    return sum(each.kind != "output" for each in contraction.aux)


def _own(contraction: Contraction, operand: int) -> list[Mode]:
    """The modes of A or B, as its factors are stored, outermost first: k innermost, in A's order for both."""
    other = Role.N if operand == A else Role.M
    own = [mode for mode in contraction.modes if mode.role is not other and mode.strides[operand]]
    order = {mode: mode.strides.a or mode.strides.b for mode in contraction.of_role(Role.K)}
    return sorted(own, key=lambda mode: (mode.role is Role.K, -order.get(mode, mode.strides[operand])))


def _factors(contraction: Contraction, operand: int) -> RewrittenTensor:
    return RewrittenTensor.row_major(_own(contraction, operand), contraction.arithmetic.accumulate)


def _top(contraction: Contraction, operand: int) -> RewrittenTensor:
    """Where the largest values of an operand go."""
    kept = [mode for mode in _own(contraction, operand) if mode.role is not Role.K]
    return RewrittenTensor.row_major(kept, contraction.arithmetic.accumulate)


__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "logsumexp"
UNUSED = 1e-5  # seconds of a launch that finds no tile to compute
LEAST_FLOPS = 2**24  # of a product that is worth six launches
LONGEST = 2**18  # sums of factors that are scaled as in `functions` cannot overflow


def supports(contraction: Contraction, target: Target) -> str | None:
    from weft.gpu.semiring import family as semiring

    accumulate = contraction.arithmetic.accumulate
    if contraction.algebra is None or exponent_of(contraction.algebra, accumulate) != Exponent(1.0):
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
    *tops, p, q, marks = map(program.work, range(len(layouts)))
    inputs, steps = (SLOT_A, SLOT_B), []
    for at, choice in enumerate(passes):
        number = program.number_slot(int(at > 1), choice.description.b.dtype)  # type: ignore[union-attr]
        top = (tops[at - 2],) if at > 1 else ()
        steps.append(ProgramStep(choice, (inputs[at % 2], number), writes=program.work(at), aux=top, factors=(1, 1)))
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

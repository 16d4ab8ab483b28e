"""The logarithm's algebra by matrix products: schedules for a description, and the launch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft import algebra as algebras
from weft.base.kept import constant, prepare
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
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout

if TYPE_CHECKING:
    from weft.planner.planner import Choice
    from weft.planner.schedule import Schedule


NAME = "logsumexp"


@dataclass(frozen=True, slots=True)
class LogSumExpSchedule:
    """A plan for each step: largest values, exponentials, their product, and the tiles that are computed again."""

    largest: tuple[Choice, Choice]  # of A and B
    factors: tuple[Choice, Choice]
    product: Choice
    direct: Schedule  # of the family `semiring`
    precision: str  # of the product
    family: str = NAME

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (*self.largest, *self.factors, self.product)

    @property
    def workspace_bytes(self) -> int:
        stored = [step.description.d for step in (*self.largest, *self.factors)]
        marks = math.prod(self.product.description.d.shape)
        own = sum(math.prod(layout.shape) * layout.dtype.itemsize for layout in stored) + marks
        steps = (*self.largest, *self.factors, self.product)
        return own + max(step.best.schedule.workspace_bytes for step in steps)

    def __str__(self) -> str:
        return f"{self.family} {self.precision}; {self.product.best.schedule}; sums out of range: {self.direct}"


def build(contraction: Contraction, schedule: LogSumExpSchedule, target: Target) -> Launch:
    from weft.gpu.semiring import family as semiring

    described = with_marks(contraction)
    for value in (0, 1):
        for dtype in {contraction.a.dtype, contraction.b.dtype}:
            prepare(value, dtype, target.device)
    guard = next(at for at, each in enumerate(described.aux) if each.name == MARKS)
    direct = semiring.build(described, schedule.direct, target, guard=guard)  # type: ignore[arg-type]
    return LogSumExpLaunch(contraction, schedule, direct)


class LogSumExpLaunch:
    def __init__(self, contraction: Contraction, schedule: LogSumExpSchedule, direct: Any) -> None:
        self._largest = [step.built_as_a_step() for step in schedule.largest]
        self._factors = [step.built_as_a_step() for step in schedule.factors]
        self._product = schedule.product.built_as_a_step()[1]
        self._direct = direct
        self._marks = marks_of(contraction).layout
        self._operands = operand_count(contraction)
        launches = [*(launch for _, launch in (*self._largest, *self._factors)), self._product, direct]
        self.kernels = tuple(kernel for launch in launches for kernel in getattr(launch, "kernels", (launch,)))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tops, factors = [], []
        for x, (top_plan, largest), (plan, factor) in zip((a, b), self._largest, self._factors, strict=True):
            top, scaled = (_empty(step.description.d, x.device) for step in (top_plan, plan))
            largest(x, constant(0, x.dtype, x.device), None, top, 1.0, 1.0)
            factor(x, constant(1, x.dtype, x.device), None, scaled, 1.0, 1.0, (top,))
            tops.append(top)
            factors.append(scaled)
        marks = _empty(self._marks, d.device)
        operands, outputs = aux[: self._operands], aux[self._operands :]
        self._product(*factors, None, d, 1.0, 1.0, (*operands, *tops, *outputs, marks))
        self._direct(a, b, None, d, 1.0, 1.0, (*operands, marks, *outputs))


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty(layout.shape, dtype=layout.dtype, device=device)


__all__ = ["NAME", "build", "predict", "schedules", "supports"]

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
    from weft.gpu.semiring import family as semiring
    from weft.planner.planner import choose

    described = with_marks(contraction)
    whole = [each for each in semiring.schedules(described, target).schedules if not each.workspace_bytes]
    direct = min(whole, key=lambda each: semiring.predict(described, each, target))  # type: ignore[arg-type]
    found, excluded = [], []
    try:
        a_largest, b_largest = (choose(largest_of(contraction, operand), "triton", target) for operand in (0, 1))
        a_factors, b_factors = (choose(factors_of(contraction, operand), "triton", target) for operand in (0, 1))
        for precision in _precisions(contraction):
            step = product_of(contraction, precision)
            product = _rounded(choose(step, "triton", target, without=("ttgt", "scatter", "pre_reduce", "tma")))
            steps = (a_largest, b_largest), (a_factors, b_factors)
            found.append(LogSumExpSchedule(*steps, product, direct, precision))
    except UnsupportedError as error:
        excluded.append(str(error))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: LogSumExpSchedule, target: Target) -> float:
    """Seconds of all steps, nothing of it out of range."""
    steps = (*schedule.largest, *schedule.factors, schedule.product)
    return sum(step.best.seconds for step in steps) + 1e-5


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

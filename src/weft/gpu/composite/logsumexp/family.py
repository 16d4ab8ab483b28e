"""The family that computes in the algebra `log` by products of exponentials, which matrix units make.

    log sum over k of exp(a[m, k] + b[n, k])  =  p[m] + q[n] + log sum over k of exp(a[m, k] - p[m]) exp(b[n, k] - q[n])

with p and q the largest values over k. All terms are positive, so nothing cancels: the sum is as exact, relative to
itself, as its factors. What limits the form is the range of the exponents: where the largest terms of a row of A meet
none of a row of B, factors vanish that the sum is made of. Both exponentials are scaled up as far as products cannot
overflow, and every sum that could have lost more than its rounding is marked. Output tiles with a mark are computed
again by the family `semiring`; so are infinities and NaN. The last step is made in float64.

It has no kernels of its own but that: each step is a contraction that the other families plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from weft import algebra as algebras
from weft.errors import UnsupportedError
from weft.fn.pointwise import RecordedFunction
from weft.gpu.composite.logsumexp.functions import SCALE
from weft.gpu.composite.logsumexp.launch import build
from weft.gpu.composite.logsumexp.schedule import NAME, LogSumExpSchedule
from weft.gpu.composite.logsumexp.steps import factors_of, largest_of, product_of, with_marks
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction

if TYPE_CHECKING:
    from weft.planner.planner import Choice

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

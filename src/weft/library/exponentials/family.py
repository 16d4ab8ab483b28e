"""Sums of exponentials by products of matrices, on the CPU: a family with the four doors of `weft.planner.schedule`.

`log` and its kin take one exponential for each element of A and B here, not for each pair. The identity, and what it
loses: `weft.planner.exponentials`. Results that the product does not tell are computed by the direct form of `gett`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from weft.cpu import jit
from weft.cpu.gett import family as gett
from weft.cpu.host import costs
from weft.cpu.level import multiplies_by_mkl
from weft.library.exponentials.launch import ExponentialsLaunch, product_of, workspace_bytes
from weft.planner.exponentials import exponent_of
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction

NAME = "exponentials"

LEAST_EXTENT = 2  # of matrices with so many rows, columns and sums
LONGEST = 1 << 18  # sums of scaled factors that cannot overflow


@dataclass(frozen=True, slots=True)
class ExponentialsSchedule:
    product: Choice
    threads: int
    workspace_bytes: int
    family: str = NAME

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.product,)

    def __str__(self) -> str:
        return f"exponentials of A and B, {self.product.best.schedule}; logarithms; sums out of range by gett"


class _ExponentialsCost(NamedTuple):
    call: float  # seconds of a call,
    factor: float  # of four bytes of an exponential,
    result: float  # and of a logarithm


@lru_cache
def _cost() -> _ExponentialsCost:
    found = costs(NAME)
    return _ExponentialsCost(*(found(name) for name in _ExponentialsCost._fields))


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if (fault := jit.fault_on(target)) is not None:
        return fault
    algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
    if algebra is None or exponent_of(algebra, accumulate) is None:
        return "only log and its kin are products of exponentials"
    if contraction.c is not None:
        return "C is added by the direct form only"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_EXTENT:
        return "it is no product of matrices"
    if contraction.k > LONGEST:
        return f"sums of {contraction.k} scaled products could overflow"
    return gett.supports(contraction, target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    threads = max(target.processors, 1)
    product = choose(product_of(contraction), "cpu", target, without=("gett",) if multiplies_by_mkl() else ())
    size = workspace_bytes(contraction) + product.best.schedule.workspace_bytes
    return Candidates((ExponentialsSchedule(product, threads, size),))


def predict(contraction: Contraction, schedule: ExponentialsSchedule, target: Target) -> float:
    cost, item = _cost(), contraction.arithmetic.accumulate.itemsize / 4
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    passes = batch * item * (cost.factor * (m + n) * k + cost.result * m * n)
    return cost.call + passes / schedule.threads + schedule.product.best.seconds


def build(contraction: Contraction, schedule: ExponentialsSchedule, target: Target) -> Launch:
    return ExponentialsLaunch(contraction, schedule.product, schedule.threads, target)

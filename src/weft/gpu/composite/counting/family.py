"""The family that answers algebras of truth values by counting pairs, on matrix units.

Where the family `semiring` issues an instruction or two for each pair and lane, a matrix instruction counts thousands
of pairs. What is counted, and why that is exact: `weft.planner.counting`. It has no kernels of its own: the product is
planned by the others, packed operands included.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.fn.pointwise import RecordedFunction
from weft.gpu.common.constraints import is_product_of_vectors
from weft.gpu.composite.counting.launch import CountingLaunch
from weft.gpu.composite.counting.product import product_of
from weft.gpu.composite.counting.schedule import NAME, CountingSchedule
from weft.planner.counting import COUNT, refusal
from weft.planner.schedule import Candidates, Launch, Ranked, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

__all__ = ["NAME", "CountingSchedule", "build", "predict", "schedules", "supports"]

KEPT = 4  # schedules of the product that are proposed, besides one that takes no workspace
OFF_MATRIX_UNITS = ("simt", "semiring", "pre_reduce")  # families that count no faster than the direct form


def supports(contraction: Contraction, target: Target) -> str | None:
    if (reason := refusal(contraction)) is not None:
        return reason
    if contraction.c is not None and contraction.c.dtype.itemsize > COUNT.itemsize:
        return f"C's values of {dtype_name(contraction.c.dtype)} would be cut to {dtype_name(COUNT)} as well"
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    if any(function is not None and not isinstance(function, RecordedFunction) for function in functions):
        return "a Triton function cannot be put between bytes and counts"
    if is_product_of_vectors(contraction):
        return "m or n is 1 in a batch: nothing for a matrix instruction to share"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    product = choose(product_of(contraction), "triton", target, without=(NAME, *OFF_MATRIX_UNITS))
    return Candidates(tuple(map(CountingSchedule, product.led_by_each(_kept(product.ranked)))))


def predict(contraction: Contraction, schedule: CountingSchedule, target: Target) -> float:
    return schedule.product.best.seconds


def build(contraction: Contraction, schedule: CountingSchedule, target: Target) -> Launch:
    return CountingLaunch(schedule)


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of those without workspace."""
    whole = [each for each in ranked[KEPT:] if not each.schedule.workspace_bytes]
    return (*ranked[:KEPT], *whole[:1])

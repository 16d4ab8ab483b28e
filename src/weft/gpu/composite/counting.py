"""Truth values by counting: a product of bytes on matrix units, then a comparison.

    or over k of (a[m, k] and b[k, n])  =  (sum over k of a[m, k] * b[k, n]) != 0        of the bytes 0 and 1

Products of int8 summed in int32 are exact, so no pair is lost. Every byte that is not zero is true, as torch has it,
and is made 1 before it is multiplied: of bytes as they are stored 1 * 1 + 255 * 1 would be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.algebra import of_count
from weft.fn import Pointwise, trace
from weft.fn.pointwise import RecordedFunction
from weft.gpu.common.constraints import is_product_of_vectors
from weft.planner.program import SLOT_A, SLOT_B, Program, as_called, build, predict
from weft.planner.schedule import Candidates, Ranked, Target
from weft.spec import Arithmetic, Contraction
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from weft.planner.planner import Choice

Between = Callable[[Tensor], Tensor]

FACTOR, COUNT = torch.int8, torch.int32
BYTES = (torch.bool, torch.int8, torch.uint8)  # whose values are not cut on their way to a byte
MOST = 2**31 - 2  # pairs: one more, for C's value, is the largest count


def product_of(contraction: Contraction) -> Contraction:
    """The product that counts, and makes D of the counts."""
    product, accumulate = contraction.arithmetic.product, contraction.arithmetic.accumulate
    assert contraction.algebra is not None
    result = of_count(contraction.algebra, accumulate)
    assert result is not None, "other algebras are refused"

    def truth(value: Tensor) -> Tensor:
        return value.to(accumulate) != 0

    def given(value: Tensor) -> Tensor:
        return value.to(product)

    def factor(value: Tensor) -> Tensor:
        return truth(value.to(product)).to(FACTOR)

    def operand(own: Pointwise | None) -> Pointwise | None:
        return None if own is None and product is torch.bool else _between(FACTOR, given, own, factor)

    def addend(own: Pointwise | None) -> Pointwise:
        return _between(COUNT, lambda value: value.to(accumulate), own, lambda value: truth(value).to(COUNT))

    return replace(
        contraction, algebra=None, arithmetic=Arithmetic(FACTOR, COUNT),
        a_fn=operand(contraction.a_fn), b_fn=operand(contraction.b_fn),
        c_fn=addend(contraction.c_fn) if contraction.c is not None else None,
        epilogue=_between(COUNT, lambda count: result(count).to(accumulate), contraction.epilogue),
    )  # fmt: skip


def _between(dtype: torch.dtype, before: Between, own: Pointwise | None, after: Between | None = None) -> Pointwise:
    """A function of values of `dtype`, which takes them through `before`, the user's own function and `after`."""

    def function(value: Tensor, **operands: Tensor) -> Any:
        value = before(value)
        if own is not None:
            value = own._module.forward(value, *operands.values())  # type: ignore[attr-defined]
        return value if after is None else after(value)

    others = own.dtypes[1:] if own is not None else ()
    names = [f"aux{at}" for at in range(len(others))]
    return trace(function, (dtype, *others), names=names, hook="function")


__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "counting"
KEPT = 4  # schedules of the product that are proposed, besides one that takes no workspace
OFF_MATRIX_UNITS = ("simt", "semiring", "pre_reduce")  # families that count no faster than the direct form


def supports(contraction: Contraction, target: Target) -> str | None:
    algebra, arithmetic = contraction.algebra, contraction.arithmetic
    if algebra is None or of_count(algebra, arithmetic.accumulate) is None:
        return "only sums of truth values, or_and and gf2 of bool, are told by how many pairs are true"
    if not {contraction.a.dtype, contraction.b.dtype, arithmetic.product} <= set(BYTES):
        return "pairs are counted of bool and of integers of eight bits: others would be cut before they are seen"
    if contraction.k > MOST:
        return f"more than {MOST} pairs may be too many for int32"
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
    return Candidates(tuple(map(_program, product.led_by_each(_kept(product.ranked)))))


def _program(product: Choice) -> Program:
    """Counts as they are, and C's as one more."""
    step = as_called(product, SLOT_A, SLOT_B, factors=(1, 1))
    return Program(NAME, (step,), 0, f"{NAME} pairs; {{0}}")


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of those without workspace."""
    whole = [each for each in ranked[KEPT:] if not each.schedule.workspace_bytes]
    return (*ranked[:KEPT], *whole[:1])

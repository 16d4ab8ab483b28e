"""A contraction of truth values as one of plus-times: products of the bytes 0 and 1, summed in int32.

Its functions are those of the contraction, between bytes and counts. Stored values become bytes as any cast is made:
truth values as 0 and 1, whatever byte stands for true; integers of eight bits as they are, so that a function tells
which of them are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.fn import Pointwise, trace
from weft.planner.counting import COUNT, FACTOR, of_counts
from weft.spec import Arithmetic, Contraction

Between = Callable[[Tensor], Tensor]


def product_of(contraction: Contraction) -> Contraction:
    """The product that counts, and makes D of the counts."""
    product, accumulate = contraction.arithmetic.product, contraction.arithmetic.accumulate
    result = of_counts(contraction)

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

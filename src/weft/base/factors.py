"""The factors of a call: what `alpha` and `beta` that are not said, or are 0, mean. BLAS has them so."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch

from weft.errors import ArgumentError, ShapeError


def addition(c: Any, beta: Any, out: Any) -> tuple[Any, Any]:
    """The addend and its factor: C times `beta`, which is 1 where it is None; without a C `beta` adds to `out`."""
    if beta is None:
        return c, 1.0
    if c is not None or out is None or is_zero(beta):
        return c, beta
    if isinstance(out, (tuple, list)):
        raise ArgumentError("beta without c adds to out, and here out is several tensors: pass c")
    return out, beta


def is_zero(factor: Any) -> bool:
    """Whether a factor is the number 0: what it multiplies is not read then."""
    return isinstance(factor, Number) and bool(factor == 0)  # type: ignore[comparison-overlap]


def check_dimensions(name: str, factor: torch.Tensor) -> None:
    """`ShapeError` for a tensor that is no number."""
    if factor.dim():
        raise ShapeError(f"{name} has shape {tuple(factor.shape)}: a factor is a number, or a tensor of no dimensions")

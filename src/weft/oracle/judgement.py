"""Results held against the oracle's: distances, the worst element, selected places."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.fn.algebra import TracedAlgebra
from weft.oracle.reference import wide


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of `a` (batch, k, m) and `b` (batch, k, n), none of them empty."""
    rows = []
    for row in a.unbind(2):
        left, right = torch.broadcast_tensors(row[:, :, None], b)
        pairs = algebra.combine(left, right)
        assert isinstance(pairs, torch.Tensor), "combine has one result"
        rows.append(pairs.max(1) if largest else pairs.min(1))
    return torch.stack([row.values for row in rows], 1).to(a.dtype), torch.stack([row.indices for row in rows], 1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How right some elements are."""

    wrong: int  # elements past their bound
    of: int  # elements
    worst: float  # the largest error in units of its bound: at most 1 where all are right, 0 where there is none
    at: int  # which element that is, counted row by row

    @property
    def right(self) -> bool:
        return self.wrong == 0


def judged(actual: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> Judgement:
    """All elements of `actual` against the exact ones."""
    ratio = error_over_bound(actual, exact, bound).reshape(-1)
    if not ratio.numel():
        return Judgement(0, 0, 0.0, 0)
    at = int(ratio.argmax())
    return Judgement(int((ratio > 1).sum()), ratio.numel(), float(ratio[at]), at)


def error_over_bound(actual: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """The error of each element in units of its bound: at most 1 for a correct result.

    NaN must meet NaN and infinity the same infinity. Overflow is right where rounding the exact value to the type, or
    the bound, leads past its largest value.
    """
    have, want = wide(actual), wide(exact)
    error = distance(have, want)
    if actual.dtype.is_floating_point:
        as_rounded = distance(have, wide(exact.to(actual.dtype))) == 0
        error = torch.where(~have.isfinite() & as_rounded, 0.0, error)
        largest = torch.finfo(actual.dtype).max
        overflow = have.isinf() & (want.abs() + bound > largest) & (have.sign() == want.sign())
        error = torch.where(overflow, 0.0, error)
    elif actual.dtype.is_complex:
        # Which part of a product with an infinity is infinite, and which NaN, is not agreed upon.
        error = torch.where(~have.isfinite() & ~want.isfinite(), 0.0, error)
    # A bound is NaN where the operands are; there only the same NaN will do.
    ratio = error / bound.nan_to_num(nan=0.0, posinf=math.inf)
    return torch.where((error == 0) | bound.isposinf(), 0.0, ratio)


def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """|x - y|, where equal infinities and two NaN are no distance and one NaN is an infinite one."""
    found = (x - y).abs().double()
    found = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, found)
    return found.nan_to_num(nan=math.inf, posinf=math.inf)


def as_held(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The exact values as a result of whole numbers holds them, which wrap around; others as they are."""
    whole = not (dtype.is_floating_point or dtype.is_complex or exact.is_floating_point() or exact.is_complex())
    return wide(exact.to(dtype)) if whole else exact


def fill_unwritten(d: torch.Tensor) -> None:
    """Fill a result's place, so that an element left unwritten shows."""
    value = torch.full((d.element_size(),), unwritten(d.dtype), dtype=torch.uint8, device=d.device).view(d.dtype)
    d.copy_(value.expand(d.shape) if d.dim() else value[0])


def unwritten(dtype: torch.dtype) -> int:
    """The byte that memory is filled with before a result is written to it: no contraction gives 0xFF.., which is NaN,
    and hardly one the pattern of 0x5A that stands for it among whole numbers."""
    return 0xFF if dtype.is_floating_point or dtype.is_complex else 0x5A

"""Products of blocks in the algebra of logarithms: log(sum over k of exp(x + y)).

Where the values of a row of the left block, and of a column of the right one, lie close enough together, this is one
matrix product:

    log(sum over k of exp(x[k] - row) * exp(y[k] - column)) + row + column

with `row` and `column` the largest of each. It is used where it is as exact as the direct form has to be. Let u be the
unit roundoff, S the spread: every finite value is at least its row's largest less S. Then, to first order,

    exp(x - row) * exp(y - column)    is off by u (2 S + 4), relatively
    its sum over K                    by u K more
    its logarithm, at most 2 S + log K in size, and row + column, at most |L| + 2 S + log K, add their roundings

so the result L is off by no more than u (K + 6 S + 2 |L| + 2 log K + 6). The direct form, which reduces K values one
after the other with a few units lost of |L| + 1 each time, may be off by 8 u K (|L| + 1): see
`weft.oracle.bounds_algebra`. With S <= K the former is less for all K from 16. S is bounded as well so that no product
underflows: then a zero stands for exp(-inf) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

LEAST_SUMS = 16  # along k
SPREAD = {torch.float32: 40.0, torch.float64: 340.0}  # exp(-2 S) is a normal number


class LogProduct:
    """The product of two blocks, reduced with an accumulator; `directly` is the same by tables of pairs."""

    def __init__(self, directly: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]) -> None:
        self._directly = directly

    def __call__(self, accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
        """(accumulator [rows, columns], left [rows, k], right [k, columns]), all behind a batch or none."""
        x = _exponentials(left, -1)
        y = _exponentials(right, -2) if x is not None else None
        if x is None or y is None:
            self._directly(accumulator, left, right, first)
            return
        multiply = torch.bmm if accumulator.dim() == 3 else torch.mm
        values = torch.empty(accumulator.shape, dtype=accumulator.dtype, device="cpu")
        multiply(x[0], y[0], out=values)
        values.log_().add_(x[1]).add_(y[1])
        if first:
            accumulator.copy_(values)
        else:
            torch.logaddexp(accumulator, values, out=accumulator)


def _exponentials(values: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """exp(values - largest along dim) and that largest, 0 for -inf; None where a finite value lies too far below it.

    None too for NaN and inf.
    """
    sums = values.shape[dim]
    if sums < LEAST_SUMS:
        return None
    largest = values.amax(dim, keepdim=True)
    largest.masked_fill_(largest == -math.inf, 0)
    below = values - largest
    near = below >= -min(SPREAD[values.dtype], sums)
    if not bool(near.logical_or_(below == -math.inf).all()):
        return None
    return below.exp_(), largest


def logsumexp(pairs: torch.Tensor, dim: int, out: torch.Tensor) -> None:
    """log(sum of exp) along one dimension, which is not empty.

    As `torch.logsumexp`, but by powers of two: torch's exponential of float32 takes many times longer where results
    underflow. d times log2(e) is off by a few u |d|, which counts with the weight exp(-|d|).
    """
    largest = pairs.amax(dim, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0)
    powers = (pairs - largest).mul_(math.log2(math.e)).exp2_()
    torch.sum(powers, dim, out=out)
    out.log_().add_(largest.squeeze(dim))

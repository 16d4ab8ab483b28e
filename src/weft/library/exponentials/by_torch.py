"""Sums of exponentials by a product of matrices on a CPU; tables of pairs where that loses something.

The identity, and what is lost: `weft.planner.exponentials`. Whether something is lost is looked up in the sums, for
which a GPU would have to be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weft.library.products import MatrixProducts
from weft.planner.exponentials import Exponent, least_sum, spread_kept

LEAST_PAIRS = 1 << 13  # that are worth a dozen operations,
LEAST_SIDE = 4  # of results with so many rows and columns

Direct = Callable[[Tensor, Tensor], Tensor]


def summed(x: Tensor, y: Tensor, exponent: Exponent, multiply: MatrixProducts, direct: Direct) -> Tensor:
    """[batch, m, n] of [batch, m, k] and [batch, n, k], none of them empty; `direct` computes a part from pairs."""
    p, q = _largest(x, exponent), _largest(y, exponent)
    sums = multiply.made(_factor(x, p, exponent), _factor(y, q, exponent).mT)
    low, high = torch.aminmax(sums)
    total = torch.log(sums)
    if exponent.rate != 1:
        total /= exponent.rate
    total.add_(p).add_(q.mT)
    if not (low >= least_sum(x.shape[-1], sums.dtype) and high < math.inf):  # or NaN
        _repair(total, _lost(x, y, p, q, sums, exponent), x, y, direct)
    return total


def _largest(values: Tensor, exponent: Exponent) -> Tensor:
    return values.amax(-1, keepdim=True) if exponent.rate > 0 else values.amin(-1, keepdim=True)


def _factor(values: Tensor, largest: Tensor, exponent: Exponent) -> Tensor:
    """Exponentials of values under the largest of their row; zeros of a row that holds nothing."""
    off = values - largest.masked_fill(largest == exponent.nothing, 0)
    if exponent.rate != 1:
        off *= exponent.rate
    return off.exp_()


def _lost(x: Tensor, y: Tensor, p: Tensor, q: Tensor, sums: Tensor, exponent: Exponent) -> Tensor:
    """Which sums do not tell their result."""
    empty = (p == exponent.nothing) & ~_special(q, exponent).mT | (q == exponent.nothing).mT & ~_special(p, exponent)
    lost = ~(sums < math.inf) & ~empty  # or NaN
    spread = _spread(x, p, exponent) + _spread(y, q, exponent).mT
    small = (sums < least_sum(x.shape[-1], sums.dtype)) & (spread > spread_kept(sums.dtype))
    return lost | small & ~empty


def _special(largest: Tensor, exponent: Exponent) -> Tensor:
    return torch.isnan(largest) | (largest == -exponent.nothing)


def _spread(values: Tensor, largest: Tensor, exponent: Exponent) -> Tensor:
    """How far the exponents of a row that stand for something reach below the largest."""
    off = (values - largest) * exponent.rate
    return off.masked_fill(values == exponent.nothing, 0).amin(-1, keepdim=True).neg_()


def _repair(total: Tensor, lost: Tensor, x: Tensor, y: Tensor, direct: Direct) -> None:
    """Compute rows and columns that hold results which were lost, of each of a batch, from pairs."""
    for which in lost.flatten(1).any(1).nonzero().flatten().tolist():
        rows, columns = lost[which].any(1).nonzero()[:, 0], lost[which].any(0).nonzero()[:, 0]
        part = direct(x[which, rows][None], y[which, columns][None])[0]
        total[which, rows[:, None], columns] = part

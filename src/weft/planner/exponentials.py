"""Sums of exponentials as products of matrices: which algebras are such sums, and which results the product tells.

    D[m, n] = log sum_k exp(A[m, k] + B[k, n])
            = p[m] + q[n] + log sum_k exp(A[m, k] - p[m]) exp(B[k, n] - q[n])

p and q are the largest values of rows of A and of columns of B. So m k + k n exponentials do for m k n of them (the
trick of the largest value: Blanchard, Higham, Higham, IMA J. Numer. Anal. 41, 2021, of each factor by itself).

A factor below the least normal number is lost, and so is a product of two. Where the largest pairs of A and of B stand
apart, all products may be: then the sum is small or zero although D is not minus infinity. `least_sum` is the sum from
on which what was lost is below the rounding of the sum; the direct form computes the others.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from weft import algebra as algebras
from weft.algebra import Algebra
from weft.fn.algebra import TracedAlgebra

TYPES = (torch.float32, torch.float64)  # whose exponents have room for factors


class Exponent(NamedTuple):
    """A value v of the algebra stands for exp(rate * v): 1 for `log`, ln 2 for powers of two, -1 for soft minima."""

    rate: float

    @property
    def nothing(self) -> float:
        """The value that stands for 0."""
        return -math.inf if self.rate > 0 else math.inf


def _soft_minimum(p: Tensor, q: Tensor) -> Tensor:
    return -torch.logaddexp(-p, -q)


_KINDS = {
    Exponent(1.0): algebras.log,
    Exponent(math.log(2)): Algebra(torch.add, torch.logaddexp2, "lowest", "log2"),
    Exponent(-1.0): Algebra(torch.add, _soft_minimum, "highest", "soft minimum"),
}


@lru_cache
def exponent_of(algebra: TracedAlgebra, accumulate: torch.dtype) -> Exponent | None:
    """The exponentials that an algebra adds; None where it adds none. It is recognised by what it computes."""
    if accumulate not in TYPES:
        return None
    known = (exponent for exponent, ready in _KINDS.items() if ready.is_traced_as(algebra, accumulate))
    return next(known, None)


def least_sum(k: int, accumulate: torch.dtype, scale: float = 1.0) -> float:
    """The sum of `k` products of scaled factors from on which the factors and products that are lost do not count.

    `scale` is that of each factor. What is lost is below the least normal number, times the largest other factor.
    """
    numbers = torch.finfo(accumulate)
    return 2 * k * numbers.tiny * scale / (numbers.eps / 2)


def spread_kept(accumulate: torch.dtype, scale: float = 1.0) -> float:
    """How far below the largest ones both factors' least exponents may lie, added up, for no product to be lost."""
    return 2 * math.log(scale) - math.log(torch.finfo(accumulate).tiny) - 1.0

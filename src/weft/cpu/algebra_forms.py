"""Algebras whose products of blocks are matrix products in disguise, value for value.

    or_and             a pair is true where both are not zero: count the true pairs; sums of zeros and ones that are
                       not all zero never round to zero, so no count is missed
    gf2 of bool        the count is odd
    plus_times_mod(p)  remainders multiplied and summed in float64, exact as long as sums stay below 2**53

An algebra is recognised by what it computes; its name at most suggests what to try.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from weft.algebra import Algebra, gf2, or_and, plus_times_mod
from weft.errors import WeftError
from weft.fn.algebra import TracedAlgebra

LEAST_CHUNK = 64  # products summed at once, under which a matrix product is not worth its detour


class MatrixForm(NamedTuple):
    """How a product of blocks becomes a matrix product in `dtype`, of at most `chunk` terms at a time."""

    dtype: torch.dtype
    factor: Callable[[torch.Tensor], torch.Tensor]  # a block -> what is multiplied
    result: Callable[[torch.Tensor], torch.Tensor]  # sums of products -> values of the algebra, of any type
    chunk: int


@lru_cache
def matrix_form(algebra: TracedAlgebra, accumulate: torch.dtype) -> MatrixForm | None:
    """The form of an algebra for values of `accumulate`; None where it has none that is exact."""
    if _same(algebra, or_and, accumulate):
        return MatrixForm(torch.float32, _truth, lambda counts: counts != 0, 1 << 62)
    if accumulate is torch.bool and _same(algebra, gf2, accumulate):
        return MatrixForm(torch.float32, _truth, lambda counts: counts.remainder(2) != 0, 1 << 24)
    p = _modulus(algebra, accumulate)
    if p is None:
        return None
    chunk = (2**53 - 1) // (p - 1) ** 2
    if chunk < LEAST_CHUNK:
        return None
    return MatrixForm(
        torch.float64,
        lambda values: values.remainder(p).to(torch.float64),
        lambda sums: sums.to(torch.int64).remainder_(p),
        chunk,
    )


def _truth(values: torch.Tensor) -> torch.Tensor:
    return (values != 0).to(torch.float32)


def _modulus(algebra: TracedAlgebra, accumulate: torch.dtype) -> int | None:
    """p where the algebra is `plus_times_mod(p)`: its name suggests p, what it computes proves it."""
    found = re.fullmatch(r"plus_times_mod\((\d+)\)", algebra.name)
    if found is None:
        return None
    p = int(found[1])
    return p if p >= 2 and _same(algebra, plus_times_mod(p), accumulate) else None


def _same(algebra: TracedAlgebra, ready: Algebra, accumulate: torch.dtype) -> bool:
    try:
        return algebra == ready.traced(accumulate)
    except WeftError:  # which does not work on that type
        return False

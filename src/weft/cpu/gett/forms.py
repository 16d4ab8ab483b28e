"""Algebras whose sums are sums of products of other numbers, value for value.

    or_and             a pair is true where both are not zero: count the true pairs; sums of zeros and ones that are
                       not all zero never round to zero, so no count is missed
    gf2 of bool        the count is odd
    plus_times_mod(p)  remainders multiplied and summed in float64, exact as long as sums stay below 2**53

Of a large modulus few products would stay below that. One factor is then cut into two digits, b = high * 2**s + low:

    a * b  =  a * low + (a * 2**s mod p) * high    (mod p)

so that the sum goes over twice as many products, of numbers half as long. Remainders are around zero, which saves a
bit of each factor. Sums are brought back to remainders whenever a block of k has been added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from weft.algebra import of_count, plus_times_mod
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra

EXACT = 2**53  # up to which float64 has every integer
LEAST_CHUNK = 64  # products summed at once, under which factors are cut


class MatrixForm(NamedTuple):
    """How a reduction becomes sums of products in `dtype`, of at most `chunk` along k at a time.

    The functions take values of the accumulator's type, and where there are several `parts` which of them.
    """

    dtype: torch.dtype
    a_factor: Pointwise
    b_factor: Pointwise
    result: Pointwise  # sums of products -> values of the algebra
    between: Pointwise | None = None  # sums of a chunk -> what stands for them in further ones
    chunk: int = 1 << 62
    parts: int = 1


@lru_cache
def matrix_form(algebra: TracedAlgebra, accumulate: torch.dtype) -> MatrixForm | None:
    """The form of an algebra for values of `accumulate`; None where it has none that is exact.

    An algebra is recognised by what it computes; its name at most suggests what to try.
    """
    if (result := of_count(algebra, accumulate)) is not None:
        return _of_truth(accumulate, result)
    p = _modulus(algebra, accumulate)
    return None if p is None else _of_remainders(p, accumulate)


def _of_truth(accumulate: torch.dtype, result: Callable[[Tensor], Tensor]) -> MatrixForm:
    truth = trace(lambda x: (x != 0).to(torch.float32), (accumulate,), hook="truth")
    return MatrixForm(torch.float32, truth, truth, trace(result, (torch.float32,), hook="result"), chunk=1 << 24)


def _of_remainders(p: int, accumulate: torch.dtype) -> MatrixForm:
    half = p // 2 + 1
    chunk = (EXACT - 2 * p) // half**2
    if chunk >= LEAST_CHUNK:
        factor = trace(lambda x: _around_zero(x, p), (accumulate,), hook="factor")
        a_factor, b_factor, parts = factor, factor, 1
    else:
        bits = p.bit_length() // 2
        chunk, parts = (EXACT - 2 * p) // (half * (2 ** (bits - 1) + half // 2**bits + 1)), 2

        def moved(x: Tensor, part: Tensor) -> Tensor:
            value = _around_zero(x, p)
            return torch.where(part == 0, value, _rest(value * float(2**bits), p))

        def digit(x: Tensor, part: Tensor) -> Tensor:
            value = _around_zero(x, p)
            high = torch.floor(value * 2.0**-bits + 0.5)
            return torch.where(part == 0, value - high * float(2**bits), high)

        types = (accumulate, torch.int64)
        a_factor = trace(moved, types, names=("part",), hook="factor")
        b_factor = trace(digit, types, names=("part",), hook="factor")

    def result(total: Tensor) -> Tensor:
        rest = _rest(total, p)
        return torch.where(rest < 0, rest + p, rest).to(accumulate)

    between = trace(lambda total: _rest(total, p), (torch.float64,), hook="between")
    ending = trace(result, (torch.float64,), hook="result")
    return MatrixForm(torch.float64, a_factor, b_factor, ending, between, chunk, parts)


def _rest(value: Tensor, p: int) -> Tensor:
    """A float64 integer of at most `EXACT` modulo p, between -p / 2 and p / 2; each step is exact."""
    rest = value - torch.round(value * (1 / p)) * p
    rest = torch.where(rest > p // 2, rest - p, rest)
    return torch.where(rest < -(p // 2), rest + p, rest)


def _around_zero(x: Tensor, p: int) -> Tensor:
    """Any integer modulo p as a float64 around zero, by quotients in float64: vectors have no integer division.

    The first quotient may be off by |x| / p / 2**51, so that a second one is taken, of what is left.
    """
    x = x.to(torch.int64)
    x = x - torch.round(x.to(torch.float64) * (1 / p)).to(torch.int64) * p
    return _rest(x.to(torch.float64), p)


def _modulus(algebra: TracedAlgebra, accumulate: torch.dtype) -> int | None:
    """p where the algebra is `plus_times_mod(p)`: its name suggests p, what it computes proves it."""
    found = re.fullmatch(r"plus_times_mod\((\d+)\)", algebra.name)
    if found is None:
        return None
    p = int(found[1])
    return p if p >= 2 and plus_times_mod(p).is_traced_as(algebra, accumulate) else None

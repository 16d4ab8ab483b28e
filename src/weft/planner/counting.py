"""Sums of truth values as counts of the pairs that are true in both: conditions of the families that count.

    or over k of (a[m, k] and b[k, n])  =  (sum over k of a[m, k] * b[k, n]) != 0        of the bytes 0 and 1

Products of int8 summed in int32 are exact, so no pair is lost. Every byte that is not zero is true, as torch has it,
and is made 1 before it is multiplied: of bytes as they are stored 1 * 1 + 255 * 1 would be zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.algebra import of_count
from weft.spec import Contraction

FACTOR, COUNT = torch.int8, torch.int32
BYTES = (torch.bool, torch.int8, torch.uint8)  # whose values are not cut on their way to a byte
MOST = 2**31 - 2  # pairs: one more, for C's value, is the largest count


def of_counts(contraction: Contraction) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that makes truth values of counts, for a contraction that is not refused."""
    assert contraction.algebra is not None
    found = of_count(contraction.algebra, contraction.arithmetic.accumulate)
    assert found is not None, "other algebras are refused"
    return found


def refusal(contraction: Contraction) -> str | None:
    """Why counting does not tell the result, in one sentence; None where it does."""
    algebra, arithmetic = contraction.algebra, contraction.arithmetic
    if algebra is None or of_count(algebra, arithmetic.accumulate) is None:
        return "only sums of truth values, or_and and gf2 of bool, are told by how many pairs are true"
    if not {contraction.a.dtype, contraction.b.dtype, arithmetic.product} <= set(BYTES):
        return "pairs are counted of bool and of integers of eight bits: others would be cut before they are seen"
    if contraction.k > MOST:
        return f"more than {MOST} pairs may be too many for int32"
    return None

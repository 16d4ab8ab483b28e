"""float32 operands as sums of terms in 16 bits, whose products matrix units add up in float32.

    terms   of          products                                      for precision
    2       float16     a1 b0 + a0 b1 + a0 b0, of scaled operands     "tf32x3"
    3       bfloat16    a2 b0 + a1 b1 + a0 b2 + a1 b0 + a0 b1 + a0 b0 "ieee_bound"

Kernels add them up in this order, in one sum: the last, which is the largest, is added to what is small. The bound of
the second is that of `weft.planner.split_schemes.BF16X6`, whose sums of orders are added up apart: here K products are
added to a sum that is larger by all orders but the first together, 2^-7 of it, and additions of orders fall away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.planner.split_schemes import BF16X6, LARGEST, padded_length

HALVES, BOUND = 2, BF16X6.terms
TYPES = {HALVES: torch.float16, BOUND: torch.bfloat16}
_SCALED = 13  # bits: the largest float16 is below two to the power of this, so that what it lacks is no subnormal


def products(terms: int) -> list[tuple[int, int]]:
    """The terms of A and B that are multiplied, small ones first."""
    return [(order - at, at) for order in reversed(range(terms)) for at in range(order + 1)]


def terms_of(tensor: Tensor, rows: int, terms: int) -> tuple[Tensor, Tensor]:
    """The terms of a matrix, (terms, rows, k), and the factor of them all; k is padded to words of 16 bytes."""
    rest, factor = tensor.reshape(rows, -1), tensor.new_ones(())
    if terms == HALVES:
        factor = torch.exp2(torch.ceil(torch.log2(rest.abs().amax().clamp(1e-30, 1e30))) - _SCALED)
        rest = rest / factor
    k = rest.shape[1]
    found = tensor.new_zeros((terms, rows, padded_length(k)), dtype=TYPES[terms])
    for at, place in enumerate(found[:, :, :k]):
        place.copy_(rest)
        if at + 1 < terms:
            rest = rest - place.float()
    return found, factor


def terms_for(precision: str, k: int) -> int:
    """The terms of float32 values for sums of k products; 0 where they are multiplied as they are."""
    if precision == "ieee_bound":
        return BOUND if BF16X6.admitted(k, (k,)) else 0
    return HALVES if precision == "tf32x3" else 0


def held(*tensors: Tensor) -> bool:
    """Whether terms hold all values of operands. It waits for the device; in a graph, where none can, they may not."""
    if any(each.is_meta for each in tensors):
        return True
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return bool((torch.stack([each.abs().amax() for each in tensors]) < LARGEST).all())

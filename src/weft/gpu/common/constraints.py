"""Constraints that several families share, each stated once."""

from __future__ import annotations

import torch

from weft.planner.schedule import Target
from weft.spec import Contraction

ALIGNMENT = 16  # bytes: of addresses and of every stride but the innermost, for TMA and for accesses of full width
LEAST_MMA_EXTENT = 16  # of m, n and k: no matrix instruction takes fewer indices
LEAST_SPLIT_STEPS = 4  # along k in a split-K partial: with fewer the reduction costs more than it gains


def is_product_of_vectors(contraction: Contraction) -> bool:
    """Whether there is nothing for a matrix instruction to share: then no product is shortened, though it may be."""
    return min(contraction.m, contraction.n) < 2 and contraction.batch > 1


def widened(contraction: Contraction, target: Target) -> bool:
    """Whether products are made in the accumulator's type: no matrix instruction accumulates single in double, and
    Triton's interpreter takes bfloat16 for integers."""
    product, accumulate = contraction.arithmetic.product, contraction.arithmetic.accumulate
    if accumulate is torch.float64:
        return product is not torch.float64
    return product is torch.bfloat16 and target.kind == "interpreter"

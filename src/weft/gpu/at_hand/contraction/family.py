"""The family at hand: kernels that serve any extents and strides, compiled once for a handful of structures.

It is asked by `planner.at_hand` alone: what is made to measure ranks among the other families.
"""

from __future__ import annotations

import torch

from weft.gpu.at_hand.contraction.cost import predict
from weft.gpu.at_hand.contraction.launch import build, structures
from weft.gpu.at_hand.contraction.schedule import NAME, HandSchedule, candidates, too_long
from weft.gpu.common.constraints import is_product_of_vectors
from weft.gpu.common.launch import common_reasons, precision_reason
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction

__all__ = ["FINDS_PEAKS", "NAME", "HandSchedule", "build", "predict", "schedules", "structures", "supports"]

FINDS_PEAKS = True


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if too_long(contraction):
        return "indices or strides do not fit into 32 bits"
    if contraction.arithmetic.precision != "ieee" and not by_dot(contraction, target):
        return f"'{contraction.arithmetic.precision}' products are made by matrix instructions only"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates(tuple(candidates(contraction, target, by_dot(contraction, target))))


def by_dot(contraction: Contraction, target: Target) -> bool:
    """Whether `tl.dot` can make the products."""
    arithmetic = contraction.arithmetic
    if contraction.algebra is not None or min(contraction.m, contraction.n) < 2:
        return False
    if is_product_of_vectors(contraction) or precision_reason(arithmetic, target) is not None:
        return False
    product = arithmetic.product
    if not product.is_floating_point:
        return False
    narrowest = min(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize, product.itemsize)
    return narrowest >= 4 or arithmetic.accumulate is not torch.float64

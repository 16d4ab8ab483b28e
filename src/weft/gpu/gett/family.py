"""GETT on matrix instructions: operands are gathered where they lie, nothing is copied first and nothing is padded.

A tile goes along one or two modes a side. D is stored in its own order; split-K fills the device where D is small.
"""

from __future__ import annotations

import torch

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import is_product_of_vectors
from weft.gpu.common.contraction_launch import gathering_launch
from weft.gpu.common.launch import common_reasons, precision_reason
from weft.gpu.common.operation import operation
from weft.gpu.gett.model import NAME, GettSchedule, gett_params, predict, schedules
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

KERNEL = DeviceFunction("weft.gpu.gett.kernel", "gett_kernel")

__all__ = ["NAME", "adds_in_order", "build", "predict", "schedules", "supports"]

# Products of a sum: a longer one of int8 may leave int32, where `mma.sync` stops at the ends of its range.
LONGEST_INT8 = 2**31 // 128**2 - 1


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target) or precision_reason(contraction.arithmetic, target)
    if reason is not None:
        return reason
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    product = contraction.arithmetic.product
    if not product.is_floating_point and (product, contraction.arithmetic.accumulate) != (torch.int8, torch.int32):
        return f"{dtype_name(product)} products have no matrix instruction here"
    if product is torch.int8 and contraction.k > LONGEST_INT8:
        return (
            f"sums of more than {LONGEST_INT8} products could leave int32, where some matrix instructions do not wrap"
        )
    narrowest = min((contraction.a.dtype, contraction.b.dtype, product), key=lambda dtype: dtype.itemsize)
    if narrowest.itemsize < 4 and contraction.arithmetic.accumulate is torch.float64:
        return f"no matrix instruction adds products of {dtype_name(narrowest)} in float64"
    if contraction.invariant:
        return _unknown_bits(target)
    if is_product_of_vectors(contraction):
        return "m or n is 1 in a batch: nothing for a matrix instruction to share"
    if contraction.m == contraction.n == 1 and product.is_floating_point and contraction.arithmetic.precision == "ieee":
        return "a single sum has nothing for a matrix instruction to share"
    return None


def _unknown_bits(target: Target) -> str | None:
    """Why bits might depend on extents: Hopper's two kinds of matrix instructions were measured to add alike, earlier
    devices have one kind."""
    if target.kind in ("cuda", "interpreter") and target.capability <= 90:
        return None
    return "its matrix instructions are of several kinds, and whether these add alike was not measured"


def adds_in_order(contraction: Contraction, schedule: GettSchedule) -> bool:
    """Products enter a sum one instruction after the other, in runs of one length."""
    return True


def build(contraction: Contraction, schedule: GettSchedule, target: Target) -> Launch:
    params = gett_params(contraction, schedule, target)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    return gathering_launch(KERNEL, contraction, constants, params, schedule, target)

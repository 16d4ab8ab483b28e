"""Products that no matrix instruction makes: other algebras, integers, and IEEE products in float32.

Each thread keeps a small tile of D in registers, so that an element that is loaded serves many products. Operands are
gathered where they lie, as in the family gett.
"""

from __future__ import annotations

import torch

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.contraction_launch import gathering_launch
from weft.gpu.common.launch import common_reasons
from weft.gpu.common.operation import operation
from weft.gpu.common.tiling import TENSORS
from weft.gpu.semiring.algebra import exponential_constants
from weft.gpu.semiring.model import predict, semiring_params
from weft.gpu.semiring.schedule import NAME, SemiringSchedule, schedules
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

KERNEL = DeviceFunction("weft.gpu.semiring.kernel", "semiring_kernel")

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

LEAST_DIM = 8  # of m and n: less has nothing to share


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    product = contraction.arithmetic.product
    if contraction.algebra is None and product.is_floating_point and not ieee_single(contraction):
        return f"matrix instructions and the family simt make {dtype_name(product)} products"
    if min(contraction.m, contraction.n) < LEAST_DIM:
        return f"m={contraction.m} or n={contraction.n} is under {LEAST_DIM}: nothing to share"
    return None


def ieee_single(contraction: Contraction) -> bool:
    """Whether it is of sums of IEEE products in float32, which matrix instructions do not make."""
    arithmetic = contraction.arithmetic
    single = arithmetic.product is torch.float32 and arithmetic.accumulate is torch.float32
    return contraction.algebra is None and single and arithmetic.precision == "ieee"


def build(
    contraction: Contraction, schedule: SemiringSchedule, target: Target, guard: int | None = None
) -> Launch:
    """`guard`: an auxiliary operand, bool along D's modes. Only output tiles where any of it is true are written,
    whole; the rest of D is left as it is."""
    params = semiring_params(contraction, schedule)
    if guard is not None:
        before = sum(each.layout is not None for each in contraction.aux[:guard])
        params = params._replace(guard=(TENSORS + guard, before))
    constants = {"PARAMS": params, "OP": operation(contraction)} | exponential_constants(contraction)
    constants["STAGES"] = schedule.stages
    return gathering_launch(KERNEL, contraction, constants, params.subtile, schedule, target)

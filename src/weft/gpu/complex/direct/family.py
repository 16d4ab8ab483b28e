"""The direct family of complex numbers: operands gathered where they lie, nothing written but D.

C's function and the epilogue are applied to output tiles, with their auxiliary operands.

It is for products that memory bounds: a small operand meets a large one, or k is short. Then what counts is that each
operand is read once and D written once; larger products go faster as real ones, see `real_forms`.
"""

from __future__ import annotations

from weft.gpu.common.launch import precision_reason
from weft.gpu.complex.direct.cost import predict
from weft.gpu.complex.direct.launch import DirectLaunch
from weft.gpu.complex.direct.schedule import NAME, DirectSchedule, schedules
from weft.gpu.complex.launch import function_reason
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction

__all__ = ["NAME", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if not arithmetic.product.is_complex or not contraction.a.dtype.is_complex or not contraction.b.dtype.is_complex:
        return "it is for two complex operands"
    if contraction.algebra is not None:
        return f"it does not compute in the algebra {contraction.algebra.name}"
    if contraction.a_fn is not None or contraction.b_fn is not None:
        return "functions of complex operands are applied by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    reason = precision_reason(arithmetic, target)
    if reason is not None:
        return reason
    layouts = (contraction.c, contraction.d, *(each.layout for each in contraction.aux))
    return function_reason((contraction.c_fn, contraction.epilogue), layouts, target)


def build(contraction: Contraction, schedule: DirectSchedule, target: Target) -> Launch:
    return DirectLaunch(contraction, schedule, target)

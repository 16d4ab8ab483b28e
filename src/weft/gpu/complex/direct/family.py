"""Complex products by four real ones in one kernel: schedules for a description, and the launch.

Operands are gathered where they lie, and the four real products of each pair are made in registers.
"""

from __future__ import annotations

from weft.gpu.common.aux_operands import as_elements, aux_params
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.contraction_launch import ContractionLaunch
from weft.gpu.common.launch import precision_reason
from weft.gpu.complex.direct.model import NAME, UNROLLED, DirectSchedule, direct_params, predict, schedules
from weft.gpu.complex.launch import ComplexKernelLaunch, complex_operation, function_reason
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction

KERNEL = DeviceFunction("weft.gpu.complex.direct.kernel", "complex_direct_kernel")


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
    params, arithmetic = direct_params(contraction, schedule, target), contraction.arithmetic
    tensors = (contraction.a, contraction.b, contraction.c, contraction.d)
    op = complex_operation(
        tensors, (None, contraction.c_fn, contraction.epilogue), (contraction.conjugate_a, contraction.conjugate_b),
        arithmetic.accumulate, arithmetic.accumulate, aux_params(contraction), arithmetic.precision,
    )  # fmt: skip
    layouts = [layout and as_elements(layout) for layout in tensors]
    pointers = [as_elements(each.layout) for each in contraction.aux if each.layout is not None]
    constants = {"PARAMS": params, "OP": op, "UNROLLED": UNROLLED}
    kernel = ComplexKernelLaunch(
        KERNEL, layouts, constants, True, target, params.blocks, schedule.tiles.warps, schedule.tiles.stages, pointers
    )
    return ContractionLaunch(kernel)

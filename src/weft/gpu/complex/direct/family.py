"""Complex products by four real ones in one kernel: schedules for a description, and the launch.

Operands are gathered where they lie, and the four real products of each pair are made in registers.
"""

from __future__ import annotations

from torch import Tensor

from weft.gpu.common.aux_operands import as_elements, aux_params, kind_of, real, real_arithmetic, seen_as
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.launch import TRITON_TYPES, precision_reason
from weft.gpu.complex.direct.model import NAME, DirectSchedule, direct_params, predict, schedules
from weft.gpu.complex.launch import ComplexKernelLaunch, function_reason
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Contraction

KERNEL = DeviceFunction("weft.gpu.complex.direct.kernel", "complex_direct_kernel")


class ComplexDirectLaunch:
    """A built product: call it with complex tensors, factors, and auxiliary operands where the contraction has some."""

    def __init__(self, contraction: Contraction, schedule: DirectSchedule, target: Target) -> None:
        self.kernels = (kernel_launch(contraction, schedule, target),)
        self._kinds = [kind_of(each) for each in (contraction.a, contraction.b, contraction.c, contraction.d)]
        self._aux = [kind_of(each.layout) for each in contraction.aux]

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tensors = [
            None if tensor is None else seen_as(tensor, kind)
            for tensor, kind in zip((a, b, c, d), self._kinds, strict=True)
        ]
        pointers = tuple(
            seen_as(tensor, kind) for tensor, kind in zip(aux, self._aux, strict=True) if tensor is not None
        )
        self.kernels[0](tensors, alpha, beta, pointers)


def kernel_launch(contraction: Contraction, schedule: DirectSchedule, target: Target) -> ComplexKernelLaunch:
    params = direct_params(contraction, schedule, target)
    arithmetic = real_arithmetic(contraction.arithmetic)
    constants = {
        "PARAMS": params,
        "C_FN": contraction.c_fn and contraction.c_fn.split_complex,
        "EPILOGUE": contraction.epilogue and contraction.epilogue.split_complex,
        "PRODUCT": TRITON_TYPES[arithmetic.accumulate],
        "RESULT": TRITON_TYPES[real(contraction.d.dtype)],
        "PRECISION": arithmetic.precision,
        "AUX": aux_params(contraction),
    }
    layouts = [
        layout and as_elements(layout) for layout in (contraction.a, contraction.b, contraction.c, contraction.d)
    ]
    pointers = [as_elements(each.layout) for each in contraction.aux if each.layout is not None]
    return ComplexKernelLaunch(
        KERNEL, layouts, constants, True, target, params.blocks, schedule.tiles.warps,
        schedule.tiles.stages, pointers,
    )  # fmt: skip


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
    return ComplexDirectLaunch(contraction, schedule, target)

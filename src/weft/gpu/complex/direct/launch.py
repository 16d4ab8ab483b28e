"""A schedule built, and run on complex tensors."""

from __future__ import annotations

from torch import Tensor

from weft.gpu.common.aux_operands import aux_params
from weft.gpu.common.complex_elements import as_elements, kind_of, real, real_arithmetic, seen_as
from weft.gpu.common.launch import TRITON_TYPES
from weft.gpu.complex.direct.params import direct_params
from weft.gpu.complex.direct.schedule import DirectSchedule
from weft.gpu.complex.launch import ComplexKernelLaunch
from weft.planner.schedule import AuxTensors, Scalar, Target
from weft.spec import Contraction


class DirectLaunch:
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
    from weft.gpu.complex.direct.kernel import complex_direct_kernel

    params = direct_params(contraction, schedule, target)
    arithmetic = real_arithmetic(contraction.arithmetic)
    constants = {
        "PARAMS": params,
        "C_FN": contraction.c_fn and contraction.c_fn.split_complex.jit,
        "EPILOGUE": contraction.epilogue and contraction.epilogue.split_complex.jit,
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
        complex_direct_kernel, layouts, constants, True, target, params.blocks, schedule.tiles.warps,
        schedule.tiles.stages, pointers,
    )  # fmt: skip

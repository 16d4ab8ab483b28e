"""Off the matrix units: multiply and sum lane by lane, for what has nothing to share in a matrix instruction."""

from __future__ import annotations

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import is_product_of_vectors
from weft.gpu.common.contraction_launch import ContractionLaunch
from weft.gpu.common.launch import KernelLaunch, common_reasons, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.semiring.algebra import over_axis
from weft.gpu.simt.model import NAME, SimtSchedule, predict, programs, schedules, simt_params
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction

KERNEL = DeviceFunction("weft.gpu.simt.kernel", "simt_kernel")

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

STAGES = 3  # of loads that Triton may ask for ahead


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if contraction.arithmetic.precision != "ieee" and not is_product_of_vectors(contraction):
        return f"'{contraction.arithmetic.precision}' products are made by matrix instructions only"
    return None


def build(contraction: Contraction, schedule: SimtSchedule, target: Target) -> Launch:
    params = simt_params(contraction, schedule)
    constants = {"PARAMS": params, "OP": operation(contraction), "OVER_AXIS": over_axis(contraction)}
    kernel = KernelLaunch(
        KERNEL, (contraction.a, contraction.b, contraction.c, contraction.d), constants,
        contraction.arithmetic.accumulate.is_floating_point, target, programs(contraction, schedule), schedule.warps,
        STAGES, pointer_layouts(contraction),
    )  # fmt: skip
    return ContractionLaunch(kernel)

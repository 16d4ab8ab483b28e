"""Kernels with producer and consumer warps: schedules for a description, and the launch.

Producers load tiles by TMA, transform warps apply functions to tiles in shared memory, consumers multiply and store D.
Written in Gluon, for operands of 16 bits on Hopper. `docs/planning.md` names the variants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.gpu.common.constants import DeviceFunction, GluonLayout
from weft.gpu.common.dependent import is_short
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.common.operation import operation
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tensor_maps import TensorMap
from weft.gpu.tma import family as tma
from weft.gpu.tma.family import OperandMaps, TmaLaunch, operand_maps
from weft.gpu.tma.schedule import TmaSchedule
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.model import matrix_layout, swizzle_bytes, ws_params
from weft.gpu.warp_specialized.model import predict as predict_pipelined
from weft.gpu.warp_specialized.roles import WARPS
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates, output_map, partials_layout
from weft.gpu.warp_specialized.stationary_model import StationarySchedule, predict_stationary, stationary_params
from weft.gpu.warp_specialized.stationary_model import candidates as stationary_candidates
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


class SwizzledTensorMap(TensorMap):
    """A tensor map that says how its tiles lie in shared memory: Gluon does not choose it."""

    def descriptor(self, tensor: Any) -> TensorDescriptor:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        shape, strides = list(self.layout.shape), list(self.layout.strides)
        return TensorDescriptor(tensor, shape, strides, list(self.block), self.shared.meant)

    @property
    def spelled_place(self) -> str:
        return f",{self.shared.meant}"

    @property
    def swizzle_bytes(self) -> int:
        return swizzle_bytes(self.block[-1] * self.layout.dtype.itemsize)

    @property
    def shared(self) -> GluonLayout:
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def swizzled_maps(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    a, b, rest = operand_maps(contraction, schedule)
    return SwizzledTensorMap(*a), SwizzledTensorMap(*b), SwizzledTensorMap(*rest) if rest is not None else None


class WsLaunch(TmaLaunch):
    """Launches of kernels that read no C, and store D, or partials, by TMA or from registers."""

    def _stored(self, c: Tensor | None, d: Tensor | None, partials: Tensor | None) -> tuple[Any, ...]:
        return (d if partials is None else partials,)


_ROOM = "weft.gpu.warp_specialized"
KERNEL = DeviceFunction(f"{_ROOM}.kernel", "ws_kernel")
STATIONARY_KERNEL = DeviceFunction(f"{_ROOM}.stationary_kernel", "stationary_kernel")
RESULTS = (torch.float16, torch.bfloat16, torch.float32)

__all__ = ["NAME", "WsSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    """Why the family cannot compute this, in one sentence; None where it can."""
    reason = tma.supports(contraction, target)
    if reason is not None:
        return reason
    if target.kind != "cuda" or target.capability != 90:
        return "only devices of compute capability 9.0 have these matrix instructions"
    product = contraction.arithmetic.product
    if product.itemsize != 2:
        return f"products of {dtype_name(product)} are not made here"
    if contraction.d.dtype not in RESULTS:
        return f"results of {dtype_name(contraction.d.dtype)} are not stored here"
    if contraction.c is not None or contraction.aux:
        return "C and auxiliary operands are not read here"
    return refusal(target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    """Both operands in pipelines, or one of them stationary; either gives the rows of output tiles."""
    swapped = swap_ab(contraction)
    pipelined = candidates(contraction, target)
    stationary = stationary_candidates(contraction, target)
    found = (
        *pipelined.schedules,
        *candidates(swapped, target, swap_ab=True).schedules,
        *stationary.schedules,
        *stationary_candidates(swapped, target, swap_ab=True).schedules,
    )
    return Candidates(found, (*pipelined.excluded, *stationary.excluded))


def adds_in_order(contraction: Contraction, schedule: WsSchedule | StationarySchedule) -> bool:
    """As `tma`, of whole sums; a stationary operand has an order of its own."""
    whole = not isinstance(schedule, StationarySchedule) and schedule.splits == 1
    return whole and tma.adds_in_order(contraction, schedule)


def predict(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> float:
    """Seconds that the cost model expects."""
    if isinstance(schedule, StationarySchedule):
        return predict_stationary(contraction, schedule, target)
    return predict_pipelined(contraction, schedule, target)


def build(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> Launch:
    """The kernel of a schedule, and the reduction of its split-K partials, ready to launch."""
    if isinstance(schedule, StationarySchedule):
        return _build_stationary(contraction, schedule, target)
    contraction = in_kernel_order(contraction, schedule)
    params = ws_params(contraction, schedule, target)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    maps = swizzled_maps(contraction, schedule)
    tiles = params.tma.blocks
    map_d = SwizzledTensorMap(*output_map(contraction, schedule, schedule.rows, tiles).tensor_map)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        KERNEL, (*maps, map_d), constants, real, target, params.tma.programs, WARPS, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    if params.tma.splits == 1:
        return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply)
    partials = partials_layout(contraction, schedule, tiles)
    reduce = reduce_launch(contraction, params.tma, partials, target, params.stream_k)
    return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply, reduce, partials)


def _build_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> Launch:
    contraction = in_kernel_order(contraction, schedule)
    params = stationary_params(contraction, schedule, target)
    maps = swizzled_maps(contraction, schedule)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        STATIONARY_KERNEL, (*maps, contraction.d), constants, real, target, params.tma.programs, schedule.warps, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply)

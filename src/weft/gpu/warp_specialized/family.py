"""The family that reads boxes with specialised warps: for Hopper's matrix instructions, in Gluon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.gpu.common.launch import (
    KernelLaunch,
    TensorMap,
    contraction_constants,
)
from weft.gpu.common.pdl import is_short
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tiling import A, B
from weft.gpu.tma import family as tma
from weft.gpu.tma.schedule import TmaSchedule, parts
from weft.gpu.tma.views import box
from weft.gpu.warp_specialized.cost import predict as predict_shared
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.params import matrix_layout, ws_params
from weft.gpu.warp_specialized.results import results, share_layout
from weft.gpu.warp_specialized.roles import SMEM_TRANSFORM, WARPS
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates
from weft.gpu.warp_specialized.stationary import StationarySchedule, stationary_params
from weft.gpu.warp_specialized.stationary import candidates as kept_candidates
from weft.gpu.warp_specialized.stationary_cost import predict_stationary
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

RESULTS = (torch.float16, torch.bfloat16, torch.float32)

__all__ = ["NAME", "WsSchedule", "build", "predict", "schedules", "supports"]


class SwizzledTensorMap(TensorMap):
    """A box whose place in shared memory is said here: Gluon does not choose it."""

    def descriptor(self, tensor: Any) -> TensorDescriptor:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        shape, strides = list(self.layout.shape), list(self.layout.strides)
        return TensorDescriptor(tensor, shape, strides, list(self.block), self.shared)

    @property
    def spelled_place(self) -> str:
        return f",{self.shared}"

    @property
    def shared(self) -> NVMMASharedLayout:
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def supports(contraction: Contraction, target: Target) -> str | None:
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
        return "C and operands of functions are not read here"
    return refusal(target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    """Both operands in rings, or one of them kept; either gives the rows of blocks."""
    other = swap_ab(contraction)
    straight = candidates(contraction, target)
    kept = kept_candidates(contraction, target)
    found = (
        *straight.schedules,
        *candidates(other, target, swap_ab=True).schedules,
        *kept.schedules,
        *kept_candidates(other, target, swap_ab=True).schedules,
    )
    return Candidates(found, (*straight.excluded, *kept.excluded))


def predict(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> float:
    if isinstance(schedule, StationarySchedule):
        return predict_stationary(contraction, schedule, target)
    return predict_shared(contraction, schedule, target)


def build(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> Launch:
    if isinstance(schedule, StationarySchedule):
        return _build_kept(contraction, schedule, target)
    contraction = in_kernel_order(contraction, schedule)
    params = ws_params(contraction, schedule, target)
    constants = contraction_constants(contraction, params)
    operands = _operands(contraction, schedule)
    blocks, splits = params.boxes.blocks, params.boxes.splits
    box_d = SwizzledTensorMap(*results(contraction, schedule, schedule.rows, blocks).box)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        _kernel(schedule), (*operands, box_d), constants, real, target, params.boxes.programs, WARPS, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    if splits == 1:
        return WsLaunch(operands, box_d, schedule.swap_ab, multiply)
    shares = share_layout(contraction, schedule, blocks)
    combine = reduce_launch(contraction, params.boxes, shares, target, schedule.fewer, params.stream)
    return WsLaunch(operands, box_d, schedule.swap_ab, multiply, combine, shares)


def _kernel(schedule: WsSchedule) -> Any:
    from weft.gpu.warp_specialized.kernel import ws_kernel
    from weft.gpu.warp_specialized.smem_transform_kernel import smem_transform_kernel

    return smem_transform_kernel if schedule.consumers == SMEM_TRANSFORM else ws_kernel


def _operands(contraction: Contraction, schedule: TmaSchedule) -> tuple[SwizzledTensorMap, SwizzledTensorMap, SwizzledTensorMap | None]:
    """Boxes of rows, of columns, and of a second part of those where there is one."""
    tile_m, tile_n, tile_k = schedule.tile
    box_a = SwizzledTensorMap(*box(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k)))
    boxes_b = [
        SwizzledTensorMap(*box(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k)))
        for width in parts(tile_n)
    ]
    return box_a, boxes_b[0], boxes_b[1] if len(boxes_b) > 1 else None


def _build_kept(contraction: Contraction, schedule: StationarySchedule, target: Target) -> Launch:
    from weft.gpu.warp_specialized.stationary_kernel import stationary_kernel

    contraction = in_kernel_order(contraction, schedule)
    params = stationary_params(contraction, schedule, target)
    operands = _operands(contraction, schedule)
    constants = contraction_constants(contraction, params)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        stationary_kernel, (*operands, contraction.d), constants, real, target, params.boxes.programs, schedule.warps, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    return WsLaunch(operands, None, schedule.swap_ab, multiply)


class WsLaunch:
    """The kernel that multiplies, and the one that adds the shares of split sums."""

    def __init__(
        self,
        operands: tuple[SwizzledTensorMap, SwizzledTensorMap, SwizzledTensorMap | None],  # of rows, of columns, and of a second part of those
        result: SwizzledTensorMap | None,  # of D, or of the shares; None where D is stored from registers
        swap_ab: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        combine: KernelLaunch | None = None,
        shares: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, combine) if combine is not None else (multiply,)
        self._operands = operands
        self._result = result
        self._swap_ab = swap_ab
        self._shares = shares

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        rows, columns, rest = self._operands
        if self._swap_ab:
            a, b = b, a
        x, y = rows.descriptor(a), columns.descriptor(b)
        z = rest.descriptor(b) if rest is not None else None
        if self._result is None:
            self.kernels[0]((x, y, z, d), alpha, beta)
            return
        if self._shares is None:
            self.kernels[0]((x, y, z, self._result.descriptor(d)), alpha, beta)
            return
        shares = torch.empty(self._shares.shape, dtype=self._shares.dtype, device=d.device)
        self.kernels[0]((x, y, z, self._result.descriptor(shares)), alpha, beta)
        self.kernels[1]((shares, None, d), alpha, beta)

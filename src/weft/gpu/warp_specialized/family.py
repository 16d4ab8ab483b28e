"""The warp-specialized family: operands by TMA, Hopper's matrix instructions, kernels in Gluon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.gpu.common.launch import KernelLaunch, TensorMap, contraction_constants
from weft.gpu.common.pdl import is_short
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tiling import A, B
from weft.gpu.tma import family as tma
from weft.gpu.tma.schedule import TmaSchedule, n_parts
from weft.gpu.tma.views import tensor_map
from weft.gpu.warp_specialized.cost import predict as predict_pipelined
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.output_map import output_map, partials_layout
from weft.gpu.warp_specialized.params import matrix_layout, ws_params
from weft.gpu.warp_specialized.roles import SMEM_TRANSFORM, WARPS
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates
from weft.gpu.warp_specialized.stationary_cost import predict_stationary
from weft.gpu.warp_specialized.stationary_params import stationary_params
from weft.gpu.warp_specialized.stationary_schedule import StationarySchedule
from weft.gpu.warp_specialized.stationary_schedule import candidates as stationary_candidates
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

RESULTS = (torch.float16, torch.bfloat16, torch.float32)

__all__ = ["NAME", "WsSchedule", "build", "predict", "schedules", "supports"]


class SwizzledTensorMap(TensorMap):
    """A tensor map that says how its tiles lie in shared memory: Gluon does not choose it."""

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


# Of A's rows; of B's columns; of their second part along n where there is one.
OperandMaps = tuple[SwizzledTensorMap, SwizzledTensorMap, SwizzledTensorMap | None]


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
    constants = contraction_constants(contraction, params)
    operands = _operands(contraction, schedule)
    tiles = params.tma.blocks
    map_d = SwizzledTensorMap(*output_map(contraction, schedule, schedule.rows, tiles).tensor_map)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        _kernel(schedule), (*operands, map_d), constants, real, target, params.tma.programs, WARPS, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    if params.tma.splits == 1:
        return WsLaunch(operands, map_d, schedule.swap_ab, multiply)
    partials = partials_layout(contraction, schedule, tiles)
    reduce = reduce_launch(contraction, params.tma, partials, target, schedule.tail_splits, params.stream_k)
    return WsLaunch(operands, map_d, schedule.swap_ab, multiply, reduce, partials)


def _kernel(schedule: WsSchedule) -> Any:
    from weft.gpu.warp_specialized.kernel import ws_kernel
    from weft.gpu.warp_specialized.smem_transform_kernel import smem_transform_kernel

    return smem_transform_kernel if schedule.consumers == SMEM_TRANSFORM else ws_kernel


def _operands(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    tile_m, tile_n, tile_k = schedule.tile
    a_map = SwizzledTensorMap(*tensor_map(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k)))
    b_map, *rest = (
        SwizzledTensorMap(*tensor_map(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k)))
        for width in n_parts(tile_n)
    )
    return a_map, b_map, rest[0] if rest else None


def _build_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> Launch:
    from weft.gpu.warp_specialized.stationary_kernel import stationary_kernel

    contraction = in_kernel_order(contraction, schedule)
    params = stationary_params(contraction, schedule, target)
    operands = _operands(contraction, schedule)
    constants = contraction_constants(contraction, params)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        stationary_kernel, (*operands, contraction.d), constants, real, target, params.tma.programs, schedule.warps, 1,
        pdl=is_short(contraction),
    )  # fmt: skip
    return WsLaunch(operands, None, schedule.swap_ab, multiply)


class WsLaunch:
    """The kernel that multiplies, and the one that reduces split-K partials."""

    def __init__(
        self,
        operands: OperandMaps,
        result: SwizzledTensorMap | None,  # of D, or of partials; None where D is stored from registers
        swap_ab: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        reduce: KernelLaunch | None = None,
        partials: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, reduce) if reduce is not None else (multiply,)
        self._operands = operands
        self._result = result
        self._swap_ab = swap_ab
        self._partials = partials

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
        if self._partials is None:
            self.kernels[0]((x, y, z, self._result.descriptor(d)), alpha, beta)
            return
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0]((x, y, z, self._result.descriptor(partials)), alpha, beta)
        self.kernels[1]((partials, None, d), alpha, beta)

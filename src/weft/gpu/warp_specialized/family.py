"""The family that reads boxes with specialised warps: for Hopper's matrix instructions, in Gluon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.gpu.common.launch import (
    Box,
    KernelLaunch,
    contraction_constants,
)
from weft.gpu.common.pdl import is_short
from weft.gpu.common.reduce_splits import combine_launch
from weft.gpu.common.swap_ab import exchanged, multiplied
from weft.gpu.common.tiling import A, B
from weft.gpu.tma import family as boxes
from weft.gpu.tma.schedule import BoxesSchedule, parts
from weft.gpu.tma.views import box
from weft.gpu.warp_specialized.cost import predict as predict_shared
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.params import matrix_layout, specialised_cut
from weft.gpu.warp_specialized.results import results, share_layout
from weft.gpu.warp_specialized.roles import IN_PLACE, WARPS
from weft.gpu.warp_specialized.schedule import NAME, SpecialisedSchedule, candidates
from weft.gpu.warp_specialized.stationary import KeptSchedule, kept_cut
from weft.gpu.warp_specialized.stationary import candidates as kept_candidates
from weft.gpu.warp_specialized.stationary_cost import predict_kept
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

RESULTS = (torch.float16, torch.bfloat16, torch.float32)

__all__ = ["NAME", "SpecialisedSchedule", "build", "predict", "schedules", "supports"]


class LaidBox(Box):
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
    reason = boxes.supports(contraction, target)
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
    other = exchanged(contraction)
    straight = candidates(contraction, target)
    kept = kept_candidates(contraction, target)
    found = (
        *straight.schedules,
        *candidates(other, target, exchanged=True).schedules,
        *kept.schedules,
        *kept_candidates(other, target, exchanged=True).schedules,
    )
    return Candidates(found, (*straight.excluded, *kept.excluded))


def predict(contraction: Contraction, schedule: SpecialisedSchedule | KeptSchedule, target: Target) -> float:
    if isinstance(schedule, KeptSchedule):
        return predict_kept(contraction, schedule, target)
    return predict_shared(contraction, schedule, target)


def build(contraction: Contraction, schedule: SpecialisedSchedule | KeptSchedule, target: Target) -> Launch:
    if isinstance(schedule, KeptSchedule):
        return _build_kept(contraction, schedule, target)
    contraction = multiplied(contraction, schedule)
    cut = specialised_cut(contraction, schedule, target)
    constants = contraction_constants(contraction, cut)
    operands = _operands(contraction, schedule)
    blocks, splits = cut.boxes.blocks, cut.boxes.splits
    box_d = LaidBox(*results(contraction, schedule, schedule.rows, blocks).box)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        _kernel(schedule), (*operands, box_d), constants, real, target, cut.boxes.programs, WARPS, 1,
        follows=is_short(contraction),
    )  # fmt: skip
    if splits == 1:
        return SpecialisedLaunch(operands, box_d, schedule.exchanged, multiply)
    shares = share_layout(contraction, schedule, blocks)
    combine = combine_launch(contraction, cut.boxes, shares, target, schedule.fewer, cut.stream)
    return SpecialisedLaunch(operands, box_d, schedule.exchanged, multiply, combine, shares)


def _kernel(schedule: SpecialisedSchedule) -> Any:
    from weft.gpu.warp_specialized.kernel import specialised_kernel
    from weft.gpu.warp_specialized.smem_transform_kernel import place_kernel

    return place_kernel if schedule.workers == IN_PLACE else specialised_kernel


def _operands(contraction: Contraction, schedule: BoxesSchedule) -> tuple[LaidBox, LaidBox, LaidBox | None]:
    """Boxes of rows, of columns, and of a second part of those where there is one."""
    tile_m, tile_n, tile_k = schedule.tile
    box_a = LaidBox(*box(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k)))
    boxes_b = [
        LaidBox(*box(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k)))
        for width in parts(tile_n)
    ]
    return box_a, boxes_b[0], boxes_b[1] if len(boxes_b) > 1 else None


def _build_kept(contraction: Contraction, schedule: KeptSchedule, target: Target) -> Launch:
    from weft.gpu.warp_specialized.stationary_kernel import kept_kernel

    contraction = multiplied(contraction, schedule)
    cut = kept_cut(contraction, schedule, target)
    operands = _operands(contraction, schedule)
    constants = contraction_constants(contraction, cut)
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        kept_kernel, (*operands, contraction.d), constants, real, target, cut.boxes.programs, schedule.warps, 1,
        follows=is_short(contraction),
    )  # fmt: skip
    return SpecialisedLaunch(operands, None, schedule.exchanged, multiply)


class SpecialisedLaunch:
    """The kernel that multiplies, and the one that adds the shares of split sums."""

    def __init__(
        self,
        operands: tuple[LaidBox, LaidBox, LaidBox | None],  # of rows, of columns, and of a second part of those
        result: LaidBox | None,  # of D, or of the shares; None where D is stored from registers
        exchanged: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        combine: KernelLaunch | None = None,
        shares: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, combine) if combine is not None else (multiply,)
        self._operands = operands
        self._result = result
        self._exchanged = exchanged
        self._shares = shares

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        rows, columns, rest = self._operands
        if self._exchanged:
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

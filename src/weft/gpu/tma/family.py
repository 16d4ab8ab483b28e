"""The family that reads its operands in boxes: whole lines of memory through the tensor memory accelerator.

A box spans a run along one side of the product and a run of k, and single indices of everything else; one of the two
runs must be contiguous, and every other stride a multiple of 16 bytes. Operands that do not lie so are brought there
by the family `staged`. D is stored in its own order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import (
    KernelLaunch,
    TensorMap,
    common_reasons,
    contraction_constants,
    pointer_layouts,
)
from weft.gpu.common.pdl import is_short
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.cost import predict
from weft.gpu.tma.params import tma_params
from weft.gpu.tma.schedule import NAME, TmaSchedule, candidates, parts
from weft.gpu.tma.views import box
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import MATRIX_SUMS, dtype_name

__all__ = ["NAME", "TmaLaunch", "TmaSchedule", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    arithmetic = contraction.arithmetic
    product = arithmetic.product
    if target.kind not in ("cuda", "interpreter") or target.capability < 90:
        return "the device has no tensor memory accelerator"
    if {contraction.a.dtype, contraction.b.dtype} != {product}:
        return f"A and B are not stored as {dtype_name(product)}, which they are multiplied in"
    if product not in MATRIX_SUMS and arithmetic.precision != "tf32":
        return f"{arithmetic.precision} products of {dtype_name(product)} have no matrix instruction that takes boxes"
    if arithmetic.accumulate is not MATRIX_SUMS.get(product, torch.float32):
        return f"products of {dtype_name(product)} are not added in {dtype_name(arithmetic.accumulate)} there"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return f"m={contraction.m}, n={contraction.n} or k={contraction.k} is shorter than a matrix instruction"
    if contraction.a.alignment < VECTOR or contraction.b.alignment < VECTOR:
        return f"A or B does not start at a multiple of {VECTOR} bytes"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    straight = candidates(contraction, target)
    other = candidates(swap_ab(contraction), target, swap_ab=True)
    return Candidates((*straight.schedules, *other.schedules), straight.excluded)


def build(contraction: Contraction, schedule: TmaSchedule, target: Target) -> Launch:
    from weft.gpu.tma.kernel import tma_kernel

    contraction = in_kernel_order(contraction, schedule)
    params = tma_params(contraction, schedule, target)
    constants = contraction_constants(contraction, params)
    tile_m, tile_n, tile_k = schedule.tile
    box_a = box(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k))
    boxes_b = [
        box(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k)) for width in parts(tile_n)
    ]
    boxes = (box_a, boxes_b[0], boxes_b[1] if len(boxes_b) > 1 else None)
    c, d, pointers = contraction.c, contraction.d, pointer_layouts(contraction)
    real = contraction.arithmetic.accumulate.is_floating_point
    if params.splits == 1:
        multiply = KernelLaunch(
            tma_kernel, (*boxes, c, d, None), constants, real, target, params.programs, schedule.warps, schedule.stages,
            pointers, pdl=is_short(contraction),
        )  # fmt: skip
        return TmaLaunch(boxes, schedule.swap_ab, multiply)
    shares = Layout.contiguous((params.blocks * params.splits, *schedule.tile[:2]), contraction.arithmetic.accumulate)
    multiply = KernelLaunch(
        tma_kernel, (*boxes, None, None, shares), constants, real, target, params.programs, schedule.warps,
        schedule.stages, pointers, pdl=is_short(contraction),
    )  # fmt: skip
    combine = reduce_launch(contraction, params, shares, target)
    return TmaLaunch(boxes, schedule.swap_ab, multiply, combine, shares)


class TmaLaunch:
    """The kernel that multiplies, and the one that adds the shares of split sums."""

    def __init__(
        self,
        boxes: tuple[TensorMap, TensorMap, TensorMap | None],  # of rows, of columns, and of a second part of those
        swap_ab: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        combine: KernelLaunch | None = None,
        shares: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, combine) if combine is not None else (multiply,)
        self._boxes = boxes
        self._swap_ab = swap_ab
        self._shares = shares

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        box_a, box_b, box_rest = self._boxes
        if self._swap_ab:
            a, b = b, a
        x, y = box_a.descriptor(a), box_b.descriptor(b)
        z = box_rest.descriptor(b) if box_rest is not None else None
        if self._shares is None:
            self.kernels[0]((x, y, z, c, d, None), alpha, beta, aux)
            return
        shares = torch.empty(self._shares.shape, dtype=self._shares.dtype, device=d.device)
        self.kernels[0]((x, y, z, None, None, shares), alpha, beta, aux)
        self.kernels[1]((shares, c, d), alpha, beta, aux)

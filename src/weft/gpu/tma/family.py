"""The TMA family: operands are read tile by tile through the tensor memory accelerator.

A tile spans a run along one side of the product and a run of k, and single indices of everything else. One of the two
runs must be contiguous, and every other stride a multiple of 16 bytes. Operands that do not lie so are packed first, by
the family `ttgt`. D is stored in its own order.
"""

from __future__ import annotations

import torch

from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import (
    KernelLaunch,
    common_reasons,
    contraction_constants,
    pointer_layouts,
)
from weft.gpu.common.pdl import is_short
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.tma.cost import predict
from weft.gpu.tma.launch import TmaLaunch, operand_maps
from weft.gpu.tma.params import tma_params
from weft.gpu.tma.schedule import NAME, TmaSchedule, candidates
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Layout
from weft.spec.dtypes import MATRIX_SUMS, dtype_name

__all__ = ["FINDS_PEAKS", "NAME", "TmaSchedule", "build", "predict", "schedules", "supports"]

FINDS_PEAKS = True


def supports(contraction: Contraction, target: Target) -> str | None:
    """Why the family cannot compute this, in one sentence; None where it can."""
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
        wanted = f"{arithmetic.precision} products of {dtype_name(product)}"
        return f"{wanted} have no matrix instruction that reads TMA tiles"
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
    """All candidates, those with A and B swapped last."""
    straight = candidates(contraction, target)
    swapped = candidates(swap_ab(contraction), target, swap_ab=True)
    return Candidates((*straight.schedules, *swapped.schedules), straight.excluded)


def build(contraction: Contraction, schedule: TmaSchedule, target: Target) -> Launch:
    """The kernel of a schedule, and the reduction of its split-K partials, ready to launch."""
    from weft.gpu.tma.kernel import tma_kernel

    contraction = in_kernel_order(contraction, schedule)
    params = tma_params(contraction, schedule, target)
    constants = contraction_constants(contraction, params)
    maps = operand_maps(contraction, schedule)
    accumulate = contraction.arithmetic.accumulate

    def multiply(c: Layout | None, d: Layout | None, partials: Layout | None) -> KernelLaunch:
        return KernelLaunch(
            tma_kernel, (*maps, c, d, partials), constants, accumulate.is_floating_point, target, params.programs,
            schedule.warps, schedule.stages, pointer_layouts(contraction), pdl=is_short(contraction),
        )  # fmt: skip

    if params.splits == 1:
        return TmaLaunch(maps, schedule.swap_ab, multiply(contraction.c, contraction.d, None))
    partials = Layout.contiguous((params.blocks * params.splits, *schedule.tile[:2]), accumulate)
    product = multiply(None, None, partials)
    return TmaLaunch(maps, schedule.swap_ab, product, reduce_launch(contraction, params, partials, target), partials)

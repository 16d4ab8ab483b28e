"""Tiles through the tensor memory accelerator: schedules for a description, and the launch.

Each tile goes along up to two runs of memory. Tiles have one width, or two side by side. D is stored in its own order;
split-K fills the device where D is small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LEAST_DOT, VECTOR
from weft.gpu.common.dependent import is_short
from weft.gpu.common.launch import (
    KernelLaunch,
    common_reasons,
    pointer_layouts,
)
from weft.gpu.common.operation import operation
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.splits import RUN_DEPTH, product_bytes, run_count, runs_of
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tensor_maps import TensorMap
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.model import predict, tma_params
from weft.gpu.tma.schedule import NAME, TmaSchedule, candidates, n_parts, tensor_map
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import MATRIX_SUMS, dtype_name

KERNEL = DeviceFunction("weft.gpu.tma.kernel", "tma_kernel")

# Of A's rows; of B's columns; of their second part along n where there is one.
OperandMaps: TypeAlias = tuple[TensorMap, TensorMap, TensorMap | None]


def operand_maps(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    tile_m, tile_n, tile_k = schedule.tile
    a = tensor_map(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k))
    b, *rest = (
        tensor_map(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k))
        for width in n_parts(tile_n)
    )
    return a, b, rest[0] if rest else None


class TmaLaunch:
    """The kernel that multiplies, and the one that reduces split-K partials."""

    def __init__(
        self,
        in_parts: bool,  # B's columns by two maps
        swap_ab: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        reduce: KernelLaunch | None = None,
        partials: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, reduce) if reduce is not None else (multiply,)
        self._in_parts = in_parts
        self._swap_ab = swap_ab
        self._partials = partials

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        operands = self._operands(a, b)
        if self._partials is None:
            self.kernels[0]((*operands, *self._stored(c, d, None)), alpha, beta, aux)
            return
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0]((*operands, *self._stored(None, None, partials)), alpha, beta, aux)
        self.kernels[1]((partials, c, d), alpha, beta, aux)

    def bound(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now; partial sums get memory in each run."""
        if self._partials is not None:
            return partial(self, a, b, c, d, alpha, beta, aux)
        return self.kernels[0].bound((*self._operands(a, b), *self._stored(c, d, None)), alpha, beta, aux)

    def _operands(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, columns, and what is left of these."""
        if self._swap_ab:
            a, b = b, a
        return a, b, b if self._in_parts else None

    def _stored(self, c: Tensor | None, d: Tensor | None, partials: Tensor | None) -> tuple[Any, ...]:
        """The tensor that the kernel takes besides the operands: D, or the partials in its place."""
        return c, d, partials


__all__ = ["FINDS_PEAKS", "NAME", "TmaSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]

FINDS_PEAKS = True


def adds_in_order(contraction: Contraction, schedule: TmaSchedule) -> bool:
    """Whether products enter a sum as those of `gett` do: along one mode of k, in the same runs."""
    size, depth = product_bytes(contraction), schedule.tile[2]
    if size == 1 or len(contraction.of_role(Role.K)) > 1 or contraction.arithmetic.precision == "tf32x3":
        return False
    if run_count(contraction) == 1:
        return schedule.splits == 1
    return depth == RUN_DEPTH[size] and schedule.splits == runs_of(contraction, depth)


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
    contraction = in_kernel_order(contraction, schedule)
    params = tma_params(contraction, schedule, target)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    maps = operand_maps(contraction, schedule)
    in_parts = maps[2] is not None
    accumulate = contraction.arithmetic.accumulate

    def multiply(c: Layout | None, d: Layout | None, partials: Layout | None) -> KernelLaunch:
        return KernelLaunch(
            KERNEL, (*maps, c, d, partials), constants, accumulate.is_floating_point, target, params.programs,
            schedule.warps, schedule.stages, pointer_layouts(contraction), pdl=is_short(contraction),
        )  # fmt: skip

    if params.splits == 1:
        return TmaLaunch(in_parts, schedule.swap_ab, multiply(contraction.c, contraction.d, None))
    partials = Layout.contiguous((params.blocks * params.splits, *schedule.tile[:2]), accumulate)
    product = multiply(None, None, partials)
    reduce = reduce_launch(contraction, params, partials, target)
    return TmaLaunch(in_parts, schedule.swap_ab, product, reduce, partials)

"""Kernels with producer and consumer warps: schedules for a description, and the launch.

Producers load tiles by TMA, along up to two runs of memory; transform warps apply functions to tiles in shared memory;
consumers multiply, add C, apply the epilogue and store D. Written in Gluon for Hopper. `docs/planning.md` names the
variants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LEAST_DOT, VECTOR
from weft.gpu.common.dependent import is_short
from weft.gpu.common.launch import KernelLaunch, common_reasons, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.splits import run_count
from weft.gpu.common.swap_ab import in_kernel_order, swap_ab
from weft.gpu.common.tensor_maps import TensorMap
from weft.gpu.common.tiling import A, B
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.model import predict as predict_pipelined
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.roles import WARPS
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates, output_map, partials_layout
from weft.gpu.warp_specialized.stationary_model import StationarySchedule, predict_stationary, stationary_params
from weft.gpu.warp_specialized.stationary_model import candidates as stationary_candidates
from weft.gpu.warp_specialized.views import TmaSchedule, n_parts, tensor_map
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import FP8, MATRIX_SUMS, dtype_name

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


class WsLaunch:
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
        if self._partials is None:
            self.kernels[0](self._tensors(a, b, c, d), alpha, beta, aux)
            return
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0](self._tensors(a, b, None, partials), alpha, beta, aux)
        self.kernels[1]((partials, c, d), alpha, beta, aux)

    def bound(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now; partial sums get memory in each run."""
        if self._partials is not None:
            return partial(self, a, b, c, d, alpha, beta, aux)
        return self.kernels[0].bound(self._tensors(a, b, c, d), alpha, beta, aux)

    def _tensors(self, a: Tensor, b: Tensor, c: Tensor | None, stored: Tensor) -> Sequence[Tensor | None]:
        """Rows, columns, and what is left of these; C; D, or the partials in its place."""
        if self._swap_ab:
            a, b = b, a
        return a, b, b if self._in_parts else None, c, stored


_ROOM = "weft.gpu.warp_specialized"
KERNEL = DeviceFunction(f"{_ROOM}.kernel", "ws_kernel")
STATIONARY_KERNEL = DeviceFunction(f"{_ROOM}.stationary_kernel", "stationary_kernel")
MADE = (*FP8, torch.float16, torch.bfloat16, torch.int8)  # products; and those of float32 cut to TF32
RESULTS = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int8, torch.bool)

__all__ = ["NAME", "WsSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    """Why the family cannot compute this, in one sentence; None where it can."""
    reason = common_reasons(contraction, target) or _unfit_operands(contraction)
    if reason is not None:
        return reason
    if target.kind != "cuda" or target.capability != 90:
        return "only devices of compute capability 9.0 have these matrix instructions"
    if contraction.d.dtype not in RESULTS:
        return f"results of {dtype_name(contraction.d.dtype)} are not stored here"
    if contraction.a_args or contraction.b_args:
        return "functions of A and B that take auxiliary operands are not applied here"
    return refusal(target)


def _unfit_operands(contraction: Contraction) -> str | None:
    """Why A and B are none that TMA loads and matrix instructions take from shared memory."""
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    arithmetic, product = contraction.arithmetic, contraction.arithmetic.product
    if {contraction.a.dtype, contraction.b.dtype} != {product}:
        return f"A and B are not stored as {dtype_name(product)}, which they are multiplied in"
    if product not in MADE and arithmetic.precision != "tf32":
        return f"{arithmetic.precision} products of {dtype_name(product)} are not made here"
    if product.itemsize != 2 and not (contraction.a_fn is None and contraction.b_fn is None):
        return f"functions of A and B are not applied to {dtype_name(product)} here"
    if arithmetic.accumulate is not MATRIX_SUMS.get(product, torch.float32):
        return f"products of {dtype_name(product)} are not added in {dtype_name(arithmetic.accumulate)} there"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return f"m={contraction.m}, n={contraction.n} or k={contraction.k} is shorter than a matrix instruction"
    if contraction.a.alignment < VECTOR or contraction.b.alignment < VECTOR:
        return f"A or B does not start at a multiple of {VECTOR} bytes"
    return "a mode is empty" if 0 in (mode.extent for mode in contraction.modes) else None


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
    """Whether products enter a sum as those of `gett` do: along one mode of k, in one run. A stationary operand has an
    order of its own."""
    if isinstance(schedule, StationarySchedule) or contraction.arithmetic.product.itemsize == 1:
        return False
    return len(contraction.of_role(Role.K)) == 1 and run_count(contraction) == schedule.splits == 1


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
    maps = operand_maps(contraction, schedule)
    tiles = params.tma.blocks
    stored = output_map(contraction, schedule, schedule.rows, tiles).tensor
    real = contraction.arithmetic.accumulate.is_floating_point
    whole = params.tma.splits == 1
    c, pointers = (contraction.c, pointer_layouts(contraction)) if whole else (None, None)
    multiply = KernelLaunch(
        KERNEL, (*maps, c, stored), constants, real, target, params.tma.programs, WARPS, 1, pointers,
        pdl=is_short(contraction),
    )  # fmt: skip
    if whole:
        return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply)
    partials = partials_layout(contraction, schedule, tiles)
    reduce = reduce_launch(contraction, params.tma, partials, target, params.stream_k)
    return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply, reduce, partials)


def _build_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> Launch:
    contraction = in_kernel_order(contraction, schedule)
    params = stationary_params(contraction, schedule, target)
    maps = operand_maps(contraction, schedule)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    real = contraction.arithmetic.accumulate.is_floating_point
    multiply = KernelLaunch(
        STATIONARY_KERNEL, (*maps, None, contraction.d), constants, real, target, params.tma.programs, schedule.warps,
        1, pdl=is_short(contraction),
    )  # fmt: skip
    return WsLaunch(maps[2] is not None, schedule.swap_ab, multiply)

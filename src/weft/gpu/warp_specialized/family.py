"""Kernels with producer and consumer warps: schedules for a description, and the launch.

Producers load tiles by TMA, along up to two runs of memory; transform warps apply functions to tiles in shared memory;
consumers multiply, add C, apply the epilogue and store D. Written in Gluon for Hopper. `docs/planning.md` names the
variants.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LEAST_DOT, VECTOR, is_short
from weft.gpu.common.contraction_launch import ABSENT, A, B, C, ContractionLaunch, D, reduce_launch
from weft.gpu.common.launch import KernelLaunch, common_reasons, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.common.splits import run_count
from weft.gpu.common.tensor_maps import TensorMap
from weft.gpu.warp_specialized.gluon_probe import refusal
from weft.gpu.warp_specialized.model import predict as predict_pipelined
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates, output_map, partials_layout
from weft.gpu.warp_specialized.stationary_model import StationarySchedule, predict_stationary, stationary_params
from weft.gpu.warp_specialized.stationary_model import candidates as stationary_candidates
from weft.gpu.warp_specialized.views import TmaSchedule, in_kernel_order, n_parts, swap_ab, tensor_map
from weft.planner.schedule import Candidates, Launch, Target
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
    contraction = in_kernel_order(contraction, schedule)
    maps, c, pointers = operand_maps(contraction, schedule), contraction.c, pointer_layouts(contraction)
    params: Any
    stored: TensorMap | Layout
    partials = reduce = None
    if isinstance(schedule, StationarySchedule):
        kernel, params, stored = STATIONARY_KERNEL, stationary_params(contraction, schedule, target), contraction.d
    else:
        kernel, params = KERNEL, ws_params(contraction, schedule, target)
        stored = output_map(contraction, schedule, schedule.rows, params.tma.blocks).tensor
        if params.tma.splits > 1:
            partials, c, pointers = partials_layout(contraction, schedule, params.tma.blocks), None, None
            reduce = reduce_launch(contraction, params.tma, partials, target, params.stream_k)
    constants, real = {"PARAMS": params, "OP": operation(contraction)}, contraction.arithmetic.accumulate
    multiply = KernelLaunch(
        kernel, (*maps, c, stored), constants, real.is_floating_point, target, params.tma.programs, schedule.warps, 1,
        pointers, pdl=is_short(contraction),
    )  # fmt: skip
    # Rows, columns, and what is left of these; C; D, or the partials in its place.
    rows, columns = (B, A) if schedule.swap_ab else (A, B)
    order = (rows, columns, columns if maps[2] is not None else ABSENT, C, D)
    return ContractionLaunch(multiply, order, reduce, partials)

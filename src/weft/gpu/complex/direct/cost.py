"""Predicted time of a schedule: that of a kernel that gathers its operands, with four real products."""

from __future__ import annotations

from dataclasses import replace

from weft.gpu.common.aux_operands import aux_bytes
from weft.gpu.common.complex_elements import real, real_arithmetic
from weft.gpu.common.cost import Work, busy_seconds, compulsory_bytes, matrix_rate, tile_access
from weft.gpu.common.tiling import A, B, C, D
from weft.gpu.complex.direct.params import UNROLLED, direct_params
from weft.gpu.complex.direct.schedule import NAME, DirectSchedule
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

_FITTED = fitted(NAME)

# Measured on an H200 with seven contractions.
LAUNCH = _FITTED("launch")  # seconds
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
OVERLAP = _FITTED("overlap")  # the norm that joins that of all tensors with what the general model predicts
# Flops per second of its four products, whichever way the operands lie: they come from registers.
RATE = _FITTED.table("rate")


def predict(contraction: Contraction, schedule: DirectSchedule, target: Target) -> float:
    """Seconds by `cost.busy_seconds`, of four real products and two accumulators."""
    params = direct_params(contraction, schedule, target)
    tile_m, tile_n, tile_k = schedule.tiles.tile
    steps, matrix = params.k.blocks, tile_k > 1
    element = real(contraction.arithmetic.accumulate).itemsize * 2
    work = Work(
        accesses=(
            tile_access(contraction.a, A, params.blocks * steps, (*params.m.axes, *params.k_of_a.axes)),
            tile_access(contraction.b, B, params.blocks * steps, (*params.n.axes, *params.k.axes)),
            tile_access(contraction.c, C, params.blocks, (*params.m.axes, *params.n.axes)),
            tile_access(contraction.d, D, params.blocks, (*params.m.axes, *params.n.axes)),
        ),
        blocks=params.blocks,
        steps=steps if matrix else max(1, steps // UNROLLED),
        tile=(2 * tile_m, tile_n, 2 * tile_k if matrix else 2 * min(steps, UNROLLED)),
        warps=schedule.tiles.warps,
        stage_bytes=element * schedule.tiles.stages * (tile_m + tile_n) * tile_k if matrix else 0,
        matrix=matrix,
    )
    of_parts = replace(contraction, arithmetic=real_arithmetic(contraction.arithmetic))
    rate = RATE.get(f"{dtype_name(of_parts.arithmetic.accumulate)} {of_parts.arithmetic.precision}")
    if matrix and rate is not None:
        work = replace(work, function_seconds=work.flops / rate - work.flops / matrix_rate(of_parts, work, target))
    seconds = busy_seconds(of_parts, target, work)
    least = (compulsory_bytes(contraction) + aux_bytes(contraction.aux, contraction.modes)) / MEMORY_RATE
    return LAUNCH + (seconds**OVERLAP + least**OVERLAP) ** (1 / OVERLAP)

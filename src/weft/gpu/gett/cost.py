"""Predicted time of a schedule: the roof and the access pattern of a kernel that gathers its operands."""

from __future__ import annotations

from weft.gpu.common.cost import Work, cast_seconds, direct_seconds, function_seconds, reduce_seconds, tile_access
from weft.gpu.common.hardware import GROUP_ROWS
from weft.gpu.common.tiling import A, B, C, D
from weft.gpu.gett.params import gett_params
from weft.gpu.gett.schedule import GettSchedule, product_bytes
from weft.planner.schedule import Target
from weft.spec import Contraction


def predict(contraction: Contraction, schedule: GettSchedule, target: Target) -> float:
    """Seconds, see `common.cost.direct_seconds`."""
    params = gett_params(contraction, schedule, target)
    programs, tiles, steps = params.blocks * params.splits, params.blocks, params.steps
    tile_m, tile_n, tile_k = schedule.tile
    loaded, of_d = programs * steps, (*params.m.axes, *params.n.axes)
    elements = loaded * tile_m * tile_k, loaded * tile_n * tile_k, tiles * tile_m * tile_n  # of A, B and D
    work = Work(
        accesses=(
            tile_access(contraction.a, A, loaded, (*params.m.axes, *params.k_of_a.axes), repeated=True),
            tile_access(contraction.b, B, loaded, (*params.n.axes, *params.k.axes), repeated=True),
            tile_access(contraction.c, C, tiles, of_d),
            tile_access(contraction.d, D, tiles, of_d),
        ),
        blocks=programs,
        steps=steps,
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=product_bytes(contraction) * schedule.stages * (tile_m + tile_n) * tile_k,
        rearranged=params.swap_k,
        transposed=elements[B] if params.transposed[B] and tile_m >= GROUP_ROWS else 0,
        function_seconds=function_seconds(contraction, *elements) + cast_seconds(contraction, elements[B]),
    )
    return direct_seconds(contraction, target, work) + reduce_seconds(schedule.workspace_bytes, params.splits)

"""Predicted time of a schedule: every lane of a tile reads both operands, through the caches."""

from __future__ import annotations

import math

from weft.gpu.common.cost import (
    ISSUE_RATE,
    Access,
    Work,
    direct_seconds,
    function_seconds,
    modes_in_tile,
    run_of,
    tile_access,
)
from weft.gpu.common.hardware import LINE, SECTOR, VECTOR
from weft.gpu.common.tiling import A, B, C, D
from weft.gpu.semiring.algebra import product_slots
from weft.gpu.simt.params import SimtParams, simt_params
from weft.gpu.simt.schedule import SimtSchedule, programs
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout

_FITTED = fitted("simt")

FIRST_CACHE = _FITTED("first_cache")  # bytes of it that one of several programs on an SM has
# Issue slots of an address, and of a value that goes to another lane.
ADDRESS_SLOTS, EXCHANGE_SLOTS = _FITTED("address_slots"), _FITTED("exchange_slots")


def predict(contraction: Contraction, schedule: SimtSchedule, target: Target) -> float:
    """Seconds, see `common.cost.direct_seconds`."""
    params = simt_params(contraction, schedule)
    blocks, steps = programs(contraction, schedule), params.k.blocks
    a, b = (_read(layout, tensor, blocks, params) for tensor, layout in ((A, contraction.a), (B, contraction.b)))
    lanes = blocks * steps * params.r.tile * params.k.tile
    work = Work(
        accesses=(
            a,
            b,
            tile_access(contraction.c, C, blocks, params.r.axes),
            tile_access(contraction.d, D, blocks, params.r.axes),
        ),
        blocks=blocks,
        steps=steps,
        tile=(params.r.tile, 1, params.k.tile),
        warps=schedule.warps,
        stage_bytes=0,
        matrix=False,
        function_seconds=function_seconds(
            contraction,
            _lanes(params, A, blocks),
            _lanes(params, B, blocks),
            blocks * params.r.tile,
        )
        + _algebra_seconds(contraction, lanes)
        + _issue_seconds(contraction, params, (a, b), blocks),
    )
    return direct_seconds(contraction, target, work)


def _lanes(params: SimtParams, tensor: int, blocks: int) -> int:
    """Lanes that load a tensor, over all programs and steps."""
    tile = math.prod(axis.tile for axis in (*params.r.axes, *params.k.axes) if axis.present[tensor])
    return blocks * params.k.blocks * tile


def _read(layout: Layout, tensor: int, blocks: int, params: SimtParams) -> Access:
    """What is read of an operand: lanes of one element count once, and what a program reads again at its next step
    comes from the first cache where all that it reads fits there."""
    size = layout.dtype.itemsize
    access = tile_access(layout, tensor, 1, (*params.r.axes, *params.k.axes))
    of_d, of_k = modes_in_tile(params.r.axes, tensor), modes_in_tile(params.k.axes, tensor)
    step = math.prod(each.covered for each in (*of_d, *of_k))
    whole = [*of_d, *(each._replace(covered=each.extent) for each in of_k)]
    run = max(run_of(whole), 1)  # also where a mode is empty
    sectors = max(math.prod(each.covered for each in whole) * size * max(1.0, SECTOR / (run * size)), 1.0)
    each = step * size * max(1.0, SECTOR / access.together)
    again = max(1.0, params.k.blocks * each / sectors) if sectors <= FIRST_CACHE else 1.0
    apart = min((each.stride for each in (*of_d, *of_k) if each.covered > 1), default=LINE) * size
    in_line = min(step, max(1, LINE // apart)) * size  # what neighbours take from one line, gaps between them or not
    stretch = max(access.stretch, in_line)
    return access._replace(bytes=blocks * params.k.blocks * step * size, stretch=stretch, again=again)


def _issue_seconds(contraction: Contraction, params: SimtParams, reads: tuple[Access, Access], blocks: int) -> float:
    """What addresses take, and values that change lanes, were all SMs equally busy.

    A tile along k of two operands that both move along D finds them in lanes of different orders.
    """
    slots = 0.0
    for tensor, read in enumerate(reads):
        elements = max(1, min(VECTOR, read.width) // (contraction.a, contraction.b)[tensor].dtype.itemsize)
        slots += ADDRESS_SLOTS * _lanes(params, tensor, blocks) / elements
    if params.k.tile > 1 and params.r.tile > 1 and params.r.present[A] and params.r.present[B]:
        slots += EXCHANGE_SLOTS * blocks * params.k.blocks * params.r.tile * params.k.tile
    return slots / ISSUE_RATE


def _algebra_seconds(contraction: Contraction, products: int) -> float:
    """What products in another algebra take beyond a multiplication and a sum, were all SMs equally busy."""
    return 0.0 if contraction.algebra is None else products * product_slots(contraction) / ISSUE_RATE

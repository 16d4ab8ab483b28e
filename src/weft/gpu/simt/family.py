"""Off the matrix units: multiply and sum lane by lane, for what has nothing to share in a matrix instruction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from weft.gpu.common import cost, tiling
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LINE, SECTOR, VECTOR, is_product_of_vectors
from weft.gpu.common.contraction_launch import ContractionLaunch
from weft.gpu.common.cost import Access, KernelWork
from weft.gpu.common.launch import KernelLaunch, common_reasons, pointer_layouts, too_many
from weft.gpu.common.operation import operation, over_axis, product_slots
from weft.gpu.common.tiling import TENSORS, A, B, C, D, TiledAxis, TiledDim
from weft.planner.coefficients import fitted
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Layout, Mode, Role

NAME = "simt"

# Indices of D and of k in a tile.
_TILES = (
    (1024, 1), (512, 4), (256, 8), (64, 32), (64, 64), (16, 128), (4, 512), (1, 2048), (1, 256), (256, 1), (128, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimtSchedule:
    """Tiles along the modes of D, whatever their role, and of k."""

    r: tuple[TiledAxis, ...]
    k: tuple[TiledAxis, ...]
    warps: int
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"simt d[{tiling.axes_text(self.r)}] k[{tiling.axes_text(self.k)}] warps={self.warps}"


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates.of(_proposals(contraction))


def _proposals(contraction: Contraction) -> Iterator[SimtSchedule | str]:
    d_modes = contraction.of_role(Role.BATCH, Role.M, Role.N)
    k_modes = contraction.of_role(Role.K)
    size = math.prod(mode.extent for mode in d_modes)
    for r_tile, k_tile in _TILES:
        reason = _misfit(r_tile, k_tile, size, contraction.k)
        if reason is not None:
            yield reason
            continue
        for r, order in product(d_axes(d_modes, r_tile), tiling.run_orders(k_modes, A, B)):
            schedule = SimtSchedule(r, (TiledAxis(order, k_tile),), warps=4)
            yield too_many(programs(contraction, schedule)) or schedule


def d_axes(modes: Sequence[Mode], tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over D's modes: flattened along D's run, and with a second axis along A's or B's run."""
    by_d = tiling.by_stride(modes, D)
    yield (TiledAxis(by_d, tile),)
    if tile < 64:
        return
    for near in {tiling.nearest(modes, A): None, tiling.nearest(modes, B): None}:
        if near is not None and near is not by_d[0]:
            run = min(32, tile // 4)
            yield (TiledAxis((near,), run), TiledAxis(tuple(mode for mode in by_d if mode is not near), tile // run))


def _misfit(r_tile: int, k_tile: int, size: int, k: int) -> str | None:
    for name, tile, extent in (("D", r_tile, size), ("k", k_tile, k)):
        if tile > 128 and tile >= 4 * max(extent, 1):
            return f"a tile of {tile} along {name} is at least four times its extent {extent}"
    return None


def programs(contraction: Contraction, schedule: SimtSchedule) -> int:
    """Output tiles, one for each program."""
    return tiling.tile_count(contraction.of_role(Role.BATCH, Role.M, Role.N), schedule.r)


class SimtParams(NamedTuple):
    r: TiledDim  # every mode of D
    k: TiledDim
    tile: tuple[int, ...]  # extents of the tile: axes of D, then axes of k
    k_rank: int  # how many of them are of k
    wide: tuple[bool, ...]
    wide_index: bool


def simt_params(contraction: Contraction, schedule: SimtSchedule) -> SimtParams:
    d_modes = contraction.of_role(Role.BATCH, Role.M, Role.N)
    axes = [*tiling.rest(d_modes, schedule.r), *schedule.r]
    if all(axis.tile == 1 for axis in axes):
        axes.append(TiledAxis((), 1, placed=True))  # a kernel stores tiles, not scalars
    tensors = TENSORS + len(contraction.aux)
    r = tiling.tiled_dim(axes, tensors=tensors)
    places = sum(axis.place >= 0 for axis in r.axes)
    k = tiling.tiled_dim(schedule.k, first_place=places, tensors=tensors)
    return SimtParams(
        r=r,
        k=k,
        tile=tuple(axis.tile for axis in (*r.axes, *k.axes) if axis.place >= 0),
        k_rank=sum(axis.place >= 0 for axis in k.axes),
        wide=tiling.wide(contraction.modes, tensors),
        wide_index=tiling.wide_index((*schedule.r, *schedule.k)),
    )


_fit = fitted("simt")

# first_cache: bytes of it that one of several programs on an SM has
# address_slots, exchange_slots: issue slots of an address, and of a value that goes to another lane.


def predict(contraction: Contraction, schedule: SimtSchedule, target: Target) -> float:
    """Seconds, see `common.cost.direct_seconds`."""
    params = simt_params(contraction, schedule)
    blocks, steps = programs(contraction, schedule), params.k.blocks
    a, b = (_read(layout, tensor, blocks, params) for tensor, layout in ((A, contraction.a), (B, contraction.b)))
    lanes = blocks * steps * params.r.tile * params.k.tile
    work = KernelWork(
        accesses=(
            a,
            b,
            cost.tile_access(contraction.c, C, blocks, params.r.axes),
            cost.tile_access(contraction.d, D, blocks, params.r.axes),
        ),
        blocks=blocks,
        steps=steps,
        tile=(params.r.tile, 1, params.k.tile),
        warps=schedule.warps,
        stage_bytes=0,
        matrix=False,
        function_seconds=cost.function_seconds(
            contraction,
            _lanes(params, A, blocks),
            _lanes(params, B, blocks),
            blocks * params.r.tile,
        )
        + _algebra_seconds(contraction, lanes)
        + _issue_seconds(contraction, params, (a, b), blocks),
    )
    return cost.direct_seconds(contraction, target, work)


def _lanes(params: SimtParams, tensor: int, blocks: int) -> int:
    """Lanes that load a tensor, over all programs and steps."""
    tile = math.prod(axis.tile for axis in (*params.r.axes, *params.k.axes) if axis.present[tensor])
    return blocks * params.k.blocks * tile


def _read(layout: Layout, tensor: int, blocks: int, params: SimtParams) -> Access:
    """Reads of an operand: lanes of one element count once, and what a program reads again at its next step
    comes from the first cache where all that it reads fits there."""
    size = layout.dtype.itemsize
    access = cost.tile_access(layout, tensor, 1, (*params.r.axes, *params.k.axes))
    of_d, of_k = cost.modes_in_tile(params.r.axes, tensor), cost.modes_in_tile(params.k.axes, tensor)
    step = math.prod(each.covered for each in (*of_d, *of_k))
    whole = [*of_d, *(each._replace(covered=each.extent) for each in of_k)]
    run = max(cost.run_of(whole), 1)  # also where a mode is empty
    sectors = max(math.prod(each.covered for each in whole) * size * max(1.0, SECTOR / (run * size)), 1.0)
    each = step * size * max(1.0, SECTOR / access.together)
    again = max(1.0, params.k.blocks * each / sectors) if sectors <= _fit("first_cache") else 1.0
    apart = min((each.stride for each in (*of_d, *of_k) if each.covered > 1), default=LINE) * size
    in_line = min(step, max(1, LINE // apart)) * size  # what neighbours take from one line, gaps between them or not
    stretch = max(access.stretch, in_line)
    return access._replace(bytes=blocks * params.k.blocks * step * size, stretch=stretch, again=again)


def _issue_seconds(contraction: Contraction, params: SimtParams, reads: tuple[Access, Access], blocks: int) -> float:
    """Seconds for addresses, and for values that change lanes, were all SMs equally busy.

    A tile along k of two operands that both move along D finds them in lanes of different orders.
    """
    slots = 0.0
    for tensor, read in enumerate(reads):
        elements = max(1, min(VECTOR, read.width) // (contraction.a, contraction.b)[tensor].dtype.itemsize)
        slots += _fit("address_slots") * _lanes(params, tensor, blocks) / elements
    if params.k.tile > 1 and params.r.tile > 1 and params.r.present[A] and params.r.present[B]:
        slots += _fit("exchange_slots") * blocks * params.k.blocks * params.r.tile * params.k.tile
    return slots / fitted("common")("issue_rate")


def _algebra_seconds(contraction: Contraction, products: int) -> float:
    """Seconds that products in another algebra take beyond a multiplication and a sum, were all SMs equally busy."""
    if contraction.algebra is None:
        return 0.0
    return products * product_slots(contraction) / fitted("common")("issue_rate")


KERNEL = DeviceFunction("weft.gpu.simt.kernel", "simt_kernel")

STAGES = 3  # of loads that Triton may ask for ahead


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if contraction.arithmetic.precision != "ieee" and not is_product_of_vectors(contraction):
        return f"'{contraction.arithmetic.precision}' products are made by matrix instructions only"
    return None


def build(contraction: Contraction, schedule: SimtSchedule, target: Target) -> Launch:
    params = simt_params(contraction, schedule)
    constants = {"PARAMS": params, "OP": operation(contraction), "OVER_AXIS": over_axis(contraction)}
    kernel = KernelLaunch(
        KERNEL, (contraction.a, contraction.b, contraction.c, contraction.d), constants,
        contraction.arithmetic.accumulate.is_floating_point, target, programs(contraction, schedule), schedule.warps,
        STAGES, pointer_layouts(contraction),
    )  # fmt: skip
    return ContractionLaunch(kernel)

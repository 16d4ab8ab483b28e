"""Complex products by four real ones in one kernel: schedules for a description, and the launch.

Operands are gathered where they lie, and the four real products of each pair are made in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch

from weft.gpu.common import operation
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import LEAST_DOT, overhang
from weft.gpu.common.contraction_launch import ContractionLaunch
from weft.gpu.common.cost import KernelWork, busy_seconds, compulsory_bytes, gathered_accesses, matrix_rate
from weft.gpu.common.launch import precision_reason, too_many
from weft.gpu.common.operation import ComplexKernelLaunch
from weft.gpu.common.tiling import TENSORS, A, B, TiledAxis, axes_text, outer_axes, tile_count, wide
from weft.gpu.gett.family import RUNS, GettParams, GettSchedule, TileShape, gett_params, k_axes
from weft.planner.coefficients import fitted
from weft.planner.schedule import Candidates, Launch, Target
from weft.planner.split_schemes import BF16X6
from weft.spec import Contraction, Role
from weft.spec.dtypes import dtype_name

NAME = "complex_direct"

LONGEST = 64  # k that goes one by one
MOST_LANES = 32  # elements of D in a thread, of two accumulators: operands are in registers too

# One by one along k: D short along one side, or along both.
_LANES = tuple(
    TileShape(m, n, 1, 4, 1)
    for m, n in (
        (1, 256), (1, 512), (2, 256), (4, 128), (4, 256), (8, 32), (8, 64), (8, 128), (16, 32), (16, 64),
        (16, 16), (32, 32), (32, 16), (64, 16), (128, 8), (64, 8), (32, 8), (256, 4), (128, 4), (256, 2), (512, 1),
        (256, 1),
    )
)  # fmt: skip
# By matrix instructions, by bytes of a real number.
_MATRIX = {
    4: (
        TileShape(128, 32, 32, 4, 2), TileShape(128, 32, 16, 4, 3), TileShape(64, 32, 32, 4, 3),
        TileShape(128, 64, 16, 8, 3), TileShape(64, 64, 32, 4, 2), TileShape(128, 16, 32, 4, 2),
        TileShape(64, 16, 32, 4, 3), TileShape(32, 64, 32, 4, 3), TileShape(64, 128, 16, 8, 3),
        TileShape(32, 128, 32, 4, 2), TileShape(16, 128, 32, 4, 2), TileShape(16, 64, 32, 4, 3),
        TileShape(128, 128, 16, 8, 3), TileShape(32, 32, 32, 4, 3), TileShape(16, 16, 32, 4, 3),
    ),
    8: (
        TileShape(64, 32, 16, 4, 2), TileShape(32, 32, 16, 4, 3), TileShape(64, 16, 16, 4, 3),
        TileShape(32, 64, 16, 4, 2), TileShape(16, 64, 16, 4, 3), TileShape(16, 16, 16, 4, 3),
        TileShape(64, 64, 16, 8, 2), TileShape(16, 32, 16, 4, 3), TileShape(32, 16, 16, 4, 3),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DirectSchedule:
    """Tiles as `gett` has them, k along one axis."""

    tiles: GettSchedule
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        m, n, k = self.tiles.tile
        dims = f"m[{axes_text(self.tiles.m)}] n[{axes_text(self.tiles.n)}] k[{axes_text(self.tiles.k)}]"
        return f"{self.family} {m}x{n}x{k} {dims} warps={self.tiles.warps} stages={self.tiles.stages}"


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates.of(dict.fromkeys(_proposals(contraction)))


def _proposals(contraction: Contraction) -> Iterator[DirectSchedule | str]:
    m_modes, n_modes = contraction.of_role(Role.M), contraction.of_role(Role.N)
    for shape in _shapes(contraction):
        reason = overhang(contraction, shape.m, shape.n)
        if reason is not None:
            yield reason
            continue
        for tiles in _tilings(contraction, shape):
            programs = contraction.batch * tile_count(m_modes, tiles.m) * tile_count(n_modes, tiles.n)
            yield too_many(programs) or DirectSchedule(tiles)


def _shapes(contraction: Contraction) -> Iterator[TileShape]:
    arithmetic = operation.real_arithmetic(contraction.arithmetic)
    if contraction.k <= LONGEST and arithmetic.precision == "ieee":
        yield from _LANES
    for shape in _MATRIX[arithmetic.accumulate.itemsize]:
        if arithmetic.accumulate is not torch.float32 or arithmetic.precision != "ieee":
            yield shape
        elif shape.m * shape.n <= MOST_LANES * 32 * shape.warps:
            yield shape._replace(k=min(shape.k, LEAST_DOT))  # no matrix unit: tiles of operands stay in registers


def _tilings(contraction: Contraction, shape: TileShape) -> Iterator[GettSchedule]:
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    depth = min(shape.k, max(LEAST_DOT, 1 << (contraction.k - 1).bit_length()))
    apart = contraction.arithmetic.precision == BF16X6.name
    sides = outer_axes(m_modes, A, shape.m, RUNS, 2), outer_axes(n_modes, B, shape.n, RUNS, 2)
    for m, n, k in product(*sides, k_axes(k_modes, depth)):
        yield GettSchedule(m, n, _single(k), shape.warps, shape.stages, group=8, apart=apart)


def _single(k: tuple[TiledAxis, ...]) -> tuple[TiledAxis, ...]:
    """k as one axis: both operands take its indices in one order."""
    if len(k) == 1:
        return k
    return (TiledAxis(tuple(mode for axis in k[::-1] for mode in axis.modes), k[0].tile * k[1].tile),)


UNROLLED = 16  # steps along k that are written out


def direct_params(contraction: Contraction, schedule: DirectSchedule, target: Target) -> GettParams:
    """The parameters of `gett` for the tiles; offsets have room for both parts of an element."""
    offsets_wide = wide(operation.strides_of_parts(contraction.modes), TENSORS + len(contraction.aux))
    return gett_params(contraction, schedule.tiles, target)._replace(wide=offsets_wide)


_fit = fitted("complex_direct")

# Measured on an H200 with seven contractions.
# launch: seconds
# memory_rate: bytes per second
# overlap: the norm that joins that of all tensors with what the general model predicts
# rate: flops per second of its four products, whichever way the operands lie: they come from registers.
# split_rate, other_tiles: of products that are split in registers, by rows and columns of a tile, and in tiles that
#   nobody measured.


def predict(contraction: Contraction, schedule: DirectSchedule, target: Target) -> float:
    """Seconds by `cost.busy_seconds`, of four real products and two accumulators."""
    params = direct_params(contraction, schedule, target)
    tile_m, tile_n, tile_k = schedule.tiles.tile
    steps, matrix = params.k.blocks, tile_k > 1
    element = contraction.arithmetic.accumulate.to_real().itemsize * 2
    work = KernelWork(
        accesses=gathered_accesses(contraction, params, params.blocks * steps),
        blocks=params.blocks,
        steps=steps if matrix else max(1, steps // UNROLLED),
        tile=(2 * tile_m, tile_n, 2 * tile_k if matrix else 2 * min(steps, UNROLLED)),
        warps=schedule.tiles.warps,
        stage_bytes=element * schedule.tiles.stages * (tile_m + tile_n) * tile_k if matrix else 0,
        matrix=matrix,
    )
    of_parts = replace(contraction, arithmetic=operation.real_arithmetic(contraction.arithmetic))
    rate = _fit.table("rate").get(f"{dtype_name(of_parts.arithmetic.accumulate)} {of_parts.arithmetic.precision}")
    if params.apart:
        rate = _fit.table("split_rate").get(f"{tile_m}x{tile_n}", _fit("other_tiles"))
    if matrix and rate is not None:
        work = replace(work, function_seconds=work.flops / rate - work.flops / matrix_rate(of_parts, work, target))
    seconds = busy_seconds(of_parts, target, work)
    least = compulsory_bytes(contraction) + operation.aux_bytes(contraction.aux, contraction.modes)
    norm = _fit("overlap")
    return _fit("launch") + (seconds**norm + (least / _fit("memory_rate")) ** norm) ** (1 / norm)


KERNEL = DeviceFunction("weft.gpu.complex.direct_kernel", "complex_direct_kernel")


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if not arithmetic.product.is_complex or not contraction.a.dtype.is_complex or not contraction.b.dtype.is_complex:
        return "it is for two complex operands"
    if contraction.algebra is not None:
        return f"it does not compute in the algebra {contraction.algebra.name}"
    if contraction.a_fn is not None or contraction.b_fn is not None:
        return "functions of complex operands are applied by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    reason = precision_reason(arithmetic, target)
    if reason is not None:
        return reason
    layouts = (contraction.c, contraction.d, *(each.layout for each in contraction.aux))
    return operation.function_reason((contraction.c_fn, contraction.epilogue), layouts, target)


def build(contraction: Contraction, schedule: DirectSchedule, target: Target) -> Launch:
    params, arithmetic = direct_params(contraction, schedule, target), contraction.arithmetic
    tensors = (contraction.a, contraction.b, contraction.c, contraction.d)
    op = operation.complex_operation(
        tensors, (None, contraction.c_fn, contraction.epilogue), (contraction.conjugate_a, contraction.conjugate_b),
        arithmetic.accumulate, arithmetic.accumulate, contraction.d.dtype, operation.aux_params(contraction),
        arithmetic.precision,
    )  # fmt: skip
    layouts = [layout and operation.as_elements(layout) for layout in tensors]
    pointers = [operation.as_elements(each.layout) for each in contraction.aux if each.layout is not None]
    constants = {"PARAMS": params, "OP": op, "UNROLLED": UNROLLED}
    kernel = ComplexKernelLaunch(
        KERNEL, layouts, constants, True, target, params.blocks, schedule.tiles.warps, schedule.tiles.stages, pointers
    )
    return ContractionLaunch(kernel)

"""The launch of the second kernel of split sums, which adds the partials of every output tile and finishes it."""

from __future__ import annotations

from typing import Any

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import sm_count
from weft.gpu.common.launch import KernelLaunch, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.common.splits import StreamK
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout

KERNEL = DeviceFunction("weft.gpu.common.reduce_splits_kernel", "reduce_splits_kernel")

WARPS = 4
MOST_ELEMENTS = 4096  # that a program takes: 32 for each lane
LEAST_ELEMENTS = 128  # one for each lane
RESIDENT = 8  # programs that each SM should have: most of their time they wait for memory


def reduce_launch(
    contraction: Contraction,
    params: Any,
    partials: Layout,
    target: Target,
    stream: StreamK | None = None,
) -> KernelLaunch:
    """The launch for the output tiles of `params`.

    `partials` has a tile for each output tile and each part of its sum, or the rows and columns of it that there are.
    With a `stream` each output tile has as many of them as that says.
    """
    rows = subtile_rows(params.m.tile, params.n.tile, params.blocks, target)
    columns = subtile_columns(params.n.tile)
    programs = params.blocks * (params.m.tile // rows) * (params.n.tile // columns)
    constants = {"PARAMS": params, "ROWS": rows, "COLUMNS": columns, "STORED": tuple(partials.shape[1:])}
    constants |= {"STREAM_K": stream, "OP": operation(contraction).ending()}
    real = contraction.arithmetic.accumulate.is_floating_point
    tensors = (partials, contraction.c, contraction.d)
    return KernelLaunch(
        KERNEL, tensors, constants, real, target, programs, WARPS, 1, pointer_layouts(contraction)
    )  # fmt: skip


def subtile_columns(tile_n: int) -> int:
    """Columns of an output tile that one program takes: all of them, or a power of two that divides them."""
    return tile_n & -tile_n


def subtile_rows(tile_m: int, tile_n: int, tiles: int, target: Target) -> int:
    """Rows of an output tile that one program takes: as many as leave enough programs for the device. In the
    interpreter, which runs one after the other, as many as may be."""
    columns = subtile_columns(tile_n)
    across = tile_n // columns
    rows = min(tile_m, max(1, MOST_ELEMENTS // columns))
    if target.kind == "interpreter":
        return rows
    wanted = RESIDENT * sm_count(target)
    while rows > 1 and rows * columns > LEAST_ELEMENTS and tiles * (tile_m // rows) * across < wanted:
        rows //= 2
    return rows

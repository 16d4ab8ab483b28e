"""What the kernel with a stationary operand takes of a schedule, as compile-time constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weft.gpu.common.hardware import sm_count
from weft.gpu.common.tiling import TENSORS, D, TiledAxis, TiledDim, nearest, tiled_dim
from weft.gpu.tma.params import TmaParams, tma_params
from weft.gpu.tma.schedule import dim_axes, n_parts
from weft.gpu.warp_specialized.params import matrix_layout
from weft.gpu.warp_specialized.stationary_schedule import REGISTERS, ROWS, StationarySchedule, last_depth
from weft.planner.schedule import Target
from weft.spec import Contraction

if TYPE_CHECKING:
    from triton.experimental.gluon.language import DistributedLinearLayout, NVMMASharedLayout

LEAST_SUBTILE, MOST_SUBTILE = 8, 32  # columns that are finished at once


class StationaryParams(NamedTuple):
    """All that the kernel takes of a schedule."""

    tma: TmaParams
    subtiles: tuple[tuple[TiledDim, ...], ...]  # [part along n] columns that are finished at once
    halvings: tuple[int, ...]  # [part along n] that give them
    last_depth: int  # indices of k that the last step multiplies
    warps: int  # of each consumer
    registers: int  # of each of its threads
    product_bits: int  # of an element
    pipelines: int  # of tiles of A
    stages: int  # of each
    a_layout: NVMMASharedLayout  # of tiles of A in shared memory, as matrices
    b_layouts: tuple[NVMMASharedLayout, ...]  # of B, for each part along n
    store_layouts: tuple[DistributedLinearLayout, ...]  # of subtiles of each part, in registers


def stationary_params(contraction: Contraction, schedule: StationarySchedule, target: Target) -> StationaryParams:
    tma = tma_params(contraction, schedule, target)
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    widths, subtiles = n_parts(tile_n), tuple(_subtiles(schedule))
    along_n = nearest(schedule.b.outer, D) is not None
    return StationaryParams(
        tma=tma._replace(programs=min(tma.blocks, sm_count(target))),
        subtiles=subtiles,
        halvings=tuple((width // own[0].tile).bit_length() - 1 for width, own in zip(widths, subtiles, strict=True)),
        last_depth=last_depth(contraction, schedule),
        warps=schedule.warps,
        registers=REGISTERS[schedule.warps],
        product_bits=8 * size,
        pipelines=schedule.pipelines,
        stages=schedule.stages,
        a_layout=matrix_layout((tile_m, tile_k), schedule.a.along_k, size),
        b_layouts=tuple(matrix_layout((width, tile_k), schedule.b.along_k, size) for width in widths),
        store_layouts=tuple(_store_layout(own[0].tile, along_n, schedule.warps) for own in subtiles),
    )


def _subtiles(schedule: StationarySchedule) -> Iterator[tuple[TiledDim, ...]]:
    """Of each part along n, the subtiles with columns of D in them."""
    tile_n = schedule.tile[1]
    (columns,) = dim_axes(schedule.b, tile_n)
    first = 0
    for width in n_parts(tile_n):
        there = min(width, columns.extent - first)
        narrow = max(LEAST_SUBTILE, math.gcd(there, width, MOST_SUBTILE))
        yield tuple(
            tiled_dim([TiledAxis(columns.modes, narrow, True, tile_n, start)], 1, TENSORS)
            for start in range(first, first + there, narrow)
        )
        first += width


def _store_layout(width: int, along_n: bool, warps: int) -> DistributedLinearLayout:
    """How a subtile of so many columns lies in registers when it is stored.

    Matrix instructions leave two neighbours of a row to each lane, and 8 x 8 elements to a warp's lanes: of float32, 32
    bytes of a line of D would be stored at once. Lanes exchange half of what they hold, and it is twice as much.
    """
    from triton.experimental.gluon.language import DistributedLinearLayout

    registers = [[0, 1], [8, 0], *([0, 1 << bit] for bit in range(3, width.bit_length() - 1))]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    farther = [0, 8] if along_n else [8, 0]
    if farther in registers:
        registers.remove(farther)
        registers.insert(1, lanes[0])
        lanes[0] = farther
    apart = [[ROWS << bit, 0] for bit in range(warps.bit_length() - 1)]
    return DistributedLinearLayout(registers, lanes, apart, [], [ROWS * warps, width])

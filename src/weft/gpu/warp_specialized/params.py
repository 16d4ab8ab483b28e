"""What the kernels take of a schedule, as compile-time constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.gpu.common.hardware import sm_count
from weft.gpu.common.split_k import StreamK, TailSplits
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, tiled_dim
from weft.gpu.tma.params import TmaDim, TmaParams, tma_params
from weft.gpu.tma.schedule import dim_axes, n_parts
from weft.gpu.tma.views import extent
from weft.gpu.warp_specialized.output_map import output_map, subtile_columns
from weft.gpu.warp_specialized.roles import CONSUMERS, SMEM_TRANSFORM, THREADS, Consumers, Roles, roles
from weft.gpu.warp_specialized.schedule import WsSchedule, split_steps, work_ranges, work_tiles, work_tiles_whole
from weft.planner.schedule import Target
from weft.spec import Contraction

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout

SWIZZLED = 8  # lines of shared memory after which a swizzle repeats: fewer cannot be sliced out of a tile


class SubtileParams(NamedTuple):
    """Rows and columns of an output tile that a consumer stores at once."""

    m: TiledDim
    n: TiledDim
    row: int  # of the output tile, where the subtile starts
    column: int


class AccumulatorParams(NamedTuple):
    """Rows and columns of an output tile that one accumulator of one consumer holds."""

    m: TiledDim
    n: TiledDim
    row: int  # of the output tile, where they start
    subtiles: tuple[SubtileParams, ...]
    halvings: int  # of its columns that give the subtiles


class TransformLines(NamedTuple):
    """Lines of a tile of B in shared memory that a transformer computes at once."""

    part: int  # of B along n
    first: int
    lines: int


class WsParams(NamedTuple):
    """All that the kernels take of a schedule."""

    tma: TmaParams
    accumulators: tuple[tuple[AccumulatorParams, ...], ...]  # [consumer][part along n]
    consumers: Consumers
    tiles: int  # work tiles with whole sums: output tiles, or pairs of them
    product_bits: int  # of an element
    roles: Roles
    stages: int  # of each pipeline
    a_first: tuple[int, int]  # [consumer] first stage of its pipeline of A
    b_first: tuple[int, int]  # the same of B
    rounds: int  # of a pipeline until a transformer meets the same stage again: each has barriers of its own
    a_layout: NVMMASharedLayout  # of tiles of A in shared memory, as matrices
    b_layouts: tuple[NVMMASharedLayout, ...]  # of B, for each part along n
    d_dims: tuple[TmaDim, ...]
    d_along_n: bool
    d_shape: tuple[int, int]  # of a subtile as it lies in D
    d_layout: NVMMASharedLayout
    transforms: tuple[tuple[TransformLines, ...], ...]  # [transformer]; smem_transform only
    tail_splits: TailSplits  # smem_transform only
    stream_k: StreamK | None


def ws_params(contraction: Contraction, schedule: WsSchedule, target: Target) -> WsParams:
    tail = schedule.tail_splits
    tail_splits = TailSplits(tail, split_steps(contraction, schedule, tail) if tail else 0)
    whole = replace(schedule, splits=1) if schedule.stream_k else schedule
    tma = tma_params(contraction, whole, target, tail_splits.splits * tail_splits.steps)
    consumers = schedule.consumers
    programs = min(sm_count(target), -(-work_tiles(contraction, schedule) // consumers.pipelines))
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    output = output_map(contraction, schedule, schedule.rows, tma.blocks)
    found = roles(contraction, schedule.tile, consumers)
    assert found is not None, "schedules are offered only where there are registers"
    d_shape = (output.tensor_map.block[-2], output.tensor_map.block[-1])
    return WsParams(
        tma=tma._replace(splits=schedule.splits, programs=programs),
        accumulators=_accumulators(contraction, schedule),
        consumers=consumers,
        tiles=work_tiles_whole(contraction, schedule),
        product_bits=8 * size,
        roles=found,
        stages=schedule.stages,
        a_first=(0, schedule.stages if consumers.pipelines == 2 else 0),
        b_first=(0, schedule.stages if consumers.b_pipelines == 2 else 0),
        rounds=rounds(schedule.stages, found.transformers // consumers.b_pipelines),
        a_layout=matrix_layout((tile_m, tile_k), schedule.a.along_k, size),
        b_layouts=tuple(matrix_layout((width, tile_k), schedule.b.along_k, size) for width in n_parts(tile_n)),
        d_dims=output.dims,
        d_along_n=output.along_n,
        d_shape=d_shape,
        d_layout=matrix_layout(d_shape, True, output.tensor_map.layout.dtype.itemsize),
        transforms=_transforms(schedule, found) if consumers == SMEM_TRANSFORM else (),
        tail_splits=tail_splits,
        stream_k=work_ranges(contraction, schedule, target) if schedule.stream_k else None,
    )


def _transforms(schedule: WsSchedule, roles: Roles) -> tuple[tuple[TransformLines, ...], ...]:
    """What three transformers have of a step's tiles of B: about a third of all elements each. The last of them has the
    second part along n."""
    _, tile_n, tile_k = schedule.tile
    widths = (tile_k,) * 2 if schedule.b.along_k else n_parts(tile_n)
    wide, rest = n_parts(tile_n)[0] if schedule.b.along_k else tile_k, _rest_lines(schedule)
    least = wide // 8
    third = round((wide + rest * widths[-1] / widths[0]) / (3 * least)) * least
    at_once = [max(SWIZZLED, roles.elements * THREADS // width) for width in widths]
    first, second = _runs(0, 0, third, at_once[0]), _runs(0, third, 2 * third, at_once[0])
    return first, second, _runs(0, 2 * third, wide, at_once[0]) + _runs(1, 0, rest, at_once[-1])


def _runs(part: int, first: int, end: int, most: int) -> tuple[TransformLines, ...]:
    """Lines in runs that can be sliced out of a tile: powers of two, which start at multiples of themselves."""
    found = []
    while first < end:
        lines = min(most, first & -first or most, 1 << (end - first).bit_length() - 1)
        found.append(TransformLines(part, first, lines))
        first += lines
    return tuple(found)


def _rest_lines(schedule: WsSchedule) -> int:
    """Lines of tiles of B's second part. There is one output tile along n, and lines past its last column need no
    function."""
    _, tile_n, tile_k = schedule.tile
    wide, *narrow = n_parts(tile_n)
    if not narrow or not schedule.b.along_k:
        return tile_k if narrow else 0
    there = extent(schedule.b.outer) - wide
    return min(narrow[0], -(-there // SWIZZLED) * SWIZZLED) if there > 0 else narrow[0]


def rounds(stages: int, transformers: int) -> int:
    """Rounds of a pipeline after which the same transformer meets the same stage again: they take steps in turn."""
    return math.lcm(stages, max(1, transformers)) // stages


def matrix_layout(shape: tuple[int, int], along_k: bool, size: int, rank: int = 2) -> NVMMASharedLayout:
    """How a tile of so many rows and columns lies in shared memory, its contiguous side as it is in memory."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    rows, columns = shape
    line = (columns if along_k else rows) * size
    swizzle = next(width for width in (128, 64, 32) if line % width == 0)
    return NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * size, rank=rank)


def _accumulators(contraction: Contraction, schedule: WsSchedule) -> tuple[tuple[AccumulatorParams, ...], ...]:
    """Of each consumer: half of the rows of an output tile, or all of them; and all columns, part by part."""
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    *others_m, rows = dim_axes(schedule.a, tile_m)
    *others_n, columns = dim_axes(schedule.b, tile_n)
    height = schedule.rows

    def accumulator(row: int, column: int, width: int) -> AccumulatorParams:
        def across(first: int, count: int) -> TiledDim:
            return tiled_dim([*others_n, TiledAxis(columns.modes, count, True, tile_n, first)], 1, tensors)

        m = tiled_dim([*others_m, TiledAxis(rows.modes, height, True, tile_m, row)], 0, tensors)
        narrow = subtile_columns(contraction, schedule)
        starts = range(column, column + width, narrow)
        subtiles = tuple(SubtileParams(m, across(first, narrow), row, first) for first in starts)
        return AccumulatorParams(m, across(column, width), row, subtiles, (width // narrow).bit_length() - 1)

    widths = n_parts(tile_n)
    starts = [sum(widths[:at]) for at in range(len(widths))]
    return tuple(
        tuple(accumulator(row, column, width) for column, width in zip(starts, widths, strict=True))
        for row in (consumer % schedule.consumers.m_parts * height for consumer in range(CONSUMERS))
    )

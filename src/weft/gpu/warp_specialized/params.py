"""What the kernel with specialised warps takes of a schedule, as compile-time constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.gpu.common.hardware import sm_count
from weft.gpu.common.split_k import StreamK, TailSplits
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, tiled_dim
from weft.gpu.tma.params import Dimension, TmaParams, tma_params
from weft.gpu.tma.schedule import dim_axes, parts
from weft.gpu.tma.views import extent
from weft.gpu.warp_specialized.results import piece_width, results
from weft.gpu.warp_specialized.roles import CONSUMERS, SMEM_TRANSFORM, THREADS, Consumers, Roles, roles
from weft.gpu.warp_specialized.schedule import WsSchedule, portions, share_count, share_steps, task_count
from weft.planner.schedule import Target
from weft.spec import Contraction

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout

SWIZZLED = 8  # lines of shared memory after which a swizzle repeats: fewer cannot be sliced out of a box


class Piece(NamedTuple):
    """Rows and columns of a block of D that a worker stores at once."""

    m: TiledDim
    n: TiledDim
    row: int  # of the block, where the piece starts
    column: int


class Share(NamedTuple):
    """Rows and columns of a block of D that one accumulator of one worker holds."""

    m: TiledDim
    n: TiledDim
    row: int  # of the block, where the share starts
    pieces: tuple[Piece, ...]
    halvings: int  # that lead to them


class Run(NamedTuple):
    """Lines of a box of B that a role applies the function to at once."""

    part: int  # of B
    first: int
    lines: int


class WsParams(NamedTuple):
    """All that the kernel takes of a schedule beside what the boxes say."""

    boxes: TmaParams
    shares: tuple[tuple[Share, ...], ...]  # [worker][part]
    consumers: Consumers
    tasks: int  # of each share of the sums: blocks of D, or pairs of them
    product_bits: int  # of an element
    roles: Roles
    stages: int  # of each ring of boxes
    own_rows: tuple[int, int]  # [worker] first slot of the ring that its boxes of A come in
    own_columns: tuple[int, int]  # the same of B
    rounds: int  # of a ring until it comes back to the same barriers
    x_layout: NVMMASharedLayout  # of boxes of A in shared memory, as matrices
    y_layouts: tuple[NVMMASharedLayout, ...]  # of B, for each part
    d_box: tuple[Dimension, ...]  # roles: 0 batch, 1 m, 2 n
    d_along_n: bool
    d_shape: tuple[int, int]  # of a piece as it lies in D
    d_layout: NVMMASharedLayout
    portions: tuple[tuple[Run, ...], ...]  # in place: [applier] what it applies B's function to
    fewer: TailSplits  # in place
    stream: StreamK | None  # portions of all sums; None where each sum has the same shares


def ws_params(contraction: Contraction, schedule: WsSchedule, target: Target) -> WsParams:
    fewer = TailSplits(schedule.fewer, share_steps(contraction, schedule, schedule.fewer) if schedule.fewer else 0)
    whole = replace(schedule, splits=1) if schedule.streamed else schedule
    boxes = tma_params(contraction, whole, target, fewer.shares * fewer.steps)
    processors = sm_count(target)
    programs = min(processors, -(-share_count(contraction, schedule) // schedule.consumers.pipelines))
    tasks = task_count(contraction, schedule)
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    widths = parts(tile_n)
    stored = results(contraction, schedule, schedule.rows, boxes.blocks)
    sharing = roles(contraction, schedule.tile, schedule.consumers)
    assert sharing is not None, "schedules are offered only where there are registers"
    line = (stored.box.block[-2], stored.box.block[-1])
    return WsParams(
        boxes=boxes._replace(splits=schedule.splits, programs=programs),
        shares=_shares(contraction, schedule, boxes),
        consumers=schedule.consumers,
        tasks=tasks,
        product_bits=8 * size,
        roles=sharing,
        stages=schedule.stages,
        own_rows=(0, schedule.stages if schedule.consumers.pipelines == 2 else 0),
        own_columns=(0, schedule.stages if schedule.consumers.pipelines_of_columns == 2 else 0),
        rounds=rounds(schedule.stages, sharing.transformers // schedule.consumers.pipelines_of_columns),
        x_layout=matrix_layout((tile_m, tile_k), schedule.a.along_k, size),
        y_layouts=tuple(matrix_layout((width, tile_k), schedule.b.along_k, size) for width in widths),
        d_box=stored.dimensions,
        d_along_n=stored.along_n,
        d_shape=line,
        d_layout=matrix_layout(line, True, stored.box.layout.dtype.itemsize),
        portions=_portions(schedule, sharing) if schedule.consumers == SMEM_TRANSFORM else (),
        fewer=fewer,
        stream=portions(contraction, schedule, target) if schedule.streamed else None,
    )


def _portions(schedule: WsSchedule, roles: Roles) -> tuple[tuple[Run, ...], ...]:
    """What three appliers have of a step's boxes of B: about a third of all elements each, and the last of them those
    of the second part."""
    _, tile_n, tile_k = schedule.tile
    widths = (tile_k,) * 2 if schedule.b.along_k else parts(tile_n)
    wide, rest = parts(tile_n)[0] if schedule.b.along_k else tile_k, _rest(schedule)
    least = wide // 8
    third = round((wide + rest * widths[-1] / widths[0]) / (3 * least)) * least
    at_once = [max(SWIZZLED, roles.at_once * THREADS // width) for width in widths]
    first, second = _runs(0, 0, third, at_once[0]), _runs(0, third, 2 * third, at_once[0])
    return first, second, _runs(0, 2 * third, wide, at_once[0]) + _runs(1, 0, rest, at_once[-1])


def _runs(part: int, first: int, end: int, most: int) -> tuple[Run, ...]:
    """Lines in runs that may be sliced out of a box: powers of two, which start at multiples of themselves."""
    found = []
    while first < end:
        lines = min(most, first & -first or most, 1 << (end - first).bit_length() - 1)
        found.append(Run(part, first, lines))
        first += lines
    return tuple(found)


def _rest(schedule: WsSchedule) -> int:
    """Lines of boxes of B's second part. Lines past the last column, of the only block along n, need no function."""
    _, tile_n, tile_k = schedule.tile
    wide, *narrow = parts(tile_n)
    if not narrow or not schedule.b.along_k:
        return tile_k if narrow else 0
    there = extent(schedule.b.outer) - wide
    return min(narrow[0], -(-there // SWIZZLED) * SWIZZLED) if there > 0 else narrow[0]


def rounds(stages: int, transformers: int) -> int:
    """Of a ring, after which the same applier meets the same slot again: they take turns."""
    return math.lcm(stages, max(1, transformers)) // stages


def matrix_layout(shape: tuple[int, int], along_k: bool, size: int, rank: int = 2) -> NVMMASharedLayout:
    """How a box of so many rows and columns lies in shared memory, its contiguous side as it is in memory."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    rows, columns = shape
    line = (columns if along_k else rows) * size
    swizzle = next(width for width in (128, 64, 32) if line % width == 0)
    return NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * size, rank=rank)


def _shares(contraction: Contraction, schedule: WsSchedule, boxes: TmaParams) -> tuple[tuple[Share, ...], ...]:
    """What each worker holds: half of the rows of a block, or all of them; and all columns, part by part."""
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    *others_m, rows = dim_axes(schedule.a, tile_m)
    *others_n, columns = dim_axes(schedule.b, tile_n)
    height = schedule.rows

    def held(row: int, column: int, width: int) -> Share:
        def across(first: int, count: int) -> TiledDim:
            return tiled_dim([*others_n, TiledAxis(columns.modes, count, True, tile_n, first)], 1, tensors)

        m = tiled_dim([*others_m, TiledAxis(rows.modes, height, True, tile_m, row)], 0, tensors)
        narrow = piece_width(contraction, schedule)
        pieces = tuple(Piece(m, across(first, narrow), row, first) for first in range(column, column + width, narrow))
        return Share(m, across(column, width), row, pieces, (width // narrow).bit_length() - 1)

    widths = parts(tile_n)
    starts = [sum(widths[:at]) for at in range(len(widths))]
    return tuple(
        tuple(held(row, column, width) for column, width in zip(starts, widths, strict=True))
        for row in (consumer % schedule.consumers.shares * height for consumer in range(CONSUMERS))
    )

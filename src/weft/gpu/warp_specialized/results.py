"""How results leave in boxes: pieces of a block of D, or of a share of a split sum, through the memory accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import TensorMap
from weft.gpu.common.tiling import D
from weft.gpu.tma.params import Dimension
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, dim_blocks, parts
from weft.gpu.tma.views import MOST_DIMENSIONS, TmaView, extent
from weft.spec import Contraction, Layout, Mode, Role

PIECE_BYTES = 128  # of a row of a piece: the widest line that shared memory takes without conflicts

_ROLES = {Role.BATCH: 0, Role.M: 1, Role.N: 2}


class Results(NamedTuple):
    """A tensor as the memory accelerator takes pieces of it."""

    box: TensorMap
    along_n: bool  # a piece's rows of D's n are contiguous, else its columns
    dimensions: tuple[Dimension, ...]  # roles: 0 batch, 1 m, 2 n; none where shares are stored


def piece_width(contraction: Contraction, schedule: TmaSchedule) -> int:
    """Columns of a piece: of both parts of a block where it has two."""
    split = schedule.splits > 1
    size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    return min(PIECE_BYTES // size, parts(schedule.tile[1])[-1])


def share_layout(contraction: Contraction, schedule: TmaSchedule, blocks: int) -> Layout:
    """Where shares of split sums lie: a tile for each share of each block, without the rows and columns that no block
    has. The accelerator leaves those away."""
    accumulate = contraction.arithmetic.accumulate
    at_once = VECTOR // accumulate.itemsize
    tile_m, tile_n, _ = schedule.tile
    rows = min(tile_m, -(-extent(schedule.a.outer) // at_once) * at_once)
    columns = min(tile_n, -(-extent(schedule.b.outer) // at_once) * at_once)
    return Layout.contiguous((blocks * schedule.splits, rows, columns), accumulate)


def result_groups(contraction: Contraction, a: TmaView, b: TmaView) -> tuple[tuple[Mode, ...], ...] | None:
    """The dimensions of D, those that pieces span runs of last and the contiguous one at the end; None where D does
    not lie so."""
    runs = (a.outer, b.outer)
    own = [group for view in (a, b) for group in view.dimensions if group[0].role in (Role.M, Role.N)]
    batch = [(mode,) for mode in contraction.of_role(Role.BATCH)]
    groups = sorted((*own, *batch), key=lambda group: (group in runs, -group[0].strides[D]))
    steps = [group[0].strides[D] for group in groups]
    aligned = all(step > 0 and step * contraction.d.dtype.itemsize % VECTOR == 0 for step in steps[:-1])
    if len(groups) > MOST_DIMENSIONS or steps[-1] != 1 or not aligned or contraction.d.alignment < VECTOR:
        return None
    return tuple(groups) if all(map(_together, groups)) else None


def _together(group: Sequence[Mode]) -> bool:
    """Whether modes, innermost first, lie together in D."""
    return all(outer.strides[D] == inner.strides[D] * inner.extent for inner, outer in pairwise(group))


def results(contraction: Contraction, schedule: TmaSchedule, rows: int, blocks: int) -> Results:
    """Where pieces of so many rows go; `blocks` counts those of D."""
    tile_m, tile_n, _ = schedule.tile
    width = piece_width(contraction, schedule)
    if schedule.splits > 1:
        layout = share_layout(contraction, schedule, blocks)
        return Results(TensorMap(layout, (1, rows, width)), True, ())
    groups = result_groups(contraction, schedule.a, schedule.b)
    assert groups is not None, "schedules are offered only where D lies in boxes"
    d, spans = contraction.d, {schedule.a.outer: rows, schedule.b.outer: width}
    shape = tuple(map(extent, groups))
    layout = Layout(shape, tuple(group[0].strides[D] for group in groups), d.dtype, d.alignment)
    batch = {(mode,): Dimension(0, axis) for axis, mode in enumerate(contraction.of_role(Role.BATCH))}
    dims = {
        cut.modes: Dimension(_ROLES[cut.modes[0].role], axis)
        for view, tile in ((schedule.a, tile_m), (schedule.b, tile_n))
        for axis, cut in enumerate(dim_axes(view, tile))
    }
    places = batch | dims
    box = TensorMap(layout, tuple(spans.get(group, 1) for group in groups))
    return Results(box, groups[-1] == schedule.b.outer, tuple(places[group] for group in groups))


def staging_bytes(rows: int, buffers: int) -> int:
    """Shared memory of both workers for pieces of so many rows on their way."""
    return 2 * buffers * rows * PIECE_BYTES


def block_count(contraction: Contraction, schedule: TmaSchedule) -> int:
    tile_m, tile_n, _ = schedule.tile
    return contraction.batch * dim_blocks(schedule.a, tile_m) * dim_blocks(schedule.b, tile_n)

"""Where results go by TMA, subtile by subtile: the tensor map of D, or of a workspace of split-K partials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import TensorMap
from weft.gpu.common.tiling import D
from weft.gpu.tma.params import TmaDim
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, dim_tiles, n_parts
from weft.gpu.tma.views import MOST_DIMENSIONS, TmaView, extent
from weft.spec import Contraction, Layout, Mode, Role

SUBTILE_BYTES = 128  # of a row of a subtile: the widest line that shared memory takes without conflicts

_ROLES = {Role.BATCH: 0, Role.M: 1, Role.N: 2}


class OutputMap(NamedTuple):
    """The tensor that subtiles are stored in."""

    tensor_map: TensorMap
    along_n: bool  # a subtile's rows are contiguous in the tensor, else its columns
    dims: tuple[TmaDim, ...]  # of D; empty for a workspace of partials, which is (partial, row, column)


def subtile_columns(contraction: Contraction, schedule: TmaSchedule) -> int:
    """Columns of a subtile: as many in both parts of a tile along n where there are two."""
    split = schedule.splits > 1
    size = (contraction.arithmetic.accumulate if split else contraction.d.dtype).itemsize
    return min(SUBTILE_BYTES // size, n_parts(schedule.tile[1])[-1])


def partials_layout(contraction: Contraction, schedule: TmaSchedule, tiles: int) -> Layout:
    """The workspace of split-K partials, (splits * output tiles, rows, columns). Rows and columns that no output tile
    has are left out: TMA does not store what is outside the tensor."""
    accumulate = contraction.arithmetic.accumulate
    aligned = VECTOR // accumulate.itemsize
    tile_m, tile_n, _ = schedule.tile
    rows = min(tile_m, -(-extent(schedule.a.outer) // aligned) * aligned)
    columns = min(tile_n, -(-extent(schedule.b.outer) // aligned) * aligned)
    return Layout.contiguous((tiles * schedule.splits, rows, columns), accumulate)


def output_dimensions(contraction: Contraction, a: TmaView, b: TmaView) -> tuple[tuple[Mode, ...], ...] | None:
    """The dimensions of D's tensor map: those that a subtile spans a run of last, the contiguous one at the very end.

    None where TMA cannot store D: modes of a dimension do not lie together in it, or strides are not aligned.
    """
    runs = (a.outer, b.outer)
    own = [group for view in (a, b) for group in view.dimensions if group[0].role in (Role.M, Role.N)]
    batch = [(mode,) for mode in contraction.of_role(Role.BATCH)]
    groups = sorted((*own, *batch), key=lambda group: (group in runs, -group[0].strides[D]))
    steps = [group[0].strides[D] for group in groups]
    aligned = all(step > 0 and step * contraction.d.dtype.itemsize % VECTOR == 0 for step in steps[:-1])
    if len(groups) > MOST_DIMENSIONS or steps[-1] != 1 or not aligned or contraction.d.alignment < VECTOR:
        return None
    return tuple(groups) if all(map(_lie_together, groups)) else None


def _lie_together(group: Sequence[Mode]) -> bool:
    """Whether modes, innermost first, lie together in D."""
    return all(outer.strides[D] == inner.strides[D] * inner.extent for inner, outer in pairwise(group))


def output_map(contraction: Contraction, schedule: TmaSchedule, rows: int, tiles: int) -> OutputMap:
    """Where subtiles of so many rows go, of so many output tiles."""
    tile_m, tile_n, _ = schedule.tile
    columns = subtile_columns(contraction, schedule)
    if schedule.splits > 1:
        return OutputMap(TensorMap(partials_layout(contraction, schedule, tiles), (1, rows, columns)), True, ())
    groups = output_dimensions(contraction, schedule.a, schedule.b)
    assert groups is not None, "schedules with whole sums are offered only where TMA can store D"
    d, spans = contraction.d, {schedule.a.outer: rows, schedule.b.outer: columns}
    shape = tuple(map(extent, groups))
    layout = Layout(shape, tuple(group[0].strides[D] for group in groups), d.dtype, d.alignment)
    batch = enumerate(contraction.of_role(Role.BATCH))
    dims: dict[tuple[Mode, ...], TmaDim] = {(mode,): TmaDim(0, axis) for axis, mode in batch}
    dims |= {
        tiled.modes: TmaDim(_ROLES[tiled.modes[0].role], axis)
        for view, tile in ((schedule.a, tile_m), (schedule.b, tile_n))
        for axis, tiled in enumerate(dim_axes(view, tile))
    }
    tensor_map = TensorMap(layout, tuple(spans.get(group, 1) for group in groups))
    return OutputMap(tensor_map, groups[-1] == schedule.b.outer, tuple(dims[group] for group in groups))


def staging_bytes(rows: int, buffers: int) -> int:
    """Shared memory of both consumers for subtiles of so many rows that wait to be stored."""
    return 2 * buffers * rows * SUBTILE_BYTES


def output_tiles(contraction: Contraction, schedule: TmaSchedule) -> int:
    """How many output tiles D has."""
    tile_m, tile_n, _ = schedule.tile
    return contraction.batch * dim_tiles(schedule.a, tile_m) * dim_tiles(schedule.b, tile_n)

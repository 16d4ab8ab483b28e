"""How tiles touch one tensor's memory: widths of accesses, lengths of runs, and the multiples that these start at."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.gpu.common.cost import Access, ModeInTile, run_of, tile_access
from weft.gpu.common.hardware import LINE
from weft.gpu.common.tiling import Axis, TiledDim
from weft.spec import Layout


def access_of(layout: Layout, tensor: int, dim: TiledDim, tiles: int = 1) -> Access:
    """What so many tiles read or write of a tensor, each access as wide as every axis allows."""
    access = tile_access(layout, tensor, tiles, dim.axes)
    size = layout.dtype.itemsize
    width = min(access.width, max(start_divisor(tensor, dim), 1) * size)
    stretch, together = _lane_run(dim.axes, tensor) * size, _mean_run(dim.axes, tensor) * size
    return access._replace(width=width, stretch=stretch, together=together)


def start_divisor(tensor: int, dim: TiledDim) -> int:
    """Elements of which the offset of every run within a tile is a multiple."""
    return min([axis.runs[tensor].divisor for axis in dim.axes], default=1)


def tile_divisor(tensor: int, dim: TiledDim) -> int:
    """Elements of which the offsets of all tiles and their runs are a multiple."""
    divisor = 0
    for axis in dim.axes:
        along = bool(axis.strides[tensor]) and axis.strides[tensor][0] == 1
        tile = axis.tile if along and axis.tile < axis.extent else 0
        divisor = math.gcd(divisor, *axis.strides[tensor][along:], tile)
    return divisor


def line_share(layout: Layout, tensor: int, dim: TiledDim) -> int:
    """Bytes of which all runs of a tensor start at a multiple, a whole line at most."""
    return math.gcd(LINE, tile_divisor(tensor, dim) * layout.dtype.itemsize)


def _mean_run(axes: Sequence[Axis], tensor: int) -> int:
    """Elements of a tile that lie together on average: a run also ends where a tile does, if the tile and the modes
    that it spans do not divide one another."""
    found = []
    for axis in axes:
        rest = axis.tile
        extents = [max(extent, 1) for extent in axis.extents]  # where nothing is moved, a plan is still made
        for at, (extent, stride) in enumerate(zip(extents, axis.strides[tensor], strict=True)):
            covered = min(rest, extent)
            if at + 1 < len(axis.extents) and max(rest, extent) % covered:
                covered = max(1, rest * extent // (extent + rest - math.gcd(rest, extent)))
            if stride:
                found.append(ModeInTile(stride, covered, extent))
            rest = -(-rest // extent)
    return run_of(found)


def _lane_run(axes: Sequence[Axis], tensor: int) -> int:
    """Elements of a tile that lie together along its fastest axes: what neighbouring lanes take."""
    run = 1
    for axis in sorted(axes, key=lambda axis: (axis.strides[tensor] or (0,))[0] or math.inf):
        rest = axis.tile
        for extent, stride in zip(axis.extents, axis.strides[tensor], strict=True):
            if rest == 1:
                break
            if stride != run:
                return run
            run *= min(rest, extent)
            if rest < extent:
                return run
            rest = -(-rest // extent)
    return run

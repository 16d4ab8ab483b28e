"""Seconds of a pass: rows of a tile, items, what is packed or written one by one, and memory."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from weft.cpu.host import costs
from weft.cpu.stream.nest import Nest, StreamAxis
from weft.cpu.stream.params import IN_PLACE, SQUARES
from weft.cpu.stream.types import StreamTypes, types_of
from weft.spec import Contraction

LINE = 64


class _StreamCost(NamedTuple):
    call: float  # seconds
    team: float  # of starting threads
    block: float  # of a block of D,
    tile: float  # of a tile,
    row: float  # of a row of a tile
    item: float  # of four bytes of a row
    turned: float  # of four bytes that are transposed
    single: float  # of an item that is read or written by itself
    memory: float  # bytes a second of one core, from memory
    near: float  # and from caches,
    cache: float  # of so many bytes
    writes: float  # how many times as long products take that are not summed


@lru_cache
def _cost() -> _StreamCost:
    found = costs("stream")
    return _StreamCost(*(found(name) for name in _StreamCost._fields))


def call_seconds(threads: int) -> float:
    """Seconds of a call besides its loops."""
    return _cost().call + (_cost().team if threads > 1 else 0.0)


def seconds(contraction: Contraction, nest: Nest) -> float:
    """Seconds of one thread that does it all."""
    cost, types, (x, y) = _cost(), types_of(contraction), (nest.x, nest.y)
    products = math.prod(mode.extent for mode in contraction.modes)
    along, across = nest.pieces
    rows: float = products // x.extent * along
    if x.kept and not y.kept and x.b == 0:
        rows = rows / min(4, y.extent)
    tiles = products // (x.extent * y.extent) * along * across
    held = max(types.operand_size, types.sum_size // 2)
    busy = nest.size * cost.block + tiles * cost.tile + rows * cost.row + products * held / 4 * cost.item
    kept = contraction.batch * contraction.m * contraction.n
    for at, way in zip((2, 3), nest.ways, strict=False):
        if way != IN_PLACE:
            busy += products / (1 if y[at] else y.extent / across) * _packed(way, types.operand_size)
    if not nest.writes:
        busy += kept * (cost.item + (_packed(nest.ways[2], types.result_size) if nest.ways[2] != IN_PLACE else 0.0))
    return max(busy, _read(_touched(nest, types))) * (cost.writes if nest.writes else 1.0)


def _packed(way: int, size: int) -> float:
    return _cost().turned * max(size / 4, 0.5) if way == SQUARES else _cost().single


def _touched(nest: Nest, types: StreamTypes) -> float:
    """Bytes that memory moves: whole lines where neither of a tile's modes is contiguous."""
    axes = (*nest.outer, *nest.sums, nest.x, nest.y)
    total = 0.0
    for at, size in ((2, types.operand_size), (3, types.operand_size), (4, types.result_size)):
        items = math.prod(axis.extent for axis in axes if axis[at])
        spread = LINE / size if 1 not in (nest.x[at], nest.y[at]) and items > 1 else 1.0
        total += items * size * spread * _seldom(nest, at)
    return total


def _read(size: float) -> float:
    return size / (_cost().memory if size > _cost().cache else _cost().near)


def _seldom(nest: Nest, at: int) -> float:
    """The cost of reading runs of x, relative to a stream, in tiles whose next one is stored elsewhere."""
    x, y = nest.x, nest.y
    if x[at] != 1 or x.extent >= ALONG_PAGE or y[at] == x.extent:
        return 1.0
    return 1.3 if any(_between(axis, x, y, at) for axis in (*nest.outer, *nest.sums)) else 1.0


ALONG_PAGE = 1024  # items of a run that is as good as a stream


def _between(axis: StreamAxis, x: StreamAxis, y: StreamAxis, at: int) -> bool:
    """Whether a mode of the loops around is stored between those of a tile in memory."""
    return 0 < axis[at] < y[at] or (y[at] == 0 and axis[at] > 0)

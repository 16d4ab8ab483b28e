"""Seconds of a pass: rows of a tile, items, what is packed or written one by one, and memory."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from weft.cpu.host import costs
from weft.cpu.stream.nest import Nest
from weft.cpu.stream.params import IN_PLACE, SQUARES
from weft.cpu.stream.types import StreamTypes, types_of
from weft.spec import Contraction, Role

_OVERLAP = 0.75  # of the shorter of arithmetic and memory's work that the longer one hides
_START = 32  # bytes that memory could have moved while a run of neighbours begins, as it does for runs of 16 or less


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
    read = _read(_moved(nest, types))
    whole = max(busy, read) + (1 - _OVERLAP) * min(busy, read)
    return whole if any(mode.role is Role.K for mode in contraction.modes) else whole * cost.writes


def _packed(way: int, size: int) -> float:
    return _cost().turned * max(size / 4, 0.5) if way == SQUARES else _cost().single


def _moved(nest: Nest, types: StreamTypes) -> float:
    """Bytes that memory moves: items, and what beginning their runs costs."""
    axes = (*nest.outer, *nest.sums, nest.x, nest.y)
    total = 0.0
    for at, size in ((2, types.operand_size), (3, types.operand_size), (4, types.result_size)):
        items = math.prod(axis.extent for axis in axes if axis[at])
        total += items * size * (1 + _START / max(_run(nest, at) * size, 16))
    return total


def _read(size: float) -> float:
    return size / (_cost().memory if size > _cost().cache else _cost().near)


def _run(nest: Nest, at: int) -> int:
    """Neighbours in memory that a tile reads one after the other."""
    for (axis, block), (other, rows) in permutations(zip((nest.x, nest.y), nest.blocks, strict=True)):
        if axis[at] == 1:
            return block * rows if block == axis.extent == other[at] else block
    return 1

"""The nest of loops of one pass: number types, the two modes of a tile, and the loops around."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.cpu.host import whole_lines
from weft.cpu.level import vector_bytes
from weft.cpu.stream.params import IN_PLACE, ONE_BY_ONE, SQUARES
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name

# Types of sums, which are kept in a wider type.
ACCUMULATORS = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64)
_HALVES = (torch.float16, torch.bfloat16)
_BYTES = (torch.int8, torch.uint8, torch.int16)
# Types that hold the values of a type without rounding, besides itself.
HELD_IN = {
    **dict.fromkeys(_HALVES, (torch.float32,)), **dict.fromkeys(_BYTES, (torch.int32, torch.int64)),
    torch.int32: (torch.int64,),
}  # fmt: skip
# Types of D besides the accumulator's.
WRITTEN = {torch.float32: _HALVES}


class StreamTypes(NamedTuple):
    """Names of the operands' type, of what products are made in, and of D's; bytes of items and sums."""

    operand: str
    held: str
    result: str
    operand_size: int
    result_size: int
    sum_size: int

    @property
    def widest(self) -> int:
        return max(self.operand_size, self.result_size)


def fault(contraction: Contraction) -> str | None:
    """None, or one sentence that says why the types have no loops."""
    arithmetic, stored = contraction.arithmetic, contraction.a.dtype
    if contraction.b.dtype != stored:
        return "operands are of different types"
    accumulate = arithmetic.accumulate
    if accumulate not in ACCUMULATORS or (stored != accumulate and accumulate not in HELD_IN.get(stored, ())):
        return f"{dtype_name(stored)} summed in {dtype_name(accumulate)} has no loops"
    if arithmetic.product not in (stored, accumulate):
        return f"values are rounded to {dtype_name(arithmetic.product)} first"
    if contraction.d.dtype != accumulate and contraction.d.dtype not in WRITTEN.get(accumulate, ()):
        return f"sums in {dtype_name(accumulate)} are not written as {dtype_name(contraction.d.dtype)}"
    return None


def types_of(contraction: Contraction) -> StreamTypes:
    """The number types of a contraction without a fault."""
    stored, result, held = contraction.a.dtype, contraction.d.dtype, contraction.arithmetic.accumulate
    return StreamTypes(
        dtype_name(stored), dtype_name(held), dtype_name(result), stored.itemsize, result.itemsize,
        16 if held.is_complex else 8,
    )  # fmt: skip


ROW = 8192  # bytes of the sums of a row
SIDE = 64  # and of a tile that is transposed, both ways
SUMS = 24 << 10  # bytes of the sums of a block
TILE = 16 << 10  # bytes of a packed tile


class StreamAxis(NamedTuple):
    """A mode as loops see it: strides in A, B and D, in items, after operands have changed places."""

    extent: int
    kept: bool
    a: int
    b: int
    d: int


NOTHING = StreamAxis(1, True, 0, 0, 0)  # for x or y where there is no mode


class Nest(NamedTuple):
    """Loops: those around, outermost first, and two of a tile."""

    outer: tuple[StreamAxis, ...]
    sums: tuple[StreamAxis, ...]
    x: StreamAxis
    y: StreamAxis
    blocks: tuple[int, int]  # items along x and y
    ways: tuple[int, int, int]  # how A, B and D are read and written: see `params`
    writes: bool  # products go straight to D
    swapped: bool  # whether B comes first

    @property
    def pieces(self) -> tuple[int, int]:
        """Tiles along x and y."""
        return -(-self.x.extent // self.blocks[0]), -(-self.y.extent // self.blocks[1])

    @property
    def size(self) -> int:
        """Blocks of D."""
        x, y = self.pieces
        around = math.prod(axis.extent for axis in self.outer)
        return around * (x if self.x.kept else 1) * (y if self.y.kept else 1)


def nests(contraction: Contraction) -> Iterator[tuple[int, int, Nest]]:
    """Every choice of the modes of a tile."""
    types = types_of(contraction)
    places = [at for at, mode in enumerate(contraction.modes) if mode.extent > 1]
    for x in places or [-1]:
        for y in [place for place in places if place != x] or [-1]:
            yield x, y, nest_of(contraction, types, x, y)


def nest_of(contraction: Contraction, types: StreamTypes, x: int, y: int) -> Nest:
    """The loops around a tile of two modes."""
    axes = [_axis(mode) for mode in contraction.modes]
    along, across = (axes[at] if at >= 0 else NOTHING for at in (x, y))
    swapped = _comes_second(along, across)
    if swapped:
        axes = [axis._replace(a=axis.b, b=axis.a) for axis in axes]
        along, across = (axis._replace(a=axis.b, b=axis.a) for axis in (along, across))
    rest = [axis for at, axis in enumerate(axes) if at not in (x, y) and axis.extent > 1]
    outer = sorted((axis for axis in rest if axis.kept), key=lambda axis: -axis.d)
    sums = sorted((axis for axis in rest if not axis.kept), key=lambda axis: -max(axis.a, axis.b))
    summed = any(not axis.kept for axis in axes)
    writes = not summed and along.d == 1
    ways = _ways(along, across)
    blocks = _blocks(along, across, types, ways, writes)
    if min(_side(along, blocks[0]), _side(across, blocks[1])) < 2:  # no squares
        a, b, d = (ONE_BY_ONE if way == SQUARES else way for way in ways)
        ways = (a, b, d)
    return Nest(tuple(outer), tuple(sums), along, across, blocks, ways, writes, swapped)


def _axis(mode: Mode) -> StreamAxis:
    strides = mode.strides
    return StreamAxis(mode.extent, mode.role is not Role.K, strides.a, strides.b, strides.d)


def _comes_second(x: StreamAxis, y: StreamAxis) -> bool:
    """Whether B is the operand that has an item for each of a row."""
    if (x.a == 0) != (x.b == 0):
        return x.a == 0
    return x.a != 1 and x.b == 1 and y.a != 1


def _ways(x: StreamAxis, y: StreamAxis) -> tuple[int, int, int]:
    """How tiles of A, B and D are read and written."""
    a = ONE_BY_ONE if x.a == 0 and x.extent > 1 else _way(x.a, y.a)
    d = _way(x.d, y.d) if x.kept else IN_PLACE if y.d == 1 else ONE_BY_ONE
    return a, _way(x.b, y.b), d


def _way(along: int, across: int) -> int:
    if along in (0, 1):
        return IN_PLACE
    return SQUARES if across == 1 else ONE_BY_ONE


def _blocks(x: StreamAxis, y: StreamAxis, types: StreamTypes, ways: tuple[int, ...], writes: bool) -> tuple[int, int]:
    """Items of a tile, so that sums and packed tiles stay in the first cache."""
    squares = SQUARES in ways
    along = _balanced(x.extent, SIDE if squares else ROW // types.sum_size)
    across = y.extent
    if squares:
        across = _balanced(y.extent, SIDE)
    else:
        if y.kept and not writes:
            across = min(across, max(1, SUMS // (types.sum_size * (along if x.kept else 1))))
        if ONE_BY_ONE in ways:
            across = min(across, max(1, TILE // (types.widest * along)))
        across = _balanced(y.extent, across)
    return along, across


def _balanced(extent: int, most: int) -> int:
    return math.ceil(extent / math.ceil(extent / most))


def _side(axis: StreamAxis, block: int) -> int:
    """Items that every tile has along an axis."""
    return axis.extent - (math.ceil(axis.extent / block) - 1) * block


def side_of(nest: Nest, size: int) -> int:
    """Items along a side of the squares that tiles are transposed in."""
    least = min(_side(nest.x, nest.blocks[0]), _side(nest.y, nest.blocks[1]), vector_bytes() // size)
    return 1 << (least.bit_length() - 1)


def room(nest: Nest, types: StreamTypes) -> int:
    """Bytes of a thread's workspace."""
    sums, tile = rooms(nest, types)
    return sums + 2 * tile + 64


def rooms(nest: Nest, types: StreamTypes) -> tuple[int, int]:
    """Bytes for the sums of a block, and for a packed tile."""
    along, across = nest.blocks
    rows = across if nest.y.kept else 1
    sums = 0 if nest.writes else rows * (along if nest.x.kept else 1) * types.sum_size
    packed = along * across * types.widest if any(way != IN_PLACE for way in nest.ways) else 0
    return whole_lines(sums), whole_lines(packed)


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """The modes of a tile by their places among the contraction's, and the threads that share blocks of D."""

    x: int  # -1: there is none
    y: int
    threads: int
    workspace_bytes: int
    splits: int = 1  # of the sums: see `weft.cpu.gett.split`, of whose first step modes then are
    in_parts: bool = False  # of complex numbers as pairs of real ones: then modes are those of `parts.in_parts`
    family: str = "stream"

    def __str__(self) -> str:
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        threads += f"; sums in {self.splits} parts" if self.splits > 1 else ""
        tile = " x ".join(f"mode {at}" for at in (self.y, self.x) if at >= 0) or "one item"
        parts = " of real parts" if self.in_parts else ""
        return f"stream: one pass, tiles of {tile}{parts}; {threads}; workspace {self.workspace_bytes / 1024:.0f} KiB"

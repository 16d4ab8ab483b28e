"""The nest of loops of one pass, and its parts for threads."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from weft.cpu.level import vector_bytes
from weft.cpu.stream.params import IN_PLACE, ONE_BY_ONE, SQUARES
from weft.cpu.stream.types import StreamTypes, types_of
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.dtypes import REAL_OF

_REAL = {torch.complex64: ctypes.c_float, torch.complex128: ctypes.c_double}


def in_parts(contraction: Contraction) -> Contraction | None:
    """A contraction as one of real numbers with a mode of both parts; None where B has modes or nothing is complex."""
    accumulate = contraction.arithmetic.accumulate
    if not accumulate.is_complex or any(mode.strides.b for mode in contraction.modes):
        return None
    real = REAL_OF[accumulate]
    modes = [mode._replace(strides=Strides(*(2 * step for step in mode.strides))) for mode in contraction.modes]
    modes.append(Mode(("part",), 2, Role.M, Strides(1, 0, 0, 1)))
    a, d = (
        Layout((*each.shape, 2), (*(2 * step for step in each.strides), 1), real)
        for each in (contraction.a, contraction.d)
    )
    found = replace(
        contraction, modes=tuple(modes), a=a, b=Layout((), (), real), d=d,
        arithmetic=Arithmetic(real, real, contraction.arithmetic.precision), conjugate_a=False, conjugate_b=False,
    )  # fmt: skip
    return canonical(found)


class ComplexPartsLaunch:
    """Launches for a number B that is real, and for any."""

    def __init__(self, real: Callable[..., None], whole: Callable[..., None], dtype: torch.dtype) -> None:
        self._real, self._whole, self._part = real, whole, _REAL[dtype]

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        imaginary = self._part.from_address(b.data_ptr() + ctypes.sizeof(self._part)).value
        if alpha.imag == 0 and imaginary == 0:
            self._real(a, b, c, d, alpha.real, 0, aux)
        else:
            self._whole(a, b, c, d, alpha, beta, aux)


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
    return _rounded(sums), _rounded(packed)


def _rounded(size: int) -> int:
    return -(-size // 64) * 64

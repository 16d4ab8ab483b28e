"""Axes of a tile whose extents and strides are arguments of the kernel: the shape-generic form of `common.tiling`.

An *axis* is a group of modes flattened into one index, innermost first. Compiled in are how many modes there may be,
which tensors move along it, and in how long aligned runs; the rest comes with each launch as *numbers*. Missing modes
have extent 1.

A flattened index is taken apart by multiplications: the quotient by an extent that is known before the launch is the
upper half of a product with a magic number, a sum and a shift (T. Granlund and P. Montgomery, "Division by Invariant
Integers using Multiplication", PLDI 1994, figure 4.1, for dividends under 2^31).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common.tiling import AlignedRun
from weft.spec import Mode

MOST_INDICES = 2**31 - 2**13  # of an axis, tiles that overhang it included

HEADER = 3  # numbers before those of the axes: see `generic.model.laid`


class GenericAxis(NamedTuple):
    """One axis as a kernel is compiled for it. `numbers` and `strides` are places among the launch's numbers."""

    tile: int
    inner: int  # product of the tiles of the axes after this one in its dim
    digits: int  # modes that there is room for
    place: int  # dimension of the spread tile; -1 where a program has one index
    unit: int  # what the extent, and the first index of every run, is a multiple of
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]
    runs: tuple[AlignedRun, ...]  # [A, B, C, D, *aux]: groups that are contiguous, and the multiple that each starts at
    numbers: int  # blocks, their magic and shift, extent / unit; then extent, magic and shift of each mode but the last
    strides: tuple[int, ...]  # [A, B, C, D, *aux]: first of as many strides as there are digits

    @property
    def exact(self) -> bool:
        """The extent is not known: every tile is masked."""
        return False


class GenericDim(NamedTuple):
    """Axes of one dim, like `tiling.TiledDim`; a tile is found by the first index along each axis and the numbers."""

    axes: tuple[GenericAxis, ...]
    tile: int
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]: whether the tensor moves along this dim

    @property
    def generic(self) -> bool:
        """Extents and strides are numbers of the launch."""
        return True

    @property
    def exact(self) -> bool:
        """The extents are not known: every tile is masked."""
        return False


class AxisStructure(NamedTuple):
    """The compiled part of an axis, before it has its place among others."""

    tile: int
    digits: int
    unit: int
    present: tuple[bool, ...]
    runs: tuple[AlignedRun, ...]


class Group(NamedTuple):
    """One axis of a launch: its modes, innermost first, and how many indices a tile takes."""

    modes: tuple[Mode, ...]
    tile: int

    @property
    def extent(self) -> int:
        return math.prod([mode.extent for mode in self.modes])

    @property
    def blocks(self) -> int:
        return max(-(-self.extent // self.tile), 1)


@lru_cache(maxsize=4096)
def magic(divisor: int) -> tuple[int, int]:
    """Multiplier, as a signed 32-bit integer, and shift: n // divisor == (mulhi(n, multiplier) + n) >> shift."""
    shift = (divisor - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1
    return (multiplier - (1 << 32) if multiplier >= 1 << 31 else multiplier), shift


def needs_wide(groups: Sequence[Group], tensors: int) -> tuple[bool, ...]:
    """Whether offsets need 64 bits: of all tensors if of one, as every other combination would be one more kernel.

    Lanes of a tile may overhang an axis and are computed before they are masked; only its last mode grows by that.
    """
    reaches = [0] * tensors
    for group in groups:
        for mode in group.modes:
            indices = mode.extent + (group.tile if mode is group.modes[-1] else 0)
            reaches = [reach + stride * indices for reach, stride in zip(reaches, mode.strides, strict=False)]
    return (max(reaches) >= 2**31,) * tensors


def capacity(count: int, least: int) -> int:
    """Room for so many modes, `least` or a power of two more."""
    found = least
    while found < count:
        found *= 2
    return found


def generic_dim(axes: Sequence[GenericAxis]) -> GenericDim:
    """The dim that these axes make, the fastest axis of the tile last."""
    made, inner = [], 1
    for axis in reversed(axes):
        made.append(axis._replace(inner=inner))
        inner *= axis.tile
    present = tuple([any(found) for found in zip(*[axis.present for axis in axes], strict=True)])
    return GenericDim(tuple(reversed(made)), inner, present)


def placed_axes(structures: Sequence[AxisStructure], places: Sequence[int]) -> tuple[GenericAxis, ...]:
    """The axes of a kernel, each with its place among the launch's numbers."""
    found, at = [], HEADER
    for structure, place in zip(structures, places, strict=True):
        first = at
        at += 4 + 3 * (structure.digits - 1)
        strides = []
        for present in structure.present[:-1]:
            strides.append(at if present else -1)
            at += structure.digits * present
        found.append(GenericAxis(structure.tile, 1, structure.digits, place, structure.unit, structure.present,
                                 structure.runs, first, tuple(strides)))  # fmt: skip
    return tuple(found)


def axis_numbers(group: Group, structure: AxisStructure) -> list[int]:
    """The numbers of one axis, in the order that `placed_axes` counts on."""
    modes, room = group.modes, structure.digits
    blocks = group.blocks
    found = [blocks, *magic(blocks), group.extent // structure.unit]
    for at in range(room - 1):
        extent = modes[at].extent if at < len(modes) else 1
        found += (extent, *magic(max(extent, 1)))
    for tensor, present in enumerate(structure.present[:-1]):
        if present:
            length, divisor = structure.runs[tensor]
            steps = [mode.strides[tensor] for mode in modes]
            # Offsets outside of the run are counted in its divisor, which the kernel multiplies by.
            found += [steps[at] // divisor if at or length == 1 else steps[at] for at in range(len(steps))]
            found += [0] * (room - len(steps))
    return found

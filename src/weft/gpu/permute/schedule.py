"""Schedules of permutations, and the words that they move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import torch

from weft.gpu.common.constraints import VECTOR, power_of_two
from weft.gpu.common.tiling import A, D, TiledAxis, axes_text, by_stride, tile_count
from weft.spec import Layout, Mode, Role, Strides
from weft.spec.permutation import Permutation

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def in_words(permutation: Permutation) -> Permutation:
    """The permutation of elements that Triton has a type for."""
    dtype = permutation.x.dtype
    if permutation.is_move:
        word, parts = WORDS[min(dtype.itemsize, 8)], max(dtype.itemsize // 8, 1)
    elif dtype.is_complex:
        word, parts = dtype.to_real(), 2
    else:
        return permutation
    modes = permutation.modes
    if parts > 1:
        wider = [mode._replace(strides=Strides(*(parts * stride for stride in mode.strides))) for mode in modes]
        added = int(permutation.c is not None)
        modes = (*wider, Mode(("re·im",), parts, Role.M, Strides(1, 0, added, 1)))

    def typed(layout: Layout) -> Layout:
        return layout._replace(dtype=word)

    c = typed(permutation.c) if permutation.c is not None else None
    return replace(permutation, modes=modes, compute=word, x=typed(permutation.x), c=c, d=typed(permutation.d))


NAME = "permute"

_EXTENT = attrgetter("extent")
_RUN_BYTES = (128, 256, 512, 64, 32)  # that a tile's runs should reach on either side
_TILE_SIZE = 2048  # elements that a tile should hold
_COMMON_TILE_SIZE = 4096  # the same where one run serves both sides
_COMMON_BYTES = 128  # of the modes that both sides begin with, up to which they are an axis of their own
_OVERHANG = 1.03  # times the elements of a run that its tiles may span


@dataclass(frozen=True, slots=True)
class PermuteSchedule:
    """The axes of a tile: along X's run, along D's, and whatever fills it up."""

    axes: tuple[TiledAxis, ...]
    warps: int
    family: str = NAME
    workspace_bytes: int = 0

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return math.prod([axis.tile for axis in self.axes])

    def __str__(self) -> str:
        return f"{self.family} [{axes_text(self.axes)}] warps={self.warps}"


def programs(permutation: Permutation, schedule: PermuteSchedule) -> int:
    """Tiles, one for each program."""
    return tile_count(permutation.modes, schedule.axes)


def tilings(permutation: Permutation, most_axes: int = 3) -> Iterator[tuple[TiledAxis, ...]]:
    """The axes of tiles whose runs reach whole lines of X and of D; some come more than once."""
    sizes = (permutation.x.dtype.itemsize, permutation.d.dtype.itemsize)
    common = _common_modes(permutation.modes)
    elements = math.prod(mode.extent for mode in common)
    short = common and elements * max(sizes) <= _COMMON_BYTES
    for bytes_x, bytes_d, extend in itertools.product(_RUN_BYTES, _RUN_BYTES, (False, True)):
        x, d = (
            _MemoryRun(length // size, extend, max(VECTOR // size, 1))
            for length, size in zip((bytes_x, bytes_d), sizes, strict=True)
        )
        within = _axes_above(permutation.modes, common, x, d) if short else ()
        usable = 0 < len(within) <= most_axes
        if usable:
            yield within
        if not usable or elements & (elements - 1):
            yield _axes(permutation.modes, x, d)


class _MemoryRun(NamedTuple):
    """How far a tile should reach along one tensor's run, in elements."""

    length: int  # a power of two
    extend: bool  # over one more mode where tiles would overhang those taken, or these end within an access
    access: int  # elements of one access

    def scaled(self, elements: int) -> _MemoryRun:
        """The run in units of so many elements."""
        return _MemoryRun(max(self.length // elements, 1), self.extend, max(self.access // elements, 1))

    def is_reached(self, extent: int) -> bool:
        return extent >= self.length and not (self.extend and self._is_ragged(extent))

    def _is_ragged(self, extent: int) -> bool:
        return -(-extent // self.length) * self.length > _OVERHANG * extent or extent % self.access != 0


def _common_modes(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """The modes that both X and D begin with."""
    pairs = zip(by_stride(modes, A), by_stride(modes, D), strict=True)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1] and pair[0].strides[A], pairs)
    return tuple(mode for mode, _ in same)


def _axes_above(modes: Sequence[Mode], common: tuple[Mode, ...], x: _MemoryRun, d: _MemoryRun) -> tuple[TiledAxis, ...]:
    """Axes over the other modes, and the common ones as the last axis; none unless there are runs on both sides."""
    own = TiledAxis(common, _tile(common, _COMMON_TILE_SIZE))
    others = [mode for mode in modes if mode not in common]
    axes = _axes(others, x.scaled(own.tile), d.scaled(own.tile), own.tile)
    return (*axes, own) if len(axes) > 1 else ()


def _axes(modes: Sequence[Mode], x: _MemoryRun, d: _MemoryRun, depth: int = 1) -> tuple[TiledAxis, ...]:
    """An axis along D's run, one along X's, and a third where both together are short.

    `depth` is the number of elements that each index of the tile stands for.
    """
    by_d, by_x = by_stride(modes, D), by_stride(modes, A)
    along_d = _run_modes(by_d, d, by_x[:1] if by_d[:1] != by_x[:1] else ())
    along_x = _run_modes([mode for mode in by_x if mode.strides[A] or not x.extend], x, (), but=along_d)
    length_d = d.length if along_x else max(d.length, _COMMON_TILE_SIZE * d.length // 256)
    runs = ((along_x, x.length), (along_d, length_d))
    axes = [TiledAxis(group, _tile(group, length)) for group, length in runs if group]
    room = _TILE_SIZE // depth // math.prod([axis.tile for axis in axes])
    others = tuple([mode for mode in by_d if mode not in along_d and mode not in along_x])
    if others and room > 1:
        axes.insert(0, TiledAxis(others, _tile(others, room)))
    return tuple(axes)


def _run_modes(
    order: Sequence[Mode], run: _MemoryRun, stop: Sequence[Mode], but: Sequence[Mode] = ()
) -> tuple[Mode, ...]:
    """The first modes of an order that reach as far as they should; those in `but` count, and another axis has them."""
    taken: list[Mode] = []
    for mode in order:
        extent = math.prod(map(_EXTENT, taken))
        if mode in stop or run.is_reached(extent) or (mode in but and extent >= run.length):
            break
        taken.append(mode)
    return tuple([mode for mode in taken if mode not in but])


def _tile(group: Sequence[Mode], most: int) -> int:
    """The power of two that covers a group of modes, at most `most`."""
    return min(most, power_of_two(math.prod(map(_EXTENT, group))))

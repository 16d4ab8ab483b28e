"""Which blocks a permutation may be cut into: runs of the source and of D, over as many modes as fill memory lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.tiling import A, Axis, D, TiledAxis, TiledDim, by_stride
from weft.spec import Mode
from weft.spec.permutation import Permutation

_EXTENT = attrgetter("extent")
_LINES = (128, 256, 512, 64, 32)  # bytes that a block's runs should reach on either side
_FULL = 2048  # elements that a block should hold
_LONG = 4096  # and where one run serves both sides
_SHORT = 128  # bytes of the modes that both sides begin with, up to which they are an axis of their own
_OVERHANG = 1.03  # times the elements of a run that its blocks may span


def blocks(permutation: Permutation, most_axes: int = 3) -> Iterator[tuple[TiledAxis, ...]]:
    """Blocks whose runs reach whole lines of the source and of D."""
    sizes = (permutation.x.dtype.itemsize, permutation.d.dtype.itemsize)
    shared = _shared(permutation.modes)
    elements = math.prod(mode.extent for mode in shared)
    short = shared and elements * max(sizes) <= _SHORT
    for line_x in _LINES:
        for line_d in _LINES:
            for even in (False, True):
                x, d = (
                    _Want(line // size, even, max(VECTOR // size, 1))
                    for line, size in zip((line_x, line_d), sizes, strict=True)
                )
                within = _block_within(permutation.modes, shared, x, d) if short else ()
                usable = 0 < len(within) <= most_axes
                if usable:
                    yield within
                if not usable or elements & (elements - 1):
                    yield _block(permutation.modes, x, d)


def _shared(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """The modes that both the source and D begin with."""
    pairs = zip(by_stride(modes, A), by_stride(modes, D), strict=True)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1] and pair[0].strides[A], pairs)
    return tuple(mode for mode, _ in same)


def _block_within(modes: Sequence[Mode], shared: tuple[Mode, ...], x: _Want, d: _Want) -> tuple[TiledAxis, ...]:
    """A block of what is left of the modes when both sides begin with the same, and those as its last axis; none where
    nothing else is cut along both."""
    own = TiledAxis(shared, _tile(shared, _LONG))
    others = [mode for mode in modes if mode not in shared]
    cuts = _block(others, x.of(own.tile), d.of(own.tile), own.tile)
    return (*cuts, own) if len(cuts) > 1 else ()


class _Want(NamedTuple):
    """How far a run should reach, in elements."""

    length: int  # a power of two
    even: bool  # over further modes where it would overhang those that it takes, or they end
    unit: int  # within so many elements that one access takes

    def of(self, tile: int) -> _Want:
        """The same in elements so many times larger."""
        return _Want(max(self.length // tile, 1), self.even, max(self.unit // tile, 1))

    def met(self, extent: int) -> bool:
        return extent >= self.length and not (self.even and self.ragged(extent))

    def ragged(self, extent: int) -> bool:
        return -(-extent // self.length) * self.length > _OVERHANG * extent or extent % self.unit != 0


def _block(modes: Sequence[Mode], x: _Want, d: _Want, deep: int = 1) -> tuple[TiledAxis, ...]:
    """An axis along D's run, one along the source's, and a third where both together are short.

    `deep` is the number of elements that each lane of the block stands for.
    """
    by_d, by_x = by_stride(modes, D), by_stride(modes, A)
    along_d = _reach(by_d, d, by_x[:1] if by_d[:1] != by_x[:1] else ())
    along_x = _reach([mode for mode in by_x if mode.strides[A] or not x.even], x, (), but=along_d)
    want_d = d.length if along_x else max(d.length, _LONG * d.length // 256)
    cuts = [TiledAxis(group, _tile(group, want)) for group, want in ((along_x, x.length), (along_d, want_d)) if group]
    room = _FULL // deep // math.prod([cut.tile for cut in cuts])
    others = tuple([mode for mode in by_d if mode not in along_d and mode not in along_x])
    if others and room > 1:
        cuts.insert(0, TiledAxis(others, _tile(others, room)))
    return tuple(cuts)


def _reach(order: Sequence[Mode], want: _Want, stop: Sequence[Mode], but: Sequence[Mode] = ()) -> tuple[Mode, ...]:
    """The first modes of an order, as many as are wanted; those in `but` count and are left to another axis."""
    taken: list[Mode] = []
    for mode in order:
        extent = math.prod(map(_EXTENT, taken))
        if mode in stop or want.met(extent) or (mode in but and extent >= want.length):
            break
        taken.append(mode)
    return tuple([mode for mode in taken if mode not in but])


def _tile(group: Sequence[Mode], want: int) -> int:
    """The power of two that covers the group, or what is wanted of it."""
    extent = math.prod(map(_EXTENT, group))
    return min(want, 1 << max(extent - 1, 0).bit_length())


def joined(tiled_dim: TiledDim, *tensors: int) -> TiledDim:
    """The same side for these tensors alone: modes of an axis that lie together in all of them are one, so that fewer
    digits of an index are computed. Where each lane has an address of its own, that is most of what a kernel does."""
    return tiled_dim._replace(axes=tuple([_joined(axis, tensors) for axis in tiled_dim.axes]))


def _joined(axis: Axis, tensors: tuple[int, ...]) -> Axis:
    if len(axis.extents) < 2:
        return axis
    extents, strides = _joined_modes(axis.extents, axis.strides, tensors)
    return axis._replace(extents=extents, strides=strides)


@lru_cache(maxsize=8192)
def _joined_modes(
    extents: tuple[int, ...], strides: tuple[tuple[int, ...], ...], tensors: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Extents and strides of the modes of an axis, those one that lie together in all of these tensors."""
    first: list[int] = []  # modes that do not lie behind the one before them
    joined: list[int] = []
    for at, extent in enumerate(extents):
        if at and all(strides[each][at] == strides[each][at - 1] * extents[at - 1] for each in tensors):
            joined[-1] *= extent
        else:
            first.append(at)
            joined.append(extent)
    return tuple(joined), tuple(tuple(lies[at] for at in first) for lies in strides)

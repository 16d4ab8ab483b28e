"""What the kernel takes of a schedule, as compile-time constants: the tile as X has it and as D has it.

Triton gives an access wide enough vectors and neighbouring lanes along the dimension that it takes for the fastest. The
tile is therefore loaded with its dimensions in X's order and stored with them in D's, and permuted in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, A, Axis, C, D, TiledAxis, TiledDim, rest, tiled_dim
from weft.gpu.common.triton_versions import ODD_RUNS_STATED
from weft.gpu.permute.access import access_of, line_share
from weft.gpu.permute.schedule import PermuteSchedule
from weft.spec.permutation import Permutation


class PermuteParams(NamedTuple):
    load: TiledDim  # in X's order, its fastest axis first
    store: TiledDim  # the same axes in D's order
    tile: tuple[int, ...]  # as it is stored
    order: tuple[int, ...]  # of each dimension of the stored tile, which one of the loaded tile it is
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do

    def dim(self, tensor: int) -> TiledDim:
        """The axes in the order in which a tensor is accessed."""
        return self.load if tensor == A else self.store

    @property
    def one_layout(self) -> bool:
        """Whether Triton deals both tiles out to threads alike, as it does if shape and fastest dimensions agree."""
        loaded = tuple([axis.tile for axis in self.load.axes if axis.place >= 0])
        return loaded == self.tile and self.order != tuple(range(len(self.order)))


@lru_cache(maxsize=4096)
def permute_params(permutation: Permutation, schedule: PermuteSchedule) -> PermuteParams:
    """Of a permutation of words, see `in_words`."""
    params = _params(permutation, schedule)
    # Tiles follow D, so that a line which two of them share is written at about the same time, unless it is X whose
    # lines are shared the more.
    follow_d = line_share(permutation.d, D, params.store) <= line_share(permutation.x, A, params.load)
    reverse = _loads_need_own_layout(permutation, params)
    return _params(permutation, schedule, reverse, follow_d) if reverse or follow_d else params


def tile_orders(
    permutation: Permutation,
    schedule: PermuteSchedule,
    tensors: int = TENSORS,
    reverse: bool = False,
    follow_d: bool = False,
) -> tuple[TiledDim, TiledDim, tuple[int, ...]]:
    """The axes of a tile as they are loaded, as they are stored, and the order between the two, see `PermuteParams`.

    `reverse`: the stored tile has its fastest dimension last. `follow_d`: tiles are numbered as D lies.
    """
    axes = [*rest(permutation.modes, schedule.axes), *schedule.axes]
    if all([axis.tile == 1 for axis in axes]):  # noqa: C419
        axes.append(TiledAxis((), 1, placed=True))  # a kernel stores tiles, not scalars
    loaded, stored = _dimensions(axes, reverse)
    load, store = tiled_dim(loaded, tensors=tensors), tiled_dim(stored, tensors=tensors)
    if follow_d:
        pitches = _pitches(_fastest_first(axes, D))
        load, store = _numbered(load, loaded, pitches), _numbered(store, stored, pitches)
    places = {id(tiled): axis.place for tiled, axis in zip(loaded, load.axes, strict=True)}
    order = [places[id(tiled)] for tiled, axis in zip(stored, store.axes, strict=True) if axis.place >= 0]
    return load, store, tuple(order)


def _params(
    permutation: Permutation, schedule: PermuteSchedule, reverse: bool = False, follow_d: bool = False
) -> PermuteParams:
    load, store, order = tile_orders(permutation, schedule, TENSORS, reverse, follow_d)
    return PermuteParams(
        load=merge_modes(load, A),
        store=merge_modes(store, D) if permutation.c is None else merge_modes(store, C, D),
        tile=tuple([axis.tile for axis in store.axes if axis.place >= 0]),
        order=order,
        wide=wide(permutation.modes),
        wide_index=wide_index(schedule.axes),
    )


def _loads_need_own_layout(permutation: Permutation, params: PermuteParams) -> bool:
    """Whether loads would be dealt out badly: with one layout for both tiles a thread loads as many neighbours as it
    stores, even where each of them is an access of its own. Words of two bytes gain by that: their loads fill no line
    anyway, and threads compute fewer addresses."""
    if not params.one_layout or permutation.x.dtype.itemsize < 4:
        return False
    return access_of(permutation.x, A, params.load).width < access_of(permutation.d, D, params.store).width


def _dimensions(axes: Sequence[TiledAxis], reverse: bool) -> tuple[list[TiledAxis], list[TiledAxis]]:
    """The axes as dimensions of the loaded and of the stored tile, the fastest first; last in the stored one where
    `reverse`.

    The compiler finds the fastest by the run that is stated of it, and takes the last where none is. Where one side
    needs that, the fastest goes to the end on both, so that they still differ just where they should.
    """
    loaded, stored = _fastest_first(axes, A), _fastest_first(axes, D)
    last_loaded, last_stored = _is_unstated(loaded[0], A), _is_unstated(stored[0], D)
    if last_loaded or last_stored:
        loaded.append(loaded.pop(0))
        if reverse and not last_stored:  # threads that store single elements hold no neighbours to be spread apart
            stored[1:] = reversed(stored[1:])
        else:
            stored.append(stored.pop(0))
    elif reverse:
        stored.reverse()
    return loaded, stored


def _is_unstated(tiled: TiledAxis, tensor: int) -> bool:
    """Whether a tensor's neighbours lie along an axis without the compiler being told so, see `ODD_RUNS_STATED`."""
    if ODD_RUNS_STATED:
        return False
    (axis,) = tiled_dim([tiled]).axes
    return axis.runs[tensor].length == 1 < axis.stretches[tensor]


def _fastest_first(axes: Sequence[TiledAxis], tensor: int) -> list[TiledAxis]:
    """The axes as one tensor lies: neighbouring lanes go along the dimension of the longest run, and among equals, as
    where only a pair of words lies together, along the first."""
    strides = [(axis.modes[0].strides[tensor] if axis.modes else 0) or math.inf for axis in axes]
    return [axes[at] for at in sorted(range(len(axes)), key=strides.__getitem__)]


def _pitches(axes: Sequence[TiledAxis]) -> dict[int, int]:
    """Tiles per step along each axis, by its identity, where the first axes are the fastest."""
    pitches, pitch = {}, 1
    for axis in axes:
        pitches[id(axis)] = pitch
        pitch *= max(axis.blocks, 1)
    return pitches


def _numbered(dim: TiledDim, tiled: Sequence[TiledAxis], pitches: dict[int, int]) -> TiledDim:
    axes = [axis._replace(pitch=pitches[id(each)]) for axis, each in zip(dim.axes, tiled, strict=True)]
    return dim._replace(axes=tuple(axes))


def merge_modes(dim: TiledDim, *tensors: int) -> TiledDim:
    """The same dim for these tensors alone: modes of an axis that lie together in all of them become one. That leaves
    fewer divisions in each address, which are most of what a kernel does where each lane has an address of its own."""
    return dim._replace(axes=tuple([_merged(axis, tensors) for axis in dim.axes]))


def _merged(axis: Axis, tensors: tuple[int, ...]) -> Axis:
    if len(axis.extents) < 2:
        return axis
    extents, strides = _merged_modes(axis.extents, axis.strides, tensors)
    return axis._replace(extents=extents, strides=strides)


@lru_cache(maxsize=8192)
def _merged_modes(
    extents: tuple[int, ...], strides: tuple[tuple[int, ...], ...], tensors: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Extents and strides of an axis, those modes one that lie together in all of these tensors."""
    first: list[int] = []  # modes that do not lie behind the one before them
    merged: list[int] = []
    for at, extent in enumerate(extents):
        if at and all(strides[each][at] == strides[each][at - 1] * extents[at - 1] for each in tensors):
            merged[-1] *= extent
        else:
            first.append(at)
            merged.append(extent)
    return tuple(merged), tuple(tuple(lies[at] for at in first) for lies in strides)

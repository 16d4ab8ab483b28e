"""Parameters of the permutation's kernel from a schedule, its accesses to memory, and its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from weft.gpu.common.constraints import LINE, REGISTERS, SECTOR, SHARED_MEMORY, WARPS, sm_count
from weft.gpu.common.cost import Access, modes_in_tile, run_of, tile_access
from weft.gpu.common.release import ODD_RUNS_STATED
from weft.gpu.common.tiling import TENSORS, A, C, D, KernelAxis, TiledAxis, TiledDim, rest, tiled_dim, wide, wide_index
from weft.gpu.permute.schedule import PermuteSchedule, in_words, programs
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Layout
from weft.spec.permutation import Permutation


def access_of(layout: Layout, tensor: int, dim: TiledDim, tiles: int = 1) -> Access:
    """The accesses of so many tiles to a tensor, each access as wide as every axis allows."""
    access = tile_access(layout, tensor, tiles, dim.axes)
    size = layout.dtype.itemsize
    width = min(access.width, max(start_divisor(tensor, dim), 1) * size)
    stretch, together = _lane_run(dim.axes, tensor) * size, run_of(modes_in_tile(dim.axes, tensor, True)) * size
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


def _lane_run(axes: Sequence[KernelAxis], tensor: int) -> int:
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
    """Parameters for a permutation of words, see `in_words`."""
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
    """The dim for these tensors alone: modes of an axis that lie together in all of them become one. That leaves
    fewer divisions in each address, which are most of what a kernel does where each lane has an address of its own."""
    return dim._replace(axes=tuple([_merged(axis, tensors) for axis in dim.axes]))


def _merged(axis: KernelAxis, tensors: tuple[int, ...]) -> KernelAxis:
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


# Per cent of an SM's memory that is to be shared memory. Tiles that fill all of it leave little of the L1 cache to what
# is being read: on an H200 they took up to a quarter longer, and none took longer with this much.
CARVEOUT = 58

_fit = fitted("permute")

# launch: seconds
# copy_rate: bytes per second
# clock: lines per second and SM that the load-store units take
# load_seconds: until 16 KiB are there, which the programs of an SM wait for together
# overlap: the norms that join the pipes with 1, 2 or 3, and more programs on an SM
# read_seconds: on one SM, for each access of a lane that reads
# digit_seconds: and for each digit of an index that a lane computes by a division
# own_registers, lane_registers: of a thread, and for each element that it holds.
# stored_again: times that a sector moves besides where a stored run starts or ends within it
# read_again: the same where a run that is read starts or ends within a line, but not within a sector.
# short: of the bytes of runs shorter than four lines, for each such run that four lines hold besides the first.
_OWN_BYTES = 1024  # of shared memory that a program takes besides its tile


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds."""
    return move_seconds(in_words(permutation), schedule, target)


def move_seconds(
    permutation: Permutation, schedule: PermuteSchedule, target: Target, reads: int = 1, writes: int = 1
) -> float:
    """Seconds for elements that a kernel moves as they are; X is read, and D written, so many times."""
    params, count = permute_params(permutation, schedule), programs(permutation, schedule)
    sms, threads, lanes = sm_count(target), 32 * schedule.warps, math.prod(params.tile)
    tensors = [*[(A, permutation.x)] * reads, (C, permutation.c), *[(D, permutation.d)] * writes]
    there = [(tensor, layout) for tensor, layout in tensors if layout is not None]
    traffic = [_traffic(permutation, tensor, layout, params, count, threads) for tensor, layout in there]
    tile_bytes = lanes * permutation.d.dtype.itemsize
    registers = (_fit("own_registers") + lanes / threads * _fit("lane_registers")) * threads
    room = SHARED_MEMORY * CARVEOUT // 100
    resident = max(1, min(room // (tile_bytes + _OWN_BYTES), WARPS // schedule.warps, int(REGISTERS // registers)))
    waves = math.ceil(max(count, 1) / (sms * resident))
    pipes = (
        sum([each.memory_bytes for each in traffic]) / _fit("copy_rate"),
        sum([each.access.cycles for each in traffic]) / (sms * _fit("clock")),
        sum([each.issue_seconds for each in traffic]) / sms,
        waves * _fit("load_seconds") * resident * tile_bytes / 16384,
    )
    norm = _fit.series("overlap")[0 if resident < 2 else 1 if resident < 4 else 2]
    slowest = max(pipes)
    return _fit("launch") + slowest * sum([(pipe / slowest) ** norm for pipe in pipes]) ** (1 / norm)


class _Traffic(NamedTuple):
    """The traffic of one tensor of a permutation."""

    access: Access
    memory_bytes: float  # sectors taken in part included
    issue_seconds: float  # of all lanes, were there one SM


def _traffic(
    permutation: Permutation, tensor: int, layout: Layout, params: PermuteParams, tiles: int, threads: int
) -> _Traffic:
    size, dim = layout.dtype.itemsize, params.dim(tensor)
    access = access_of(layout, tensor, dim, tiles)
    distinct = math.prod([mode.extent for mode in permutation.modes if mode.strides[tensor]]) * size
    runs = distinct / access.together
    ragged = start_divisor(tensor, dim) * size < SECTOR or access.together % SECTOR != 0
    if tensor == D:  # a sector that is written in part is read and merged
        again = _fit("stored_again") * SECTOR * runs * _sectors_of_run(permutation, size) if ragged else 0.0
    else:  # a line that is read in part is mostly in a cache the second time; words read one by one cost more by that
        again = _fit("read_again") * SECTOR * runs if not ragged and tile_divisor(tensor, dim) * size % LINE else 0.0
    again += _fit("short") * distinct * max(0.0, 4 * LINE / access.together - 1)
    issued = _fit("digit_seconds") * tiles * threads * digits(permutation, tensor, params, threads)
    width = min(access.width, max(1, math.prod(params.tile) // threads) * size)  # no more than a lane has to read
    reading = _fit("read_seconds") * access.bytes / width if tensor != D else 0.0
    return _Traffic(access, distinct + again, issued + reading)


def _sectors_of_run(permutation: Permutation, size: int) -> float:
    """Sectors of a D whose elements lie apart that one of them takes: several elements share a sector."""
    step = min([mode.strides[D] for mode in permutation.modes if mode.extent > 1 and mode.strides[D]], default=1)
    return min(1.0, step * size / SECTOR) if step > 1 else 1.0


def digits(permutation: Permutation, tensor: int, params: PermuteParams, threads: int) -> int:
    """Digits of indices, besides the last ones, that a thread computes for one tensor: a division each."""
    axes = [axis for axis in params.dim(tensor).axes if axis.tile > 1]
    if max([len(axis.extents) for axis in axes], default=0) < 2:
        return 0
    width = _access_elements(permutation, tensor, params)
    neighbours = width  # elements of a run that a thread holds
    if tensor == A and params.one_layout:
        neighbours = max(width, _access_elements(permutation, D, params))
    run = max(axes, key=lambda axis: axis.stretches[tensor])
    along = min(threads, max(1, run.tile // neighbours))
    left, found = threads // along, 0
    for axis in axes:
        if axis is run:
            indices = max(1, axis.tile // (along * width))
        else:
            taken = min(left, axis.tile)
            left //= taken
            indices = axis.tile // taken
        found += indices * (len(axis.extents) - 1)
    return found


def _access_elements(permutation: Permutation, tensor: int, params: PermuteParams) -> int:
    """Elements that one access takes."""
    layout = permutation.x if tensor == A else permutation.d
    return max(access_of(layout, tensor, params.dim(tensor)).width // layout.dtype.itemsize, 1)

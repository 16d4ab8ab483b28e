"""What a permutation should cost: the slowest of memory, load-store lines, instructions and latency.

The constants were fitted to 1100 timed schedules of the suite in four element sizes on an H200: predictions are off by
8 % on average, and the first choice is 1 % slower than the best of those timed. The pipes are joined by how well they
overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.gpu.common.cost import Access, ModeInTile, run_of, tile_access
from weft.gpu.common.hardware import LINE, REGISTERS, SECTOR, SHARED_MEMORY, WARPS, sm_count
from weft.gpu.common.tiling import A, Axis, C, D
from weft.gpu.permute.params import PermuteParams
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Layout
from weft.spec.permutation import Permutation

# Per cent of what can be shared memory. Blocks that fill all of it leave little of the first cache to what is being
# read: on an H200 they took up to a quarter longer, and none took longer with this much.
CARVEOUT = 58

_FITTED = fitted("permute")

LAUNCH = _FITTED("launch")  # seconds
COPY_RATE = _FITTED("copy_rate")  # bytes per second
CLOCK = _FITTED("clock")  # lines per second and processor that the load-store units take
LOAD_SECONDS = _FITTED("load_seconds")  # until 16 KiB are there, which the blocks of a processor wait for together
OVERLAP = _FITTED.series("overlap")  # the norms that join the pipes with 1, 2 and more blocks on a processor
READ_SECONDS = _FITTED("read_seconds")  # on one processor, for each access of a lane that reads
DIGIT_SECONDS = _FITTED("digit_seconds")  # and for each digit of an index that a lane computes by a division
# Of a thread, and for each element that it holds.
OWN_REGISTERS, LANE_REGISTERS = _FITTED("own_registers"), _FITTED("lane_registers")
STORED_AGAIN = _FITTED("stored_again")  # times that a sector moves besides where a stored run starts or ends within it
# The same where a run that is read starts or ends within a line, but not within a sector.
READ_AGAIN = _FITTED("read_again")
# Of the bytes of runs shorter than four lines, for each such run that four lines hold besides the first.
SHORT = _FITTED("short")
_BLOCK_BYTES = 1024  # of shared memory that a block takes besides its own


def seconds(
    elements: Permutation, params: PermuteParams, count: int, warps: int, target: Target, read: int = 1,
    written: int = 1,
) -> float:
    """The time of so many blocks whose source is read, and whose result is written, so many times."""
    processors = sm_count(target)
    lanes = math.prod(params.tile)
    threads = 32 * warps
    tensors = [*[(A, elements.x)] * read, (C, elements.c), *[(D, elements.d)] * written]
    there = [(tensor, layout) for tensor, layout in tensors if layout is not None]
    moved = [_moved(elements, tensor, layout, params, count, threads) for tensor, layout in there]
    tile_bytes = lanes * elements.d.dtype.itemsize
    registers = (OWN_REGISTERS + lanes / threads * LANE_REGISTERS) * threads
    room = SHARED_MEMORY * CARVEOUT // 100
    resident = max(1, min(room // (tile_bytes + _BLOCK_BYTES), WARPS // warps, int(REGISTERS // registers)))
    waves = math.ceil(max(count, 1) / (processors * resident))
    pipes = (
        sum([each.memory_bytes for each in moved]) / COPY_RATE,
        sum([each.access.cycles for each in moved]) / (processors * CLOCK),
        sum([each.issue_seconds for each in moved]) / processors,
        waves * LOAD_SECONDS * resident * tile_bytes / 16384,
    )
    norm = OVERLAP[0 if resident < 2 else 1 if resident < 4 else 2]
    slowest = max(pipes)
    return LAUNCH + slowest * sum([(pipe / slowest) ** norm for pipe in pipes]) ** (1 / norm)


class _Moved(NamedTuple):
    """What one tensor of a permutation costs."""

    access: Access
    memory_bytes: float  # pieces of sectors included
    issue_seconds: float  # of all lanes, were there one processor


def _moved(
    elements: Permutation, tensor: int, layout: Layout, params: PermuteParams, count: int, threads: int
) -> _Moved:
    size = layout.dtype.itemsize
    access = access_of(layout, tensor, params, count)
    distinct = math.prod([mode.extent for mode in elements.modes if mode.strides[tensor]]) * size
    runs = distinct / access.together
    ragged = _divisor(tensor, params) * size < SECTOR or access.together % SECTOR != 0
    if tensor == D:  # a sector that is written in part is read and merged
        again = STORED_AGAIN * SECTOR * runs if ragged else 0.0
    else:  # a line that is read in part is mostly in a cache the second time; words read one by one cost more by that
        again = READ_AGAIN * SECTOR * runs if not ragged and _start(tensor, params) * size % LINE else 0.0
    again += SHORT * distinct * max(0.0, 4 * LINE / access.together - 1)
    issued = DIGIT_SECONDS * count * threads * digits(elements, tensor, params, threads)
    width = min(access.width, max(1, math.prod(params.tile) // threads) * size)  # no more than a lane has to read
    return _Moved(access, distinct + again, issued + (READ_SECONDS * access.bytes / width if tensor != D else 0.0))


def line_share(layout: Layout, tensor: int, params: PermuteParams) -> int:
    """Bytes of which all runs of a tensor start at a multiple, a whole line at most."""
    return math.gcd(LINE, _start(tensor, params) * layout.dtype.itemsize)


def _start(tensor: int, params: PermuteParams) -> int:
    """Elements of which the offsets of all runs are a multiple."""
    start = 0
    for axis in _axes(tensor, params):
        along = bool(axis.strides[tensor]) and axis.strides[tensor][0] == 1
        start = math.gcd(start, *axis.strides[tensor][along:], axis.tile if along and axis.tile < axis.extent else 0)
    return start


def digits(elements: Permutation, tensor: int, params: PermuteParams, threads: int) -> int:
    """Of indices, besides their last ones, that a thread computes for one tensor: a division each."""
    axes = [axis for axis in _axes(tensor, params) if axis.tile > 1]
    if max([len(axis.extents) for axis in axes], default=0) < 2:
        return 0
    layout = elements.x if tensor == A else elements.d
    width = max(access_of(layout, tensor, params, 1).width // layout.dtype.itemsize, 1)
    neighbours = width  # elements of a run that a thread holds
    if tensor == A and is_shared(params):
        neighbours = max(width, access_of(elements.d, D, params, 1).width // elements.d.dtype.itemsize)
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


def is_shared(params: PermuteParams) -> bool:
    """Whether reads are dealt out to threads as writes are, see `_spread_apart`."""
    loaded = tuple([axis.tile for axis in params.r.axes if axis.place >= 0])
    return loaded == params.tile and params.turn != tuple(range(len(params.turn)))


def access_of(layout: Layout, tensor: int, params: PermuteParams, count: int) -> Access:
    """Of so many blocks: as wide as every axis allows, along what lanes go along."""
    axes = _axes(tensor, params)
    access = tile_access(layout, tensor, count, axes)
    size = layout.dtype.itemsize
    width = min(access.width, max(_divisor(tensor, params), 1) * size)
    return access._replace(width=width, stretch=_in_a_row(axes, tensor) * size, together=_together(axes, tensor) * size)


def _together(axes: Sequence[Axis], tensor: int) -> int:
    """Elements of a block that lie together on average: a run also ends where a block does, if its tile and the modes
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


def _divisor(tensor: int, params: PermuteParams) -> int:
    """Elements of which every offset is a multiple, where a run begins."""
    return min([axis.runs[tensor].divisor for axis in _axes(tensor, params)], default=1)


def _axes(tensor: int, params: PermuteParams) -> tuple[Axis, ...]:
    return (params.r if tensor == A else params.w).axes


def _in_a_row(axes: Sequence[Axis], tensor: int) -> int:
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

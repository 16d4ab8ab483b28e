"""Predicted time of a schedule: the slowest of memory, load-store lines, instructions and latency.

The constants were fitted to 1100 timed schedules of the suite in four element sizes on an H200: predictions are off by
8 % on average, and the first choice is 1 % slower than the best of those timed. The pipes are joined by how well they
overlap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.gpu.common.cost import Access
from weft.gpu.common.hardware import LINE, REGISTERS, SECTOR, SHARED_MEMORY, WARPS, sm_count
from weft.gpu.common.tiling import A, C, D
from weft.gpu.permute.access import access_of, start_divisor, tile_divisor
from weft.gpu.permute.params import PermuteParams, permute_params
from weft.gpu.permute.schedule import PermuteSchedule, programs
from weft.gpu.permute.words import in_words
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Layout
from weft.spec.permutation import Permutation

# Per cent of an SM's memory that is to be shared memory. Tiles that fill all of it leave little of the L1 cache to what
# is being read: on an H200 they took up to a quarter longer, and none took longer with this much.
CARVEOUT = 58

_FITTED = fitted("permute")

LAUNCH = _FITTED("launch")  # seconds
COPY_RATE = _FITTED("copy_rate")  # bytes per second
CLOCK = _FITTED("clock")  # lines per second and SM that the load-store units take
LOAD_SECONDS = _FITTED("load_seconds")  # until 16 KiB are there, which the programs of an SM wait for together
OVERLAP = _FITTED.series("overlap")  # the norms that join the pipes with 1, 2 or 3, and more programs on an SM
READ_SECONDS = _FITTED("read_seconds")  # on one SM, for each access of a lane that reads
DIGIT_SECONDS = _FITTED("digit_seconds")  # and for each digit of an index that a lane computes by a division
# Of a thread, and for each element that it holds.
OWN_REGISTERS, LANE_REGISTERS = _FITTED("own_registers"), _FITTED("lane_registers")
STORED_AGAIN = _FITTED("stored_again")  # times that a sector moves besides where a stored run starts or ends within it
# The same where a run that is read starts or ends within a line, but not within a sector.
READ_AGAIN = _FITTED("read_again")
# Of the bytes of runs shorter than four lines, for each such run that four lines hold besides the first.
SHORT = _FITTED("short")
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
    registers = (OWN_REGISTERS + lanes / threads * LANE_REGISTERS) * threads
    room = SHARED_MEMORY * CARVEOUT // 100
    resident = max(1, min(room // (tile_bytes + _OWN_BYTES), WARPS // schedule.warps, int(REGISTERS // registers)))
    waves = math.ceil(max(count, 1) / (sms * resident))
    pipes = (
        sum([each.memory_bytes for each in traffic]) / COPY_RATE,
        sum([each.access.cycles for each in traffic]) / (sms * CLOCK),
        sum([each.issue_seconds for each in traffic]) / sms,
        waves * LOAD_SECONDS * resident * tile_bytes / 16384,
    )
    norm = OVERLAP[0 if resident < 2 else 1 if resident < 4 else 2]
    slowest = max(pipes)
    return LAUNCH + slowest * sum([(pipe / slowest) ** norm for pipe in pipes]) ** (1 / norm)


class _Traffic(NamedTuple):
    """What one tensor of a permutation costs."""

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
        again = STORED_AGAIN * SECTOR * runs if ragged else 0.0
    else:  # a line that is read in part is mostly in a cache the second time; words read one by one cost more by that
        again = READ_AGAIN * SECTOR * runs if not ragged and tile_divisor(tensor, dim) * size % LINE else 0.0
    again += SHORT * distinct * max(0.0, 4 * LINE / access.together - 1)
    issued = DIGIT_SECONDS * tiles * threads * digits(permutation, tensor, params, threads)
    width = min(access.width, max(1, math.prod(params.tile) // threads) * size)  # no more than a lane has to read
    return _Traffic(access, distinct + again, issued + (READ_SECONDS * access.bytes / width if tensor != D else 0.0))


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

"""Schedules of the shape-generic permutation, and their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.gpu.common.constraints import LINE, SECTOR, VECTOR, power_of_two, sm_count
from weft.gpu.common.generic_axes import MOST_INDICES, Group, capacity
from weft.gpu.common.tiling import A, C, D, by_stride
from weft.gpu.permute.model import CLOCK, COPY_RATE, LAUNCH, LOAD_SECONDS
from weft.gpu.permute.schedule import in_words
from weft.planner.schedule import Target
from weft.spec import Layout, Mode
from weft.spec.permutation import Permutation

NAME = "permute_at_hand"

LARGE = 2**21  # bytes moved from which runs are stated to the compiler: each statement is one more kernel
USUAL = 4  # modes that an axis has room for at least
_RUN = 2  # that the run has room for: it is of one mode, whose last vector is told from the others
_MANY = 8192  # elements of a tile that is moved by eight warps

# Indices along D, along X and of the common run in a tile, by the largest run that they are for.
_TILES = ((1, (64, 64, 1)), (4, (16, 32, 4)), (8, (16, 16, 8)), (16, (16, 16, 16)), (64, (4, 8, 64)), (0, (1, 4, 512)))
_SMALL = (32, 32, 1)


@dataclass(frozen=True, slots=True)
class GenericPermuteSchedule:
    """The axes of a tile."""

    outer: Group  # modes of which each program has one index
    along_d: Group
    along_x: Group
    run: Group  # along which both are contiguous; of no mode where they are along different ones
    warps: int
    vectors: tuple[int, int, int, int] = (1, 1, 1, 1)  # elements of X, none, C and D that are aligned and lie together
    workspace_bytes: int = 0
    family: str = NAME

    @property
    def groups(self) -> tuple[Group, Group, Group, Group]:
        return self.outer, self.along_d, self.along_x, self.run

    @property
    def programs(self) -> int:
        return math.prod([group.blocks for group in self.groups])

    def __str__(self) -> str:
        axes = [("d", self.along_d), ("x", self.along_x), ("both", self.run)]
        text = " ".join([f"{name}[{'·'.join([m.name for m in axis.modes]) or '1'}:{axis.tile}]" for name, axis in axes])
        runs = f" runs={self.vectors[A]}/{self.vectors[D]}" if max(self.vectors) > 1 else ""
        return f"{self.family} {text}{runs} warps={self.warps}"


def schedule(words: Permutation, target: Target) -> GenericPermuteSchedule:
    """The rule, for elements as the kernel moves them."""
    size = words.d.dtype.itemsize
    in_x, in_d = by_stride(words.modes, A), by_stride(words.modes, D)
    shared: tuple[Mode, ...] = ()
    if in_d and in_x[0] is in_d[0] and in_x[0].strides[A] == 1:
        shared = in_d[:1]
    run = shared[0].extent if shared else 1
    tile = next(tile for largest, tile in _TILES if run <= largest or not largest)
    large = words.size * (size + words.x.dtype.itemsize) >= LARGE
    if tile[2] == 1 and (not large or size > 4):
        tile = _SMALL
    along_d, along_x = _shared_out(in_d, in_x, shared, tile[:2])
    if max(len(along_d), len(along_x)) > USUAL:
        # Indices of many modes take so many instructions that ptxas spills most of what it holds (94 ms, where 2 are
        # predicted, of 340 million elements with modes of two).
        tile = (max(tile[0] // 2, 1), max(tile[1] // 2, 1), tile[2])
        along_d, along_x = _shared_out(in_d, in_x, shared, tile[:2])
    sides = [_fitting(side, axis) if large else side for side, axis in zip(tile, (along_d, along_x), strict=False)]
    tile = (sides[0], sides[1], tile[2])
    taken = (*shared, *along_d, *along_x)
    found = GenericPermuteSchedule(
        outer=Group(tuple([mode for mode in in_d if mode not in taken]), 1),
        along_d=Group(along_d, tile[0]),
        along_x=Group(along_x, tile[1]),
        run=Group(shared, tile[2]),
        warps=8 if math.prod(tile) >= _MANY else 4,
    )
    if not large:
        return found
    layouts: tuple[Layout | None, ...] = (words.x, None, words.c, words.d)
    given = enumerate(layouts)
    vectors = [_vector(words, tensor, layout, found) if layout is not None else 1 for tensor, layout in given]
    return GenericPermuteSchedule(*found.groups, found.warps, (vectors[0], 1, vectors[2], vectors[3]))


def rooms(schedule: GenericPermuteSchedule) -> tuple[int, int, int, int]:
    """Modes that there is room for along each axis.

    Every one costs ten instructions for each index of a tile that a thread computes, and of one axis that is half of
    what it moves: modes of which a program has one index, the only ones that may be many, are counted apart.
    """
    outer, along_d, along_x, _ = [len(group.modes) for group in schedule.groups]
    along = capacity(max(along_d, along_x), USUAL)
    return capacity(outer, USUAL), along, along, _RUN


def too_long(permutation: Permutation) -> bool:
    """Whether indices, or strides, do not fit into the 32 bits that shape-generic kernels take them in."""
    strides = [stride for mode in permutation.modes for stride in mode.strides]
    return 2 * permutation.size > MOST_INDICES or 2 * max(strides, default=0) >= 2**31


def _shared_out(
    in_d: Sequence[Mode], in_x: Sequence[Mode], shared: tuple[Mode, ...], tile: Sequence[int]
) -> tuple[tuple[Mode, ...], tuple[Mode, ...]]:
    """The modes along D and along X: in turns, each axis takes what lies next on its side until a tile is full."""
    taken = list(shared)
    axes: tuple[list[Mode], list[Mode]] = ([], [])
    orders = (in_d, in_x)
    going = [tile[0] > 1, tile[1] > 1]
    while any(going):
        for side in (1, 0) if not axes[1] else (0, 1):
            following = next((mode for mode in orders[side] if mode not in taken), None)
            if following is None or math.prod([mode.extent for mode in axes[side]]) >= tile[side]:
                going[side] = False
            if going[side] and following is not None:
                axes[side].append(following)
                taken.append(following)
    return tuple(axes[0]), tuple(axes[1])


def _fitting(side: int, modes: Sequence[Mode]) -> int:
    """Half of a tile's side where a quarter of its lanes, and fewer of the half's, would have nothing to move."""
    extent = math.prod([mode.extent for mode in modes])
    whole, half = (-(-extent // each) * each for each in (side, max(side // 2, 1)))
    return side // 2 if side > 32 and whole > 1.25 * extent and half < whole else side


def _vector(words: Permutation, tensor: int, layout: Layout, found: GenericPermuteSchedule) -> int:
    """Elements of an access of 16 bytes where all runs of a tensor consist of such; else 1."""
    length = VECTOR // layout.dtype.itemsize
    if length < 2 or layout.alignment < VECTOR:
        return 1
    if any(mode.strides[tensor] % length for mode in words.modes if mode.strides[tensor] != 1):
        return 1
    for group in found.groups[1:]:
        if group.modes and group.modes[0].strides[tensor] == 1 and group.tile >= length:
            return length if group.modes[0].extent % length == 0 else 1
    return 1


def run_bytes(words: Permutation, tensor: int, found: GenericPermuteSchedule, size: int) -> int:
    """Bytes of a tile that lie together in a tensor."""
    run = 1
    sides = (found.run, found.along_x if tensor == A else found.along_d)
    for group in sides:
        left = group.tile
        for mode in group.modes:
            if mode.strides[tensor] != run:
                return max(run, 1) * size
            run *= min(mode.extent, left)
            left = -(-left // max(mode.extent, 1))
            if mode.extent > power_of_two(left) and left > 1:
                return max(run, 1) * size
    return max(run, 1) * size


RESIDENT = 4  # programs on an SM
# Instructions of a thread, of the machine code for sm_90: for each vector that it moves; and for each index that it
# takes apart, times the modes that there is room for. It has all indices along one side of a tile, few along the other.
PER_VECTOR, PER_DIGIT, FEW = 20.0, 12.0, 4
SCHEDULERS = 4  # of an SM, each of which issues one instruction of a warp in a cycle


def predict(permutation: Permutation, schedule: GenericPermuteSchedule, target: Target) -> float:
    """Seconds."""
    words, sms = in_words(permutation), sm_count(target)
    moved = cycles = 0.0
    for tensor, layout in ((A, words.x), (C, words.c), (D, words.d)):
        if layout is None:
            continue
        size = layout.dtype.itemsize
        run = run_bytes(words, A if tensor == A else D, schedule, size)
        distinct = size * math.prod([mode.extent for mode in words.modes if mode.strides[tensor]])
        moved += distinct * max(1.0, SECTOR / run)
        width = size * schedule.vectors[tensor]
        cycles += size * words.size * max(1 / (32 * width), 1 / min(LINE, run))
    tile = math.prod([group.tile for group in schedule.groups])
    vectors = tile / (32 * schedule.warps * max(schedule.vectors))  # of a thread
    issued = schedule.warps * (PER_VECTOR * vectors + PER_DIGIT * max(rooms(schedule)[1:]) * (vectors + FEW))
    issue = max(schedule.programs, 1) * issued / (SCHEDULERS * sms * CLOCK)
    waves = math.ceil(max(schedule.programs, 1) / (sms * RESIDENT))
    loads = waves * LOAD_SECONDS * RESIDENT * tile * words.d.dtype.itemsize / 16384
    pipes = (moved / COPY_RATE, cycles / (sms * CLOCK), loads, issue)
    return LAUNCH + math.hypot(*pipes)

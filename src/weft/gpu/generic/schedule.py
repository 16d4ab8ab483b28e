"""Schedules of shape-generic contractions: a few candidates by rule, so that planning is no search.

A candidate names a kernel and the modes of each axis of its tile. What the kernel is compiled for follows from that and
is the same for most contractions: see `model.laid`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from weft.gpu.common.constraints import LEAST_SPLIT_STEPS, VECTOR, power_of_two, sm_count
from weft.gpu.common.generic_axes import MOST_INDICES, Group, capacity
from weft.gpu.common.launch import MOST_PROGRAMS
from weft.gpu.common.swap_ab import swap_ab
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.planner.schedule import Target
from weft.spec import Contraction, Mode, Role

NAME = "at_hand"

LARGE = 2**23  # bytes of all operands from which runs are stated to the compiler: each statement is one more kernel
STRIP = 16  # indices of B's run in a tile whose columns follow D's run besides
MOST_SPLITS, MOST_OF_ONE = 64, 1024  # of sums, and of a single sum, whose parts are added in no time
FEW = 16  # sums, whose parts are added side by side
# Modes that there is room for: along m and n, along k, and of which a program has one index. More room is more
# instructions, which a small contraction waits for; kernels for anything in between would be as many more.
ROOMS = ((2, 2, 1), (3, 3, 1), (6, 4, 1), (4, 8, 4), (8, 16, 16), (16, 32, 32))
WAVES = 2  # programs for each SM that a sum is split to have


class Tile(NamedTuple):
    """Indices of a tile along m, n and k (of two axes of D and k off the matrix units), and the warps of a program."""

    m: int
    n: int
    k: int
    warps: int
    depth_first: bool = False  # off the matrix units: neighbouring lanes are neighbours along D, not along k


# By bytes of a product. The first is for what is small.
_DOTS = {
    1: (Tile(32, 32, 64, 4), Tile(64, 64, 64, 4), Tile(128, 128, 64, 8)),
    2: (Tile(32, 32, 32, 4), Tile(64, 64, 32, 4), Tile(128, 128, 32, 8)),
    4: (Tile(16, 16, 32, 8), Tile(32, 32, 16, 4), Tile(64, 64, 16, 4), Tile(128, 64, 16, 8)),
    8: (Tile(16, 16, 16, 2), Tile(32, 32, 16, 4), Tile(64, 64, 16, 8)),
}
# Off the matrix units: each operand along one axis of D and k; both along all axes.
_APART = (
    Tile(4, 4, 512, 8), Tile(16, 16, 16, 4), Tile(32, 32, 8, 4), Tile(1, 16, 128, 4), Tile(1, 128, 16, 4, True),
)  # fmt: skip
_TOGETHER = (
    Tile(1, 512, 1, 4, True), Tile(32, 32, 1, 4, True), Tile(1, 32, 64, 8), Tile(4, 32, 16, 8, True),
    Tile(1, 1, 512, 4), Tile(1, 1, 2048, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenericSchedule:
    """The axes of a tile, and how many programs share a sum."""

    kernel: Literal["dot", "lanes"]
    outer: Group  # modes of which each program has one index
    m: tuple[Group, ...]  # off the matrix units the two axes of D are m and n, whatever their modes' roles
    n: tuple[Group, ...]
    k: Group
    warps: int
    together: bool = False  # off the matrix units: both operands move along both axes of D
    depth_first: bool = False  # as in `Tile`
    swap_ab: bool = False
    transposed: tuple[bool, bool] = (False, False)  # the tile of A is loaded as (k, m), that of B as (n, k)
    vectors: tuple[int, ...] = (1, 1, 1, 1)  # elements of A, B, C and D that are surely aligned and lie together
    splits: int = 1
    workspace_bytes: int = 0
    family: str = NAME

    @property
    def tiles(self) -> int:
        return math.prod([group.blocks for group in (self.outer, *self.m, *self.n)])

    @property
    def steps(self) -> int:
        """Along k, of all parts of a sum."""
        return self.k.blocks

    @property
    def split_steps(self) -> int:
        """Along k, of one part."""
        return -(-self.k.blocks // self.splits)

    def __str__(self) -> str:
        axes = [("m", self.m), ("n", self.n), ("k", (self.k,))]
        text = " ".join([f"{name}[{' '.join(map(_text, groups))}]" for name, groups in axes])
        swapped = " swapped" if self.swap_ab else ""
        runs = f" runs={'/'.join(map(str, self.vectors))}" if max(self.vectors) > 1 else ""
        splits = f" splits={self.splits}" if self.splits > 1 else ""
        return f"{self.family} {self.kernel}{swapped} {text}{runs} warps={self.warps}{splits}"


def candidates(contraction: Contraction, target: Target, by_dot: bool) -> Iterator[GenericSchedule]:
    """The schedules that are worth pricing, at most a dozen. `by_dot`: matrix instructions can make the products."""
    found = (*(_dots(contraction) if by_dot else ()), *_lanes(contraction, by_dot))
    for schedule in dict.fromkeys(found):
        if schedule.tiles * schedule.splits <= MOST_PROGRAMS:
            yield schedule
            if (split := _split(contraction, schedule, target)) is not None:
                yield split


def rooms(schedule: GenericSchedule) -> tuple[int, int, int]:
    """Modes that a kernel has room for: along m and n, along k, and of which a program has one index."""
    along = max([len(group.modes) for group in (*schedule.m, *schedule.n)])
    count = along, len(schedule.k.modes), len(schedule.outer.modes)
    for room in ROOMS[schedule.kernel == "lanes" :]:
        if count[0] <= room[0] and count[1] <= room[1] and count[2] <= room[2]:
            return room
    return capacity(count[0], 32), capacity(count[1], 64), capacity(count[2], 64)


def too_long(contraction: Contraction) -> bool:
    """Whether indices, or strides, do not fit into the 32 bits that shape-generic kernels take them in."""
    for roles in ((Role.BATCH, Role.M, Role.N), (Role.K,)):
        if contraction.extent_of(*roles) > MOST_INDICES:
            return True
    return any(stride >= 2**31 for mode in contraction.modes for stride in mode.strides)


def _dots(contraction: Contraction) -> Iterator[GenericSchedule]:
    run = _nearest(contraction.modes, D)
    swapped = run is not None and run.role is Role.M
    seen = swap_ab(contraction) if swapped else contraction
    batch, m, n = (seen.of_role(role) for role in (Role.BATCH, Role.M, Role.N))
    arithmetic = seen.arithmetic
    size = 8 if arithmetic.accumulate is torch.float64 else arithmetic.product.itemsize
    near_a, near_b = _nearest(seen.modes, A), _nearest(seen.modes, B)
    rows = by_stride(m, A if near_a is not None and near_a.role is Role.M else D)
    by_d = by_stride(n, D)
    large = sum(_bytes(seen)) >= LARGE
    outer = Group(by_stride(batch, D), 1)
    for at, tile in enumerate(_DOTS[size]):
        if at and (power_of_two(seen.m) * 2 <= tile.m or power_of_two(seen.n) * 2 <= tile.n):
            break
        along = Group(_along_k(seen), tile.k)
        transposed = _loaded_transposed(seen) if at else (False, False)
        schedule = GenericSchedule("dot", outer, (Group(rows, tile.m),), (Group(by_d, tile.n),), along, tile.warps,
                                swap_ab=swapped, transposed=transposed)  # fmt: skip
        if large and at:
            if near_b in n and by_d[0] is not near_b and tile.n > STRIP:
                others = tuple([mode for mode in by_d if mode is not near_b])
                columns = (Group(others, tile.n // STRIP), Group((near_b,), STRIP))
                strips = _stated(seen, replace(schedule, n=columns))
                schedule = strips if max(strips.vectors) > 1 else schedule
            schedule = _stated(seen, schedule)
        yield schedule


def _lanes(contraction: Contraction, by_dot: bool) -> Iterator[GenericSchedule]:
    run = _nearest(contraction.modes, D)
    swapped = (run is not None and run.role is Role.M) or contraction.n == 1
    if contraction.algebra is not None:  # whose products may not commute
        swapped = False
    seen = swap_ab(contraction) if swapped else contraction
    if not (run is not None and run.role is Role.BATCH) and seen.n > 1:
        batch, m, n = (by_stride(seen.of_role(role), D) for role in (Role.BATCH, Role.M, Role.N))
        for tile in _APART:
            if by_dot and (tile.m >= 16 or tile.k >= 8 * power_of_two(seen.k)):
                continue  # `tl.dot` is better at it
            if (tile.m == 1) is (seen.m == 1):
                yield GenericSchedule(
                    "lanes", Group(batch, 1), (Group(m, tile.m),), (Group(n, tile.n),), Group(_along_k(seen), tile.k),
                    tile.warps, swap_ab=swapped, depth_first=tile.depth_first,
                )  # fmt: skip
    yield from _together(contraction)


def _along_k(contraction: Contraction) -> tuple[Mode, ...]:
    """The modes of k in the order of A, or of B where that alone is contiguous along one."""
    k = contraction.of_role(Role.K)
    return by_stride(k, B if _nearest(k, B) is not None and _nearest(k, A) is None else A)


def _together(contraction: Contraction) -> Iterator[GenericSchedule]:
    """Tiles along D's modes whatever their role: flattened in D's order, or with an axis along an operand's run."""
    every = by_stride(contraction.of_role(Role.BATCH, Role.M, Role.N), D)
    along_k, size, depth = _along_k(contraction), math.prod([mode.extent for mode in every]), contraction.k
    near = next((run for at in (A, B) if (run := _nearest(every, at)) is not None and run is not every[0]), None)
    for tile in _TOGETHER:
        if (tile.k == 1) is not (depth == 1) or (size == 1 and depth > 1 and tile.n > 1):
            continue
        rows: tuple[Mode, ...] = ()
        if tile.m > 1:
            if near is None:
                continue
            rows = (near,)
        columns = tuple([mode for mode in every if mode not in rows])
        schedule = GenericSchedule(
            "lanes", Group((), 1), (Group(rows, tile.m),), (Group(columns, tile.n),), Group(along_k, tile.k),
            tile.warps, together=True, depth_first=tile.depth_first,
        )  # fmt: skip
        yield _stated(contraction, schedule) if sum(_bytes(contraction)) >= LARGE else schedule


def over_parts(contraction: Contraction) -> GenericSchedule:
    """How the parts of a split reduction are reduced."""
    every = by_stride(contraction.of_role(Role.M), D)
    depth = contraction.of_role(Role.K)
    columns, steps = (64, 16) if contraction.m > FEW else (4, 256)
    return GenericSchedule("lanes", Group((), 1), (Group((), 1),), (Group(every, columns),), Group(depth, steps), 4,
                        together=True, depth_first=True)  # fmt: skip


def _split(contraction: Contraction, schedule: GenericSchedule, target: Target) -> GenericSchedule | None:
    """The tiles with every sum split over programs, where the tiles alone cannot fill the device."""
    wanted = WAVES * sm_count(target) // max(schedule.tiles, 1)
    sums = contraction.extent_of(Role.BATCH, Role.M, Role.N)
    splits = min(wanted, schedule.steps // LEAST_SPLIT_STEPS, MOST_OF_ONE if sums == 1 else MOST_SPLITS)
    if splits < 2:
        return None
    splits = -(-schedule.steps // -(-schedule.steps // splits))
    size = sums * contraction.arithmetic.accumulate.itemsize
    return replace(schedule, splits=splits, workspace_bytes=splits * size)


def _stated(contraction: Contraction, schedule: GenericSchedule) -> GenericSchedule:
    """The schedule with what the compiler may be told of runs: vectors of 16 bytes, or nothing."""
    groups = (schedule.outer, *schedule.m, *schedule.n, schedule.k)
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    modes = contraction.modes
    a, b, c, d = [
        _vector(tensor, layout.dtype.itemsize, layout.alignment, modes, groups) if layout is not None else 1
        for tensor, layout in enumerate(layouts)
    ]
    # Of both operands or of none, and of C with D: every other combination would be one more kernel.
    if a == 1 or b == 1:
        return schedule
    if d == 1 or (contraction.c is not None and c == 1):
        c = d = 1
    return replace(schedule, vectors=(a, b, c, d), transposed=(False, False))


def _loaded_transposed(contraction: Contraction) -> tuple[bool, bool]:
    """Whether A is contiguous along m, and B along k."""
    return _nearest(contraction.of_role(Role.M), A) is not None, _nearest(contraction.of_role(Role.K), B) is not None


def _vector(tensor: int, size: int, alignment: int, modes: tuple[Mode, ...], groups: tuple[Group, ...]) -> int:
    """Elements of an access of 16 bytes where all runs of a tensor consist of such; else 1."""
    length = VECTOR // size
    if length < 2 or alignment < VECTOR:
        return 1
    steps = [mode.strides[tensor] % length for mode in modes if mode.strides[tensor] != 1]
    run = _nearest(modes, tensor)
    if run is None or any(steps) or run.extent % length:
        return 1
    return length if any(group.modes[:1] == (run,) and group.tile >= length for group in groups) else 1


def _bytes(contraction: Contraction) -> list[int]:
    """Bytes of the distinct elements of A, B and D."""
    found = []
    for tensor, layout in ((A, contraction.a), (B, contraction.b), (D, contraction.d)):
        size = layout.dtype.itemsize
        for mode in contraction.modes:
            size *= mode.extent if mode.strides[tensor] else 1
        found.append(size)
    return found


def _nearest(modes: tuple[Mode, ...], tensor: int) -> Mode | None:
    """The mode of the shortest stride of a tensor, if that is one of neighbours."""
    for mode in modes:
        if mode.strides[tensor] == 1:
            return mode
    return None


def _text(group: Group) -> str:
    return f"{'·'.join([mode.name for mode in group.modes]) or '1'}:{group.tile}"

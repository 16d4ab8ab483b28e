"""What kernels at hand are compiled for, and the numbers that a launch brings."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.gpu.at_hand.axes import Group, HandAxis, Structure, axis_numbers, needs_wide, placed_axes
from weft.gpu.at_hand.contraction.schedule import HandSchedule, rooms
from weft.gpu.common.constraints import widened
from weft.gpu.common.tiling import TENSORS, D, Run
from weft.planner.schedule import Target
from weft.spec import Contraction


class LanesParams(NamedTuple):
    axes: tuple[HandAxis, ...]  # outer, two of D, k
    stored: tuple[HandAxis, ...]  # those of D, as dimensions of the tile without k
    k: HandAxis
    tile: tuple[int, ...]  # as its dimensions lie
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor


class DotParams(NamedTuple):
    axes: tuple[HandAxis, ...]  # those that D moves along: outer, m and n
    outer: HandAxis
    m: tuple[HandAxis, ...]
    n: tuple[HandAxis, ...]
    k: HandAxis
    k_side: tuple[HandAxis, ...]  # the same alone
    tile: tuple[int, int]
    stored: tuple[int, ...]  # extents of the stored tile, an axis each
    present: tuple[tuple[bool, ...], ...]  # of outer, m, n and k: which tensors move along them
    transposed: tuple[bool, bool]  # the tile of A is loaded as (k, m), that of B as (n, k)
    widen: bool  # products are made in the accumulator's type
    wide: tuple[bool, ...]


class Laid(NamedTuple):
    """A kernel's parameters, the launch's numbers, and its programs."""

    params: Any
    numbers: tuple[int, ...]
    programs: int


def laid(contraction: Contraction, schedule: HandSchedule, target: Target, part_step: int = 0) -> Laid:
    """A contraction as the schedule's kernel sees it (A and B swapped where it says so); `part_step` is how far apart
    in D the parts of a split sum are."""
    groups = (schedule.outer, *schedule.m, *schedule.n, schedule.k)
    rows = len(schedule.m)
    room, depth, outer = rooms(schedule)
    structures = []
    for at, group in enumerate(groups):
        role = "outer" if at == 0 else "k" if at == len(groups) - 1 else "m" if at <= rows else "n"
        digits = outer if role == "outer" else depth if role == "k" else room
        structures.append(_structure(contraction, schedule, group, role, digits))
    places = (-1, 1, 2, 0) if schedule.depth_first else (-1, *range(len(groups) - 1))
    axes = placed_axes(structures, places)
    offsets_wide = needs_wide(groups, TENSORS + len(contraction.aux))
    numbers = [schedule.split_steps, schedule.steps if contraction.k else 0, part_step // schedule.vectors[D]]
    for group, structure in zip(groups, structures, strict=True):
        numbers += axis_numbers(group, structure)
    programs = schedule.tiles * schedule.splits
    params: Any
    if schedule.kernel == "lanes":
        stored_axes = tuple([axis._replace(place=at - 1) for at, axis in enumerate(axes[:-1])])
        shape = sorted(axes[1:], key=lambda axis: axis.place)
        params = LanesParams(axes, stored_axes, axes[-1], tuple([axis.tile for axis in shape]), offsets_wide)
    else:
        m, n = axes[1 : 1 + rows], axes[1 + rows : -1]
        stored = tuple([axis.tile for axis in (*m, *n)])
        tile = _product(m), _product(n)
        params = DotParams(axes[:-1], axes[0], m, n, axes[-1], axes[-1:], tile, stored,
                           tuple(map(_present, (axes[:1], m, n, axes[-1:]))), schedule.transposed,
                           widened(contraction, target), offsets_wide)  # fmt: skip
    return Laid(params, tuple(numbers), programs)


def _structure(contraction: Contraction, schedule: HandSchedule, group: Group, role: str, digits: int) -> Structure:
    vectors = schedule.vectors
    moved = _moved(schedule, role)
    aux = [any(mode.strides.aux[at] for mode in group.modes) for at in range(len(contraction.aux))]
    present = (*moved, *aux, True)
    runs, unit = [], 1
    for tensor in range(TENSORS):
        length = 1
        if vectors[tensor] > 1 and group.modes and group.modes[0].strides[tensor] == 1 and group.tile > 1:
            length, unit = vectors[tensor], max(unit, vectors[tensor])
        runs.append(Run(length, vectors[tensor]))
    runs += [Run(1, 1)] * len(aux)
    return Structure(group.tile, digits, unit, present, tuple(runs))


def _moved(schedule: HandSchedule, role: str) -> tuple[bool, bool, bool, bool]:
    """Which of A, B, C and D may move along an axis; a tensor that does not has strides 0 there."""
    if role == "outer" or (schedule.together and role != "k"):
        return True, True, True, True
    return {"m": (True, False, True, True), "n": (False, True, True, True), "k": (True, True, False, False)}[role]


def _present(axes: tuple[HandAxis, ...]) -> tuple[bool, ...]:
    return tuple([any(found) for found in zip(*[axis.present for axis in axes], strict=True)])


def _product(axes: tuple[HandAxis, ...]) -> int:
    found = 1
    for axis in axes:
        found *= axis.tile
    return found



"""Parameters of the shape-generic kernels from a schedule, and its cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from weft.gpu.common.constraints import LINE, VECTOR, sm_count, widened
from weft.gpu.common.cost import LEAST_LAUNCH
from weft.gpu.common.generic_axes import (
    AxisStructure,
    GenericDim,
    Group,
    axis_numbers,
    generic_dim,
    needs_wide,
    placed_axes,
)
from weft.gpu.common.tiling import TENSORS, A, AlignedRun, B, D
from weft.gpu.generic.schedule import GenericSchedule, rooms
from weft.planner.coefficients import coefficients, fitted
from weft.planner.schedule import Target
from weft.spec import Contraction, Mode
from weft.spec.dtypes import dtype_name


class GenericSimtParams(NamedTuple):
    """The parts of `simt.model.SimtParams` that do not depend on the shape."""

    r: GenericDim  # outer and two axes of D
    k: GenericDim  # one axis
    stored: GenericDim  # D's, as dimensions of the tile without k
    tile: tuple[int, ...]  # as its dimensions lie
    k_rank: int
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor


class GenericGettParams(NamedTuple):
    """The parts of `gett.model.GettParams` that do not depend on the shape."""

    batch: GenericDim  # one axis of single indices
    m: GenericDim
    n: GenericDim
    k: GenericDim
    of_d: GenericDim  # the axes of batch, m and n
    stored: tuple[int, ...]  # extents of the stored tile, an axis each
    by_columns: tuple[bool, bool]  # the tile of A is loaded as (k, m), that of B as (n, k)
    widen: bool  # products are made in the accumulator's type
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    splits: int = 1  # parts of a sum are stored as another D is
    runs: int = 1
    masked: tuple[bool, bool] = (True, True)
    transposed: tuple[bool, bool] = (False, False)  # via registers
    swap_k: bool = False
    apart: bool = False
    wide_index: bool = False

    @property
    def k_of_a(self) -> GenericDim:
        """A has its axes of k in the order of B."""
        return self.k


class Laid(NamedTuple):
    """A kernel's parameters, the launch's numbers, and its programs."""

    params: Any
    numbers: tuple[int, ...]
    programs: int


def laid(contraction: Contraction, schedule: GenericSchedule, target: Target, part_step: int = 0) -> Laid:
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
        stored_axes = [axis._replace(place=at - 1) for at, axis in enumerate(axes[:-1])]
        tile = tuple([axis.tile for axis in sorted(axes[1:], key=lambda axis: axis.place)])
        of_d, of_k = generic_dim(axes[:-1]), generic_dim(axes[-1:])
        params = GenericSimtParams(of_d, of_k, generic_dim(stored_axes), tile, 1, offsets_wide)
    else:
        batch, m, n, k = axes[:1], axes[1 : 1 + rows], axes[1 + rows : -1], axes[-1:]
        params = GenericGettParams(
            batch=generic_dim(batch),
            m=generic_dim(m),
            n=generic_dim(n),
            k=generic_dim(k),
            of_d=generic_dim(axes[:-1]),
            stored=tuple([axis.tile for axis in (*m, *n)]),
            by_columns=schedule.transposed,
            widen=widened(contraction, target),
            wide=offsets_wide,
        )
    return Laid(params, tuple(numbers), programs)


def _structure(
    contraction: Contraction, schedule: GenericSchedule, group: Group, role: str, digits: int
) -> AxisStructure:
    vectors = schedule.vectors
    moved = _moved(schedule, role)
    aux = [any(mode.strides.aux[at] for mode in group.modes) for at in range(len(contraction.aux))]
    present = (*moved, *aux, True)
    runs, unit = [], 1
    for tensor in range(TENSORS):
        length = 1
        if vectors[tensor] > 1 and group.modes and group.modes[0].strides[tensor] == 1 and group.tile > 1:
            length, unit = vectors[tensor], max(unit, vectors[tensor])
        runs.append(AlignedRun(length, vectors[tensor]))
    runs += [AlignedRun(1, 1)] * len(aux)
    return AxisStructure(group.tile, digits, unit, present, tuple(runs))


def _moved(schedule: GenericSchedule, role: str) -> tuple[bool, bool, bool, bool]:
    """Which of A, B, C and D may move along an axis; a tensor that does not has strides 0 there."""
    if role == "outer" or (schedule.together and role != "k"):
        return True, True, True, True
    return {"m": (True, False, True, True), "n": (False, True, True, True), "k": (True, True, False, False)}[role]


_FITTED = fitted("at_hand")

DOT_RATES = fitted("common").table("matrix_rate")
DOT_SHARE = _FITTED("dot_share")  # of the rate of matrix instructions that is had
LANE_RATE = _FITTED("lane_rate")  # products per second off the matrix units
SECOND = _FITTED("second")  # seconds of the launch that adds up split sums
DIGIT = _FITTED("digit")  # seconds that a program takes indices apart for, for each mode that there is room for
STORED = _FITTED("stored")  # seconds for each element of D that a thread finishes
RESIDENT = 2048  # threads of an SM


class Waits(NamedTuple):
    """Seconds that a program takes however little there is to do: it waits for memory and for itself."""

    program: float
    step: float  # along k
    product: float  # of one thread
    load: float  # of one thread


DOT, LANES = (Waits(*[_FITTED(f"{kind}_{name}") for name in Waits._fields]) for kind in ("dot", "lanes"))


def predict(contraction: Contraction, schedule: GenericSchedule, target: Target) -> float:
    """Seconds."""
    by, sms = coefficients(target), sm_count(target)
    programs = max(schedule.tiles * schedule.splits, 1)
    resident = max(1, min(RESIDENT // (32 * schedule.warps), 8))
    uneven = math.ceil(programs / sms) * sms / programs
    dot = schedule.kernel == "dot"
    rows, columns = (math.prod([group.tile for group in side]) for side in (schedule.m, schedule.n))
    steps, depth = schedule.split_steps, schedule.k.tile
    products = programs * steps * rows * columns * depth
    loaded = programs * steps * depth
    each = (rows * columns, rows * columns) if schedule.together else (rows, columns)
    operands = (contraction.b, contraction.a) if schedule.swap_ab else (contraction.a, contraction.b)
    order = (B, A) if schedule.swap_ab else (A, B)
    seconds = cycles = 0.0
    for at in range(2):
        size = operands[at].dtype.itemsize
        cycles += loaded * each[at] * _cycles(schedule, at, size)
        seconds += size * _count(contraction, order[at]) / by.memory_rate
    of_d = contraction.arithmetic.accumulate if schedule.splits > 1 else contraction.d.dtype
    cycles += programs * rows * columns * _cycles(schedule, D, of_d.itemsize)
    seconds += contraction.d.dtype.itemsize * _count(contraction, D) / by.memory_rate
    pipes = (
        seconds,
        uneven * cycles / (sms * by.clock),
        uneven * products / (DOT_SHARE * _dot_rate(contraction) if dot else LANE_RATE),
        math.ceil(programs / (sms * resident)) * _waits(contraction, schedule, each),
    )
    slowest = max(pipes)
    busy = slowest * math.sqrt(sum([(pipe / slowest) ** 2 for pipe in pipes]))
    again = 2 * schedule.workspace_bytes / by.l2_rate + SECOND if schedule.splits > 1 else 0.0
    return busy + min(by.launch, LEAST_LAUNCH + busy) + again


def _waits(contraction: Contraction, schedule: GenericSchedule, each: tuple[int, int]) -> float:
    """Seconds of one program. `each`: elements of A's and B's tile for each index along k."""
    dot = schedule.kernel == "dot"
    by, threads, depth = DOT if dot else LANES, 32 * schedule.warps, schedule.k.tile
    elements = math.prod([group.tile for group in (*schedule.m, *schedule.n)])
    products = elements * depth / threads
    if dot:
        products *= DOT_RATES["float32 ieee"] / 2 / _dot_rate(contraction)
    loads = sum([depth * each[at] / threads / schedule.vectors[at] for at in range(2)])
    room, room_k, _ = rooms(schedule)
    step = by.step + by.product * products + by.load * loads
    return by.program + schedule.split_steps * step + STORED * elements / threads + DIGIT * (2 * room + room_k)


def _cycles(schedule: GenericSchedule, tensor: int, size: int) -> float:
    """Cycles of the load-store units for each element of a tile: lines that a warp touches, 16 bytes a lane at most."""
    if schedule.vectors[tensor] > 1:
        groups = (*schedule.m, *schedule.n, schedule.k)
        run = max([_run(group.modes, tensor, group.tile) for group in groups if group.modes], default=1)
    else:
        fast = _fastest(schedule, tensor)
        run = _run(fast.modes, tensor, fast.tile) if fast.modes else 1
    return max(size / (32 * min(VECTOR, schedule.vectors[tensor] * size)), size / min(LINE, run * size))


def _fastest(schedule: GenericSchedule, tensor: int) -> Group:
    """The axis of a tile that neighbouring lanes are neighbours along, where nothing is known of runs."""
    if tensor == D or schedule.depth_first:
        return schedule.n[-1]
    if schedule.kernel == "dot" and schedule.transposed[tensor] is (tensor == A):
        return schedule.m[-1] if tensor == A else schedule.n[-1]
    return schedule.k


def _run(modes: tuple[Mode, ...], tensor: int, tile: int) -> int:
    """Elements of a tile's axis that lie together."""
    run = 1
    for mode in modes:
        if mode.strides[tensor] != run:
            break
        run *= mode.extent
    return max(min(run, tile), 1)


def _count(contraction: Contraction, tensor: int) -> int:
    """Distinct elements of a tensor."""
    return math.prod([mode.extent for mode in contraction.modes if mode.strides[tensor]])


def _dot_rate(contraction: Contraction) -> float:
    """Products per second by `tl.dot`."""
    arithmetic = contraction.arithmetic
    product = torch.float64 if arithmetic.accumulate is torch.float64 else arithmetic.product
    return DOT_RATES[f"{dtype_name(product)} {arithmetic.precision}"] / 2

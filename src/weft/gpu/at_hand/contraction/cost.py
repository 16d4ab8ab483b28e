"""Predicted time of a kernel at hand, in few operations: planning at hand must not take longer than the call.

Memory, load-store cycles, arithmetic and waiting, each on the busiest SM, and what a launch adds. It ranks few
candidates, and says what a kernel made to measure would save.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from weft.gpu.at_hand.axes import Group
from weft.gpu.at_hand.contraction.schedule import HandSchedule, rooms
from weft.gpu.common.cost import LEAST_LAUNCH
from weft.gpu.common.hardware import LINE, VECTOR, sm_count
from weft.gpu.common.tiling import A, B, D
from weft.planner.coefficients import coefficients, fitted
from weft.planner.schedule import Target
from weft.spec import Contraction, Mode
from weft.spec.dtypes import dtype_name

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


def predict(contraction: Contraction, schedule: HandSchedule, target: Target) -> float:
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


def _waits(contraction: Contraction, schedule: HandSchedule, each: tuple[int, int]) -> float:
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


def _cycles(schedule: HandSchedule, tensor: int, size: int) -> float:
    """Cycles of the load-store units for each element of a tile: lines that a warp touches, 16 bytes a lane at most."""
    if schedule.vectors[tensor] > 1:
        groups = (*schedule.m, *schedule.n, schedule.k)
        run = max([_run(group.modes, tensor, group.tile) for group in groups if group.modes], default=1)
    else:
        fast = _fastest(schedule, tensor)
        run = _run(fast.modes, tensor, fast.tile) if fast.modes else 1
    return max(size / (32 * min(VECTOR, schedule.vectors[tensor] * size)), size / min(LINE, run * size))


def _fastest(schedule: HandSchedule, tensor: int) -> Group:
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

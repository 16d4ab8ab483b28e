"""Predicted time of a kernel at hand, in few operations: planning at hand must not take longer than the call.

The slowest of memory, load-store cycles, arithmetic and waiting, each on the busiest SM, and what a launch adds. It
ranks few candidates, and says what a kernel made to measure would save.
"""

from __future__ import annotations

import math

import torch

from weft.gpu.at_hand.contraction.schedule import HandSchedule
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
DOT_STEP, LANES_STEP = _FITTED("dot_step"), _FITTED("lanes_step")  # seconds of a step along k that a program waits
PROGRAM = _FITTED("program")  # seconds of a program besides
SECOND = _FITTED("second")  # seconds of the launch that adds up split sums
RESIDENT = 2048  # threads of an SM


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
    waves = math.ceil(programs / (sms * resident))
    pipes = (
        seconds,
        uneven * cycles / (sms * by.clock),
        uneven * products / (_dot_rate(contraction) if dot else LANE_RATE),
        waves * (steps * (DOT_STEP if dot else LANES_STEP) + PROGRAM),
    )
    slowest = max(pipes)
    busy = slowest * math.sqrt(sum([(pipe / slowest) ** 2 for pipe in pipes]))
    again = 2 * schedule.workspace_bytes / by.l2_rate + SECOND if schedule.splits > 1 else 0.0
    return busy + min(by.launch, LEAST_LAUNCH + busy) + again


def _cycles(schedule: HandSchedule, tensor: int, size: int) -> float:
    """Cycles of the load-store units for each element of a tile: lines that a warp touches, 16 bytes a lane at most."""
    groups = (*schedule.m, *schedule.n, schedule.k)
    runs = [_run(group.modes, tensor, group.tile) for group in groups if group.modes]
    fast = groups[-2] if tensor == D or schedule.depth_first else schedule.k
    stated = schedule.vectors[tensor] > 1 or schedule.by_side
    run = max(runs, default=1) if stated else _run(fast.modes, tensor, fast.tile) if fast.modes else 1
    return max(size / (32 * min(VECTOR, schedule.vectors[tensor] * size)), size / min(LINE, run * size))


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
    return DOT_SHARE * DOT_RATES[f"{dtype_name(product)} {arithmetic.precision}"] / 2

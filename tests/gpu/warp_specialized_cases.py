"""Contractions and schedules that the tests of warp-specialized kernels share."""

from __future__ import annotations

import torch

from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.schedule import WsSchedule
from weft.gpu.warp_specialized.stationary_model import StationarySchedule
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.notation import parse

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
EXTENTS = {"z": 3, "a": 200, "b": 328, "c": 3, "d": 136, "e": 24, "f": 1000, "g": 8}
# A large operand (more output tiles than consumers) beside a small one; sums of one step, of five with three stages,
# of several modes, and with ends of 8, 16 and 40; columns in one part and in two, and no multiple of 8.
LARGE_AND_SMALL = {"a": 20000, "b": 72, "c": 3, "d": 72, "e": 16, "f": 136, "g": 296, "h": 21, "i": 312, "j": 40}


def described(
    equation: str,
    dtype: torch.dtype = torch.float16,
    precision: str | None = None,
    extents: dict[str, int] = EXTENTS,
    out: torch.dtype = torch.float32,
) -> Contraction:
    """A contraction of contiguous tensors."""
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], out)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation))


def pipelined(contraction: Contraction) -> list[WsSchedule]:
    """Schedules whose operands both come in pipelines."""
    found = warp_specialized.schedules(contraction, H200).schedules
    return [schedule for schedule in found if isinstance(schedule, WsSchedule)]


def stationary(contraction: Contraction) -> list[StationarySchedule]:
    """Schedules with a stationary operand."""
    found = warp_specialized.schedules(contraction, H200).schedules
    return [schedule for schedule in found if isinstance(schedule, StationarySchedule)]


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1  # not zero at zero: what is read past the end of a sum must be masked

"""Predicted time of TTGT: what its steps are predicted to take, and the functions that are applied on the way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.gpu.common.cost import FUNCTION_RATE, READING_SLOTS
from weft.gpu.composite.ttgt.schedule import TtgtSchedule
from weft.gpu.permute.cost import LAUNCH
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice


def predict(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> float:
    """Seconds of all steps; functions hide behind memory as far as they take no longer."""
    moves = [step for step in (*schedule.steps, schedule.finish) if step is not None]
    seconds = sum(math.hypot(step.best.seconds, _function_seconds(step)) for step in moves)
    return schedule.product.best.seconds + seconds - (LAUNCH if schedule.packed_together is not None else 0.0)


def _function_seconds(step: Choice) -> float:
    """Of the function that a step applies."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return 0.0
    elements = math.prod(mode.extent for mode in permutation.modes)
    return elements * (READING_SLOTS + permutation.fn.issue_slots) / FUNCTION_RATE

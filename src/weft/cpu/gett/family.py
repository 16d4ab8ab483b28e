"""GETT on the CPU: a matrix product's loops around packing that gathers from tensors where they lie.

A family with the four doors of `weft.planner.schedule`. Kernels are compiled by numba when one is first built.
"""

from __future__ import annotations

from dataclasses import replace

from weft.cpu.gett import cost
from weft.cpu.gett.schedule import GettSchedule, best_schedule
from weft.cpu.gett.split import SplitLaunch, steps_of
from weft.cpu.gett.support import supports
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction

NAME = "gett"
FINDS_PEAKS = True

__all__ = ["FINDS_PEAKS", "NAME", "GettSchedule", "build", "predict", "schedules", "supports"]


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates((best_schedule(contraction, max(target.processors, 1)),))


def predict(contraction: Contraction, schedule: GettSchedule, target: Target) -> float:
    return cost.predict(contraction, schedule)


def build(contraction: Contraction, schedule: GettSchedule, target: Target) -> Launch:
    from weft.cpu.gett.launch import GettLaunch

    if schedule.splits == 1:
        return GettLaunch(contraction, schedule)
    steps = steps_of(contraction, schedule.splits)
    parts = GettLaunch(steps.parts, replace(schedule, splits=1))
    return SplitLaunch(steps, (parts, GettLaunch(steps.whole, best_schedule(steps.whole, schedule.threads))))

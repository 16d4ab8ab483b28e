"""Permutations on the CPU: tiles transposed in registers, cells copied where they are no single items.

A family with the four doors of `weft.planner.schedule`. Kernels are compiled by numba when one is first built.
"""

from __future__ import annotations

from weft.cpu import jit
from weft.cpu.permute.schedule import CpuPermuteSchedule, schedule_of
from weft.planner.schedule import Candidates, PermutationLaunch, Target
from weft.spec.permutation import Permutation

NAME = "permute"

__all__ = ["NAME", "CpuPermuteSchedule", "build", "predict", "schedules", "supports"]

# Rough, of two cores of an AMD EPYC (Zen 5): bytes that a core moves in a second, and what a call takes.
RATES = {"squares": 20e9, "cells": 12e9}
CALL, TEAM = 2e-6, 4e-6


def supports(permutation: Permutation, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if (reason := jit.fault_on(target)) is not None:
        return reason
    if permutation.is_move:
        return None
    from weft.cpu.permute.launch import Values, fault

    return fault(Values.of(permutation))


def schedules(permutation: Permutation, target: Target) -> Candidates:
    return Candidates((schedule_of(permutation, max(target.processors, 1)),))


def predict(permutation: Permutation, schedule: CpuPermuteSchedule, target: Target) -> float:
    """Seconds on `target`."""
    size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
    team = TEAM if schedule.threads > 1 else 0.0
    return CALL + team + size / (RATES[schedule.way] * min(schedule.threads, 2))


def build(permutation: Permutation, schedule: CpuPermuteSchedule, target: Target) -> PermutationLaunch:
    from weft.cpu.permute.launch import CpuPermuteLaunch

    return CpuPermuteLaunch(permutation, schedule)

"""Permutations on the CPU: tiles transposed in registers, cells copied where they are no single items.

A family with the four doors of `weft.planner.schedule`. Kernels are compiled by numba when one is first built; what
they cannot do torch does, slab by slab.
"""

from __future__ import annotations

from weft.cpu import jit
from weft.cpu.permute.plain import SLAB, PlainLaunch
from weft.cpu.permute.schedule import PermuteSchedule, schedule_of
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Candidates, PermutationLaunch, Target
from weft.spec.permutation import Permutation

NAME = "permute"

__all__ = ["NAME", "PermuteSchedule", "build", "predict", "schedules", "supports"]

# Fitted on two cores of an AMD EPYC (Zen 5): bytes that a core moves in a second, and what a call takes.
RATES = {"squares": 20e9, "cells": 12e9, "torch": 4e9}
CALL, TEAM = 2e-6, 4e-6


def supports(permutation: Permutation, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if isinstance(permutation.fn, TritonFunction):
        return f"{permutation.fn.jit.__name__} is a Triton function; the CPU needs it written with torch operations"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    """One: the kernels', or torch's with the reason."""
    reason = jit.fault()
    if reason is None and not permutation.is_move:
        from weft.cpu.permute.stage import Values, fault

        reason = fault(Values.of(permutation))
    if reason is None:
        return Candidates((schedule_of(permutation, max(target.processors, 1)),))
    slab = 0 if permutation.is_move else 3 * SLAB * max(permutation.x.dtype.itemsize, permutation.scale.itemsize)
    return Candidates((PermuteSchedule("torch", workspace_bytes=slab),), (f"kernels: {reason}",))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds on `target`."""
    size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
    team = TEAM if schedule.threads > 1 else 0.0
    return CALL + team + size / (RATES[schedule.way] * min(schedule.threads, 2))


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermutationLaunch:
    if schedule.way == "torch":
        return PlainLaunch(permutation)
    from weft.cpu.permute.launch import KernelLaunch

    return KernelLaunch(permutation, schedule)

"""One pass over memory for sums, diagonals, outer and pointwise products, and products with vectors.

A family with the four doors of `weft.planner.schedule`. Its loops are compiled by numba when one is first built.
"""

from __future__ import annotations

from dataclasses import replace

from weft.cpu import jit
from weft.cpu.gett.split import SplitLaunch, steps_of
from weft.cpu.stream import cost
from weft.cpu.stream.nest import ComplexPartsLaunch, in_parts, nest_of
from weft.cpu.stream.schedule import StreamSchedule, best_schedule
from weft.cpu.stream.types import fault, types_of
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction

NAME = "stream"
MOST_REUSE = 6  # multiply-adds for each item of A, B and D

__all__ = ["NAME", "StreamSchedule", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if (missing := jit.fault()) is not None:
        return missing
    if contraction.algebra is not None or contraction.aux or contraction.c is not None:
        return "it computes products and their sums alone"
    if any((contraction.a_fn, contraction.b_fn, contraction.epilogue)):
        return "it applies no functions"
    if contraction.a.dtype.is_complex and (contraction.conjugate_a or contraction.conjugate_b):
        return "it conjugates nothing"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if _reuse(contraction) > MOST_REUSE:
        return f"each item meets more than {MOST_REUSE} others: such products are for blocks in registers"
    return fault(contraction)


def _reuse(contraction: Contraction) -> float:
    m, n, k = contraction.m, contraction.n, contraction.k
    return m * n * k / (m * k + n * k + m * n)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    real = in_parts(contraction)  # wherever there are parts: an infinity times a complex one would be no number
    found = best_schedule(contraction if real is None else real, max(target.processors, 1))
    return Candidates((replace(found, in_parts=real is not None),))


def predict(contraction: Contraction, schedule: StreamSchedule, target: Target) -> float:
    computed = in_parts(contraction) if schedule.in_parts else contraction
    assert computed is not None, "it was offered"
    if schedule.splits > 1:
        computed = steps_of(computed, schedule.splits).parts
    nest = nest_of(computed, types_of(computed), schedule.x, schedule.y)
    return cost.call_seconds(schedule.threads) + cost.seconds(computed, nest) / schedule.threads


def build(contraction: Contraction, schedule: StreamSchedule, target: Target) -> Launch:
    real = in_parts(contraction) if schedule.in_parts else None
    if real is None:
        return _launch(contraction, schedule)
    whole = _launch(contraction, best_schedule(contraction, schedule.threads))
    return ComplexPartsLaunch(_launch(real, schedule), whole, contraction.a.dtype)


def _launch(contraction: Contraction, schedule: StreamSchedule) -> Launch:
    from weft.cpu.stream.launch import StreamLaunch

    if schedule.splits == 1:
        return StreamLaunch(contraction, schedule)
    steps = steps_of(contraction, schedule.splits)
    parts = StreamLaunch(steps.parts, replace(schedule, splits=1))
    return SplitLaunch(steps, (parts, StreamLaunch(steps.whole, best_schedule(steps.whole, schedule.threads))))

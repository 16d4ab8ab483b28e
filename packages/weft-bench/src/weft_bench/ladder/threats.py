"""Threats to the validity of a climb: see `weft_bench.report.threats`, which has what all records share."""

from __future__ import annotations

from collections.abc import Iterator

from weft.base.figures import counted
from weft_bench.ladder.record import BUDGET_ENDED, Climb
from weft_bench.report.threats import (
    IN_CACHE,
    INTERVALS,
    OUT_OF_CACHE,
    RANDOM,
    clocks_of,
    gathered,
    measured_at,
)


def of_climb(climb: Climb) -> dict[str, str]:
    """A few sentences of each kind."""
    places = [
        *measured_at(climb.device, climb.environment),
        "What is published is of other devices, at its own sizes. Kernels are shown as they are today: those that were "
        "timed may differ.",
    ]
    return gathered(_measured(climb), _causes(climb), places, _chance(climb))


def _measured(climb: Climb) -> Iterator[str]:
    if not climb.measured:
        yield "Nothing was timed: values alone were checked, on tiny tensors."
        return
    yield f"{IN_CACHE} One thread works." if climb.ladder == "cpu" else OUT_OF_CACHE
    yield RANDOM
    if lacking := sum(not step.seconds for step in climb.steps):
        yield f"Without a time: {lacking} of {counted(len(climb.steps), 'rung')}."


def _causes(climb: Climb) -> Iterator[str]:
    yield "A gain is of all that differs between two rungs: the compiler gives them other registers and orders, too."
    if not climb.measured:
        return
    read = sum(bool(step.profile.get("counters")) for step in climb.steps)
    yield f"Counters were read of {read} of {counted(len(climb.steps), 'rung')}."
    yield from clocks_of([step.profile["timing"] for step in climb.steps if step.profile.get("timing")])


def _chance(climb: Climb) -> Iterator[str]:
    if not climb.measured:
        return
    yield INTERVALS
    if short := sum(BUDGET_ENDED in step.notes for step in climb.steps):
        yield f"For {counted(short, 'rung')} the budget ended before samples agreed."

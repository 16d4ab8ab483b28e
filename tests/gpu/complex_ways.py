"""What a complex product by real ones consists of, for tests that take one schedule of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.gpu.complex.interleaved import Transfer
from weft.planner.program import SLOT_A, SLOT_B, Program


def transfers(schedule: Program) -> Iterator[tuple[str, Any]]:
    """The steps that pack A and B and that write D, by that letter."""
    for step in schedule.steps:
        if isinstance(step.choice.description, Transfer):
            yield {SLOT_A: "A", SLOT_B: "B"}.get(step.reads[0], "D"), step.choice


def way_of(schedule: Program) -> tuple[str, ...]:
    """What is multiplied, and the form that each tensor is written in."""
    form = str(schedule).split()[0].rstrip(";").removeprefix("complex.")
    return form, *(f"{letter} {choice.description.form}" for letter, choice in transfers(schedule))

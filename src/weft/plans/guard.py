"""Predictions held against the device: some calls of a schedule that nobody measured are timed as they run.

Events are recorded around a launch on the caller's stream, and read once they have passed: nobody waits for them. A
call's time has the latency of its launch in it, so only gross errors of long kernels count. `WEFT_GUARD=0` in the
environment turns it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from weft.base.settings import turns_off
from weft.planner.schedule import Target

SAMPLES = 3  # calls that are timed of a schedule; the quickest counts
FIRST, EVERY = 2, 3  # calls after a schedule began to serve: when the first is timed, and how many apart the others are
LATENCY = 5e-5  # seconds of a call that may be no kernel's
GROSS = 1.5  # times of the prediction that a call may take


class Guard:
    """The timed calls of one schedule."""

    def __init__(self) -> None:
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def is_done(self) -> bool:
        """Whether all samples were taken."""
        return len(self._events) >= SAMPLES

    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a launch between two events of the current stream."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch(*arguments)
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> float | None:
        """The quickest sample; None where the device has not passed all of them."""
        if not all(end.query() for _, end in self._events):
            return None
        return min(begin.elapsed_time(end) for begin, end in self._events) / 1e3


def watches(target: Target) -> bool:
    """Whether calls on a target are timed: on GPUs, unless that is turned off."""
    return target.kind in ("cuda", "hip") and not turns_off(os.environ.get("WEFT_GUARD"))


def is_grossly_wrong(seconds: float, predicted: float) -> bool:
    """Whether a measured time shows that a prediction was wrong."""
    return seconds > GROSS * predicted + LATENCY

"""Predictions held against the device: some calls of a schedule that nobody measured are timed as they run.

On a GPU events are recorded around a launch on the caller's stream, and read once they have passed: nobody waits for
them. A CPU's calls are timed by the host's clock. A call's time has the latency of its launch in it, so only gross
errors of long kernels count. `WEFT_GUARD=0` in the environment turns it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from weft.base.interpreter import turns_off
from weft.planner.schedule import Target

SAMPLES = 3  # calls that are timed of a schedule; the quickest counts
FIRST, EVERY = 2, 3  # calls after a schedule began to serve: when the first is timed, and how many apart the others are
GROSS = 1.5  # times of the prediction that a call may take
_LATENCY = {"cuda": 5e-5, "hip": 5e-5, "cpu": 1e-5}  # seconds of a call that may be no kernel's


class Guard:
    """The timed calls of one schedule: between two events of a GPU's current stream, on a CPU by the host's clock."""

    def __init__(self, target: Target) -> None:
        self._by_clock = target.kind == "cpu"
        self._samples: list[tuple[Any, Any]] = []

    @property
    def is_done(self) -> bool:
        """Whether all samples were taken."""
        return len(self._samples) >= SAMPLES

    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a launch and time it."""
        begin = self._now()
        launch(*arguments)
        self._samples.append((begin, self._now()))

    def seconds(self) -> float | None:
        """The quickest sample; None where the device has not passed all of them."""
        if self._by_clock:
            return min(end - begin for begin, end in self._samples)
        if not all(end.query() for _, end in self._samples):
            return None
        quickest: float = min(begin.elapsed_time(end) for begin, end in self._samples)
        return quickest / 1e3

    def _now(self) -> Any:
        if self._by_clock:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def watches(target: Target) -> bool:
    """Whether calls on a target are timed, which can be turned off."""
    return target.kind in _LATENCY and not turns_off(os.environ.get("WEFT_GUARD"))


def is_grossly_wrong(seconds: float, predicted: float, target: Target) -> bool:
    """Whether a measured time shows that a prediction was wrong."""
    return seconds > GROSS * predicted + _LATENCY[target.kind]

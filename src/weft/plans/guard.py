"""Predictions held against the device: some calls of a schedule that nobody measured are timed as they run.

On a GPU events are recorded around a launch on the caller's stream, and read once they have passed: nobody waits for
them. A CPU's calls are timed by the host's clock. A call's time has the latency of its launch in it, so only gross
errors of long kernels count. `WEFT_GUARD=0` in the environment turns it off.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from weft.base.settings import turns_off
from weft.planner.schedule import Target

SAMPLES = 3  # calls that are timed of a schedule; the quickest counts
FIRST, EVERY = 2, 3  # calls after a schedule began to serve: when the first is timed, and how many apart the others are
GROSS = 1.5  # times of the prediction that a call may take
_LATENCY = {"cuda": 5e-5, "hip": 5e-5, "cpu": 1e-5}  # seconds of a call that may be no kernel's


class Guard(ABC):
    """The timed calls of one schedule."""

    def __init__(self) -> None:
        self._samples: list[Any] = []

    @property
    def is_done(self) -> bool:
        """Whether all samples were taken."""
        return len(self._samples) >= SAMPLES

    @abstractmethod
    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a launch and time it."""

    @abstractmethod
    def seconds(self) -> float | None:
        """The quickest sample; None where the device has not passed all of them."""


class _ByEvents(Guard):
    """Calls between two events of a GPU's current stream."""

    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch(*arguments)
        end.record()
        self._samples.append((begin, end))

    def seconds(self) -> float | None:
        if not all(end.query() for _, end in self._samples):
            return None
        quickest: float = min(begin.elapsed_time(end) for begin, end in self._samples)
        return quickest / 1e3


class _ByClock(Guard):
    """Calls on a CPU."""

    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        begun = perf_counter()
        launch(*arguments)
        self._samples.append(perf_counter() - begun)

    def seconds(self) -> float | None:
        return min(self._samples)


def watches(target: Target) -> bool:
    """Whether calls on a target are timed, which can be turned off."""
    return target.kind in _LATENCY and not turns_off(os.environ.get("WEFT_GUARD"))


def guard_of(target: Target) -> Guard:
    """A guard that has timed nothing."""
    return _ByClock() if target.kind == "cpu" else _ByEvents()


def is_grossly_wrong(seconds: float, predicted: float, target: Target) -> bool:
    """Whether a measured time shows that a prediction was wrong."""
    return seconds > GROSS * predicted + _LATENCY[target.kind]

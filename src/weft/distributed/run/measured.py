"""Calls as they were measured: on one rank, and again and again on all ranks at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

from weft.distributed.group.lanes import Recorder
from weft.distributed.planned.timeline import Event, Timeline

FEWEST, MOST = 3, 100  # calls that are measured
BUDGET = 0.3  # seconds of them

Call = Callable[[Recorder | None], Any]
Exchanged = Callable[[str, Any], list[Any]]  # a value of each rank, in their order


@dataclass(frozen=True)
class MeasuredCalls:
    """Calls that all ranks made together.

    `seconds` has for each call what the slowest rank took. `timelines` are those of the call that took the median, one
    of each rank, all counted from the moment at which the first of them began: by the clocks of their machines.
    """

    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]


def measured(call: Call, device: torch.device) -> tuple[float, Timeline]:
    """One call on this rank, and when it began, in seconds since the epoch. Waits for the device."""
    recorder = Recorder(device)
    with torch.no_grad():
        call(recorder)
    events = (Event(each.lane, each.name, each.begin, each.end, each.step) for each in recorder.finish())
    return recorder.began, Timeline("measured", tuple(events))


def warmed(call: Call, device: torch.device) -> Timeline:
    """The second of two calls on this rank."""
    with torch.no_grad():
        call(None)
    return measured(call, device)[1]


def measured_calls(call: Call, device: torch.device, exchanged: Exchanged, budget: float) -> MeasuredCalls:
    """As many calls as take about `budget` seconds, from `FEWEST` to `MOST`. Every rank calls it."""
    slowest = max(exchanged("the first measured call", warmed(call, device).seconds))
    found = []
    for _ in range(max(FEWEST, min(MOST, int(budget / max(slowest, 1e-6))))):
        exchanged("the begin of a measured call", None)
        found.append(measured(call, device))
    every = exchanged("the times of measured calls", [timeline.seconds for _, timeline in found])
    seconds = tuple(max(each) for each in zip(*every, strict=True))
    began, timeline = found[sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2]]
    told = exchanged("the timelines of a measured call", [began, [astuple(event) for event in timeline.events]])
    first = min(began for began, _ in told)
    timelines = [
        Timeline("measured", tuple(Event(*event) for event in events)).shifted(began - first) for began, events in told
    ]
    return MeasuredCalls(seconds, tuple(timelines))

"""Whether other programs use the processor while something is measured on it.

Two rounds that agree do not show it: a machine may be busy through both. The system counts the time that its cores were
at work, and what a hypervisor took from them; less what this process has used, that is others' time. And a loop that
never waits takes longer by the clock than it has of the processor, where it must share.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from weft.machine.identity import usable_cores

SPIN = 0.03  # seconds of a loop
_AT_WORK = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, interrupts, soft ones, stolen


class _Moment(NamedTuple):
    wall: float
    own: float  # seconds of the processor that this process has used
    every: float | None  # that all programs have used, on the cores of this process; None where nothing tells


class Watch:
    """From now on: what others take of the processor's time."""

    def __init__(self) -> None:
        self._spun = _spin()
        self._began = _moment()

    def others(self) -> float:
        """The share of the time since, from 0 to 1."""
        began, now = self._began, _moment()
        spun = max(self._spun, _spin())
        if began.every is None or now.every is None or now.wall <= began.wall:
            return spun
        used = (now.every - began.every) - (now.own - began.own)
        return min(max(used / ((now.wall - began.wall) * len(usable_cores())), spun, 0.0), 1.0)


def _moment() -> _Moment:
    return _Moment(time.perf_counter(), time.process_time(), _at_work())


def _at_work() -> float | None:
    names = {f"cpu{core}" for core in usable_cores()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = [sum(int(line[1 + at]) for at in _AT_WORK) for line in lines if line and line[0] in names]
    except (OSError, ValueError, IndexError):
        return None
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if len(ticks) == len(names) else None


def _spin() -> float:
    """The share of a short time that this thread did not have; the better of two tries."""
    return min(_spun_once(), _spun_once())


def _spun_once() -> float:
    wall, own = time.perf_counter(), time.thread_time()
    while (passed := time.perf_counter() - wall) < SPIN:
        pass
    return max(1 - (time.thread_time() - own) / passed, 0.0)

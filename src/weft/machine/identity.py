"""Which machine a process runs on, as far as its speed depends on that, and whether other programs use it meanwhile.

Many machines share a processor's name. Two rounds that agree do not show others at work: a machine may be busy through
both. The system counts the time that its cores were at work, and what a hypervisor took from them; less what this
process has used, that is others' time. And a loop that never waits takes longer by the clock than it has of the
processor, where it must share.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple


def machine_identity() -> dict[str, Any]:
    """Cores, those that this process may use and how much of their time, memory, and what the machine says it is.

    Nothing in it names one machine among its like.
    """
    return {
        "cores": os.cpu_count(),
        "set": _ranges(usable_cores()),
        "quota": _said("/sys/fs/cgroup/cpu.max"),
        "memory": _memory() >> 30,
        "maker": [_said(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")],
        "hypervisor": _said("/sys/hypervisor/type") or ("hypervisor" in _said("/proc/cpuinfo").split()),
    }


def machine_digest() -> str:
    """The identity in a few letters, for keys."""
    return hashlib.sha256(json.dumps(machine_identity()).encode()).hexdigest()[:12]


def usable_cores() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _ranges(numbers: list[int]) -> str:
    """As the system writes it: 0-3,8."""
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _said(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError):
        return ""


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

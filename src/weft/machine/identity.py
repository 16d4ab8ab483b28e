"""Which machine a process runs on, as far as its speed depends on that: many machines share a processor's name."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


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

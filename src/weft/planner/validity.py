"""The machine and software that a stored figure or schedule is valid for. Its code: `weft.planner.code_digest`.

Also the count that grows whenever something is stored that plans of this process depend on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import torch

from weft.machine.stamp import device_stamp
from weft.planner.schedule import Target

_generation = 0


def generation() -> tuple[int, int]:
    """The state that plans depend on and no call says: how often it has changed, and the number of torch's threads.

    What has changed are stored schedules, fitted coefficients, or the families that have failed. Schedules for the CPU
    are made for a number of threads; asking for it takes 20 ns.
    """
    return _generation, torch.get_num_threads()


def outdate() -> None:
    """Have everything planned anew at its next use: what plans depend on has changed."""
    global _generation
    _generation += 1


@lru_cache
def environment(target: Target) -> dict[str, Any]:
    """The machine and the software that a stored schedule belongs to."""
    stamp = device_stamp(target.device)
    return stamp | {"kind": target.kind, "capability": target.capability, "processors": target.processors}


def here(target: Target) -> bool:
    """Whether a target is a device of this machine."""
    if target.kind not in ("cuda", "hip"):
        return True
    return torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name


def now() -> str:
    """The date as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")

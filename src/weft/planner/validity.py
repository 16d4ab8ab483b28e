"""What a stored figure or schedule is valid for: the machine, the software, and weft's own code.

Also the count that grows whenever something is stored that plans of this process depend on.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from weft.machine.stamp import device_stamp
from weft.planner.schedule import Target

# Files whose change may change how fast a schedule runs, by backend and relative to this package's parent.
_CODE = {"triton": ("gpu/**/*.py", "fn/**/*.py"), "cpu": ("cpu/**/*.py", "fn/*.py")}

_generation = 0


def generation() -> int:
    """Grows with each winner that this process stores: what was planned before may be out of date."""
    return _generation


def outdate() -> None:
    """Have everything planned anew that is asked for again: what plans depend on has changed."""
    global _generation
    _generation += 1


@lru_cache
def environment(target: Target) -> dict[str, Any]:
    """The machine and the software that a winner belongs to."""
    stamp = device_stamp(target.device)
    return stamp | {"kind": target.kind, "capability": target.capability, "processors": target.processors}


def code_digest(backend: str) -> str:
    """A digest of weft's own code that runs for a backend."""
    return digest_of(_CODE[backend])


@lru_cache
def digest_of(patterns: tuple[str, ...]) -> str:
    """The same of the files that patterns name, relative to this package's parent."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for pattern in patterns:
        for file in sorted(root.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def here(target: Target) -> bool:
    """Whether a target is a device of this machine."""
    if target.kind not in ("cuda", "hip"):
        return True
    return torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name


def now() -> str:
    """The date as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")

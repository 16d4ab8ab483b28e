"""What tuning found, remembered on disk: for each description on each device the schedule that was fastest.

The key of a tuned schedule holds everything that the choice depends on: the canonical description with extents,
strides, types, alignments and functions; the device, driver, torch and Triton; and a digest of the code that runs. A
schedule that is no longer legal counts as absent, and nothing that lies in the cache can break a plan.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.machine.stamp import device_stamp
from weft.machine.store import Store
from weft.planner.schedule import Description, Origin, Ranked, Schedule, Target
from weft.planner.serialization import NotSerializable, serialize_description, serialize_schedule

if TYPE_CHECKING:
    from weft.planner.planner import Choice

FORMAT = 1  # of keys and values
ROOM = "schedules"  # of the store

# Files whose change may change how fast a schedule runs, by backend and relative to this package's parent.
_CODE = {"triton": ("gpu/**/*.py", "fn/**/*.py"), "cpu": ("cpu/**/*.py", "fn/*.py")}

_generation = 0


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """The fastest schedule that a tuning found, and the model's choice beside it; seconds are medians."""

    schedule: Schedule
    seconds: float
    model: Schedule
    model_seconds: float
    tried: int  # candidates that were measured


def generation() -> int:
    """How many tuned schedules this process has stored: what was planned before a change of it may be out of date."""
    return _generation


def key(description: Description, backend: str, target: Target, workspace_limit: int | None) -> dict[str, Any] | None:
    """The store's key of a description's tuned schedule; None for one that only this process understands."""
    try:
        serialized = serialize_description(description)
    except NotSerializable:
        return None
    return {
        "what": "tuned schedule",
        "format": FORMAT,
        "backend": backend,
        "environment": environment(target),
        "code": code_digest(backend),
        "description": serialized,
        "workspace_limit": workspace_limit,
    }


@lru_cache
def environment(target: Target) -> dict[str, Any]:
    """The machine and the software that a tuned schedule belongs to."""
    stamp = device_stamp(target.device)
    return stamp | {"kind": target.kind, "capability": target.capability, "processors": target.processors}


@lru_cache
def code_digest(backend: str) -> str:
    """A digest of weft's own code that runs for a backend."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for pattern in _CODE[backend]:
        for file in sorted(root.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def remember(choice: Choice, workspace_limit: int | None, fastest: TunedSchedule) -> bool:
    """Store the tuned schedule of a choice's description; whether it has a key to be stored under."""
    global _generation
    _generation += 1
    place = key(choice.description, choice.backend, choice.target, workspace_limit)
    if place is None:
        return False
    value = {
        "schedule": str(fastest.schedule),
        "serialized": serialize_schedule(fastest.schedule, choice.description),
        "seconds": fastest.seconds,
        "model": {
            "schedule": str(fastest.model),
            "serialized": serialize_schedule(fastest.model, choice.description),
            "seconds": fastest.model_seconds,
        },
        "tried": fastest.tried,
        "text": choice.description.text,
        "date": now(),
    }
    Store(ROOM).save(place, value)
    return True


def recalled(choice: Choice, workspace_limit: int | None) -> Choice | None:
    """The same choice with the stored schedule first, or None where there is none that fits.

    One found under another limit serves as well where its workspace is within this one. A device that is not here
    has none.
    """
    if not _here(choice.target):
        return None
    for limit in dict.fromkeys((workspace_limit, None)):
        place = key(choice.description, choice.backend, choice.target, limit)
        value = Store(ROOM).load(place) if place is not None else None
        if value is not None and (found := _applied(choice, value)) is not None:
            return found
    return None


def _here(target: Target) -> bool:
    """Whether a target is a device of this machine."""
    if target.kind not in ("cuda", "hip"):
        return True
    return torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name


def first(choice: Choice, fastest: TunedSchedule, origin: Origin) -> Choice:
    """A choice with the tuned schedule in the first place, its measured times noted."""
    measured = {fastest.model: fastest.model_seconds, fastest.schedule: fastest.seconds}
    noted = [replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked]
    best = next(rank for rank in noted if rank.schedule == fastest.schedule)
    return replace(choice, best=best, ranked=(best, *(rank for rank in noted if rank is not best)), origin=origin)


def noted(choice: Choice, measured: Mapping[Schedule, float], excluded: Sequence[str]) -> Choice:
    """The same choice with further measured times, and with reasons found while measuring."""
    ranked = tuple(replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked)
    return replace(choice, best=ranked[0], ranked=ranked, excluded=(*choice.excluded, *excluded))


def now() -> str:
    """The date as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _applied(choice: Choice, value: Any) -> Choice | None:
    """The choice that a stored value describes; None where the value is not understood or no longer legal."""
    try:
        schedule = _match(choice.ranked, choice.description, value["serialized"], value["schedule"])
        if schedule is None:
            return None
        model = _match(choice.ranked, choice.description, value["model"]["serialized"], value["model"]["schedule"])
        seconds, model_seconds = float(value["seconds"]), float(value["model"]["seconds"])
        if not (0 < seconds < math.inf and 0 < model_seconds < math.inf):
            return None
        model_seconds = model_seconds if model else seconds
        fastest = TunedSchedule(schedule, seconds, model or schedule, model_seconds, int(value["tried"]))
        return first(choice, fastest, Origin("store", str(value["date"])))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _match(ranked: Sequence[Ranked], description: Description, serialized: Any, text: str) -> Schedule | None:
    """The legal schedule that is serialized so; those whose text agrees are looked at first."""
    for rank in sorted(ranked, key=lambda rank: str(rank.schedule) != text):
        try:
            if serialize_schedule(rank.schedule, description) == serialized:
                return rank.schedule
        except NotSerializable:
            continue
    return None

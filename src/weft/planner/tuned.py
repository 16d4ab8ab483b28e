"""Tuned schedules on disk: for each description on each device the schedule that was fastest.

Its key holds what the choice depends on: the canonical description with extents, strides, types, alignments and
functions; the device, driver, torch and Triton. The schedule is stored with the digest of the code of its family and
of the families of its steps (`weft.planner.code_digest`). A schedule whose code has changed since, or that is no longer
legal, counts as absent, and nothing in the cache can break a plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.base.bounded_cache import BoundedCache
from weft.machine.store import Store, number
from weft.planner.code_digest import of_schedule
from weft.planner.registry import beside
from weft.planner.restored import restored
from weft.planner.schedule import Description, Origin, Schedule, Target
from weft.planner.serialization import NotSerializable, serialize_description, serialize_schedule
from weft.planner.validity import environment, here, now, outdate

if TYPE_CHECKING:
    from weft.planner.planner import Choice

FORMAT = 2  # of keys and values
ROOM = "schedules"  # of the store

_here = BoundedCache(4096)  # choices that this process has tuned, or found tuned and loaded


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """The fastest schedule that a tuning found, and the model's choice alongside it; seconds are medians."""

    schedule: Schedule
    seconds: float
    model: Schedule
    model_seconds: float
    tried: int  # candidates that were measured


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
        "description": serialized,
        "workspace_limit": workspace_limit,
    }


def remember(choice: Choice, workspace_limit: int | None, fastest: TunedSchedule) -> bool:
    """Store the tuned schedule of a choice's description; whether it has a key to be stored under."""
    outdate()
    place = key(choice.description, choice.backend, choice.target, workspace_limit)
    if place is None:
        return False
    value = {
        **_entry(choice, fastest.schedule, fastest.seconds),
        "model": _entry(choice, fastest.model, fastest.model_seconds),
        "tried": fastest.tried,
        "text": choice.description.text,
        "date": now(),
    }
    Store(ROOM).save(place, value)
    return True


def keep_here(choice: Choice, workspace_limit: int | None) -> None:
    """Note that this process has the kernels of a tuned choice: plans may begin with them, nothing is to be loaded."""
    _here.put(_place_here(choice.description, choice.backend, choice.target, workspace_limit), choice)


def kept_here(description: Description, backend: str, target: Target, workspace_limit: int | None) -> Choice | None:
    """The tuned choice whose kernels this process has; None where there is none."""
    if not _here.keys():  # most processes have tuned nothing
        return None
    found: Choice | None = _here.get(_place_here(description, backend, target, workspace_limit))
    return found


def _place_here(*asked: Any) -> Hashable:
    return (Store(ROOM).directory, *asked)


def is_stored(description: Description, backend: str, target: Target, workspace_limit: int | None) -> bool:
    """Whether a tuned schedule is stored that `recalled` may find; quick, as nothing is planned."""
    if not here(target) or not Store(ROOM).directory.is_dir():
        return False
    places = [key(description, backend, target, limit) for limit in dict.fromkeys((workspace_limit, None))]
    return any(place is not None and Store(ROOM).load(place) is not None for place in places)


def recalled(choice: Choice, workspace_limit: int | None) -> Choice | None:
    """The choice with the stored schedule first, or None where there is none that fits.

    One found under another limit serves as well where its workspace is within this one. A device that is not here
    has none.
    """
    if not here(choice.target) or not Store(ROOM).directory.is_dir():  # where nothing was ever tuned, no key is made
        return None
    for limit in dict.fromkeys((workspace_limit, None)):
        place = key(choice.description, choice.backend, choice.target, limit)
        value = Store(ROOM).load(place) if place is not None else None
        if value is not None and (found := _applied(choice, value, workspace_limit)) is not None:
            return found
    return None


def first(choice: Choice, fastest: TunedSchedule, origin: Origin) -> Choice:
    """A choice with the tuned schedule in the first place, its measured times noted."""
    measured = {fastest.model: fastest.model_seconds, fastest.schedule: fastest.seconds}
    noted = [replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked]
    best = next(rank for rank in noted if rank.schedule == fastest.schedule)
    return replace(choice, best=best, ranked=(best, *(rank for rank in noted if rank is not best)), origin=origin)


def noted(choice: Choice, measured: Mapping[Schedule, float], excluded: Sequence[str]) -> Choice:
    """The choice with further measured times, and with reasons found while measuring."""
    ranked = tuple(replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked)
    return replace(choice, best=ranked[0], ranked=ranked, excluded=(*choice.excluded, *excluded))


def _entry(choice: Choice, schedule: Schedule, seconds: float) -> dict[str, Any]:
    """One schedule as it is stored, with the code that it was measured with."""
    rank = next(rank for rank in choice.ranked if rank.schedule == schedule)
    serialized = serialize_schedule(schedule, choice.description)
    return {
        "schedule": str(schedule), "family": rank.family.__name__, "serialized": serialized, "code": of_schedule(rank),
        "seconds": seconds,
    }  # fmt: skip


def _applied(choice: Choice, value: Any, workspace_limit: int | None) -> Choice | None:
    """The choice that a stored value describes; None where it is not understood, no longer legal or of other code."""
    try:
        choice = _with_stored(choice, workspace_limit, value, value["model"])
        schedule, model = _match(choice, value), _match(choice, value["model"])
        if schedule is None:
            return None
        seconds, model_seconds = number(value["seconds"]), number(value["model"]["seconds"])
        if not seconds or not model_seconds:
            return None
        model_seconds = model_seconds if model else seconds
        fastest = TunedSchedule(schedule, seconds, model or schedule, model_seconds, int(number(value["tried"])))
        return first(choice, fastest, Origin("store", str(value["date"])))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _with_stored(choice: Choice, workspace_limit: int | None, *entries: Mapping[str, Any]) -> Choice:
    """The choice with stored schedules behind its own that are of families which planning does not compare."""
    most = math.inf if workspace_limit is None else workspace_limit
    compared = {rank.family.__name__ for rank in choice.ranked}
    found = [
        restored(entry["serialized"], entry["family"], choice.description, choice.backend, choice.target)
        for entry in entries
        if entry.get("family") in beside(choice.description, choice.target) and entry["family"] not in compared
    ]
    fitting = [rank for rank in found if rank is not None and rank.schedule.workspace_bytes <= most]
    return replace(choice, ranked=tuple(dict.fromkeys((*choice.ranked, *fitting))))


def _match(choice: Choice, entry: Mapping[str, Any]) -> Schedule | None:
    """The legal schedule that an entry is of, if its code is as it was; those whose text agrees are looked at first."""
    for rank in sorted(choice.ranked, key=lambda rank: str(rank.schedule) != entry["schedule"]):
        try:
            if serialize_schedule(rank.schedule, choice.description) == entry["serialized"]:
                return rank.schedule if of_schedule(rank) == entry["code"] else None
        except NotSerializable:
            continue
    return None

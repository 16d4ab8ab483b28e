"""Tuned schedules on disk: for each description on each device the schedule that was fastest.

Its key holds what the choice depends on: the canonical description with extents, strides, types, alignments and
functions; the device, driver, torch and Triton. The schedule is stored with the digest of the code of its family and
of the families of its steps (`weft.planner.keys`). A schedule whose code has changed since, or that is no longer
legal, counts as absent, and nothing in the cache can break a plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from weft.base.caches import BoundedCache
from weft.machine.store import Store, number
from weft.planner.keys import NotSerializable, of_schedule, serialize_description, serialize_schedule
from weft.planner.planner import Choice, offered
from weft.planner.registry import beside, family_names, imported
from weft.planner.schedule import Description, Origin, Ranked, Schedule, Target
from weft.planner.validity import environment, here, now, outdate

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
    return next(_stored(description, backend, target, workspace_limit), None) is not None


def recalled(choice: Choice, workspace_limit: int | None) -> Choice | None:
    """The choice with the stored schedule first, or None where there is none that fits.

    One found under another limit serves as well where its workspace is within this one.
    """
    stored = _stored(choice.description, choice.backend, choice.target, workspace_limit)
    found = (_applied(choice, value, workspace_limit) for value in stored)
    return next((each for each in found if each is not None), None)


def _stored(description: Description, backend: str, target: Target, workspace_limit: int | None) -> Iterator[Any]:
    """The values stored under this limit and under none; a device that is not here has none."""
    if not here(target) or not Store(ROOM).directory.is_dir():  # where nothing was ever tuned, no key is made
        return
    for limit in dict.fromkeys((workspace_limit, None)):
        place = key(description, backend, target, limit)
        value = Store(ROOM).load(place) if place is not None else None
        if value is not None:
            yield value


def first(choice: Choice, fastest: TunedSchedule, origin: Origin) -> Choice:
    """A choice with the tuned schedule in the first place, its measured times noted."""
    ranked = noted(choice, {fastest.model: fastest.model_seconds, fastest.schedule: fastest.seconds}, ()).ranked
    best = next(rank for rank in ranked if rank.schedule == fastest.schedule)
    return replace(choice, best=best, ranked=(best, *(rank for rank in ranked if rank is not best)), origin=origin)


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
    ranked = sorted(choice.ranked, key=lambda rank: str(rank.schedule) != entry["schedule"])
    at = _place_of(entry["serialized"], choice.description, [rank.schedule for rank in ranked])
    return ranked[at].schedule if at is not None and of_schedule(ranked[at]) == entry["code"] else None


def restored(serialized: Any, family: Any, description: Description, backend: str, target: Target) -> Ranked | None:
    """The schedule of a family (its module) with its predicted time, without ranking those of all families.

    None where the family offers no such schedule: whatever a file says, only legal schedules are built.
    """
    known = *family_names(description, backend), *beside(description, target)
    found: Any = imported(family) if family in known else ""
    candidates = found if isinstance(found, str) else offered(found, description, target)
    legal = () if isinstance(candidates, str) else candidates.schedules
    at = _place_of(serialized, description, legal)
    return None if at is None else Ranked(legal[at], found.predict(description, legal[at], target), found)


def _place_of(serialized: Any, description: Description, schedules: Sequence[Schedule]) -> int | None:
    """Which of these schedules was serialized so."""
    for at, schedule in enumerate(schedules):
        with suppress(NotSerializable):
            if serialize_schedule(schedule, description) == serialized:
                return at
    return None

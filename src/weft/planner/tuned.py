"""What tuning found, remembered on disk: for each description on each device the schedule that was fastest.

A winner's key holds everything that the choice depends on: the canonical description with extents, strides, types,
alignments and functions; the device, driver, torch and Triton; and a digest of the code that runs. A winner that is no
longer among the legal schedules counts as absent, and nothing that lies in the cache can break a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.machine.store import Store
from weft.planner.schedule import Description, Origin, Ranked, Schedule, Target
from weft.planner.serialization import Unspellable, spell_description, spell_schedule
from weft.planner.validity import code_digest, environment, here, now, outdate

if TYPE_CHECKING:
    from weft.planner.planner import Choice

FORMAT = 1  # of keys and values
ROOM = "winners"  # of the store

@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest schedule that a tuning found, and the model's choice beside it; seconds are medians."""

    schedule: Schedule
    seconds: float
    model: Schedule
    model_seconds: float
    tried: int  # candidates that were measured


def key(description: Description, backend: str, target: Target, workspace_limit: int | None) -> dict[str, Any] | None:
    """Where the winner for a description lies in the store; None for one that only this process understands."""
    try:
        spelled = spell_description(description)
    except Unspellable:
        return None
    return {
        "what": "winner",
        "format": FORMAT,
        "backend": backend,
        "environment": environment(target),
        "code": code_digest(backend),
        "description": spelled,
        "workspace_limit": workspace_limit,
    }


def remember(choice: Choice, workspace_limit: int | None, winner: Winner) -> bool:
    """Store the winner for a choice's description; whether it has a key to be stored under."""
    outdate()
    place = key(choice.description, choice.backend, choice.target, workspace_limit)
    if place is None:
        return False
    value = {
        "schedule": str(winner.schedule),
        "spelled": spell_schedule(winner.schedule, choice.description),
        "seconds": winner.seconds,
        "model": {
            "schedule": str(winner.model),
            "spelled": spell_schedule(winner.model, choice.description),
            "seconds": winner.model_seconds,
        },
        "tried": winner.tried,
        "text": choice.description.text,
        "date": now(),
    }
    Store(ROOM).save(place, value)
    return True


def recalled(choice: Choice, workspace_limit: int | None) -> Choice | None:
    """The same choice with the stored winner first, or None where there is none that fits.

    A winner found under another limit serves as well where its workspace is within this one. A device that is not here
    has none.
    """
    if not here(choice.target):
        return None
    for limit in dict.fromkeys((workspace_limit, None)):
        place = key(choice.description, choice.backend, choice.target, limit)
        value = Store(ROOM).load(place) if place is not None else None
        if value is not None and (found := _applied(choice, value)) is not None:
            return found
    return None


def first(choice: Choice, winner: Winner, origin: Origin) -> Choice:
    """A choice with a winner in the first place, its measured times noted."""
    measured = {winner.model: winner.model_seconds, winner.schedule: winner.seconds}
    noted = [replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked]
    best = next(rank for rank in noted if rank.schedule == winner.schedule)
    return replace(choice, best=best, ranked=(best, *(rank for rank in noted if rank is not best)), origin=origin)


def noted(choice: Choice, measured: Mapping[Schedule, float], excluded: Sequence[str]) -> Choice:
    """The same choice with further measured times, and with reasons found while measuring."""
    ranked = tuple(replace(rank, measured=measured.get(rank.schedule, rank.measured)) for rank in choice.ranked)
    return replace(choice, best=ranked[0], ranked=ranked, excluded=(*choice.excluded, *excluded))


def _applied(choice: Choice, value: Any) -> Choice | None:
    """The choice that a stored value describes; None where the value is not understood or no longer legal."""
    try:
        schedule = _match(choice.ranked, choice.description, value["spelled"], value["schedule"])
        if schedule is None:
            return None
        model = _match(choice.ranked, choice.description, value["model"]["spelled"], value["model"]["schedule"])
        seconds, model_seconds = float(value["seconds"]), float(value["model"]["seconds"])
        if not (0 < seconds < math.inf and 0 < model_seconds < math.inf):
            return None
        winner = Winner(schedule, seconds, model or schedule, model_seconds if model else seconds, int(value["tried"]))
        return first(choice, winner, Origin("store", str(value["date"])))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _match(ranked: Sequence[Ranked], description: Description, spelled: Any, text: str) -> Schedule | None:
    """The legal schedule that is spelled so; those whose text agrees are looked at first."""
    for rank in sorted(ranked, key=lambda rank: str(rank.schedule) != text):
        try:
            if spell_schedule(rank.schedule, description) == spelled:
                return rank.schedule
        except Unspellable:
            continue
    return None

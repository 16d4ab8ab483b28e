"""Schedules found again from what `weft.planner.serialization` made of them, without ranking those of all families.

A stored schedule counts where a family of the registry offers it for this description and device: whatever else a file
says, only legal schedules are built.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from weft.planner.planner import offered
from weft.planner.registry import beside, family_names, imported
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.serialization import NotSerializable, serialize_schedule


def restored(serialized: Any, family: Any, description: Description, backend: str, target: Target) -> Ranked | None:
    """The schedule of a family (its module) with its predicted time; None where the family offers no such schedule."""
    known = *family_names(description, backend), *beside(description, target)
    module = imported(family) if family in known else None
    if not isinstance(module, ModuleType):
        return None
    found: Any = module
    candidates = offered(found, description, target)
    for schedule in () if isinstance(candidates, str) else candidates.schedules:
        try:
            if serialize_schedule(schedule, description) == serialized:
                return Ranked(schedule, found.predict(description, schedule, target), found)
        except NotSerializable:
            continue
    return None

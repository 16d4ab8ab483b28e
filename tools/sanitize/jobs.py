"""The schedules that are run: for each problem and family, the best of each kind by prediction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sanitize.problems import problems
from weft.gpu.blas import family as blas
from weft.planner.planner import families
from weft.planner.schedule import Description, Schedule, Target

PROCESSORS = 8  # that schedules are made for: persistent programs then take several tiles, and long sums are split
MOST_OF_OTHERS = 2  # of a problem, in families that are made of others' kernels: those are met on their own
MOST_ALIKE = 2  # of all problems: of one kind, types of numbers, and hooks that have functions
IN_PLACE = "transpose"  # a family that is not planned: matrices transposed where they lie
MATRICES = ((300, 300), (200, 300), (1500, 1700))  # a square, one by way of the workspace, one decomposed


@dataclass(frozen=True, slots=True)
class Job:
    """One schedule of one problem."""

    problem: str
    description: Description
    room: Any
    schedule: Schedule

    def __str__(self) -> str:
        return f"{self.problem}: {self.schedule}"

    def build(self, target: Target) -> Any:
        return self.room.build(self.description, self.schedule, target)


def small_target(target: Target) -> Target:
    """A GPU as if it had few processors."""
    return replace(target, processors=PROCESSORS)


def kind(schedule: Schedule) -> str:
    """A schedule's text without its numbers and modes: what decides which parts of a kernel are compiled."""
    text = str(schedule)
    parts = " in parts" if "+" in text else ""
    warps = f" {getattr(schedule, 'warps', '')} warps"
    return re.sub(r"\[[^]]*\]|\d+", "", text) + parts + warps


def jobs(target: Target, wanted: Callable[[str], bool], among: Collection[str] | None = None) -> Iterator[Job]:
    """Jobs of the families that are wanted; `among`: those of these names alone."""
    alike: Counter[Hashable] = Counter()
    names = {name.partition(": ")[0] for name in among} if among is not None else None
    for name, describe in problems().items():
        if names is not None and name not in names:
            continue
        description = describe()
        for room, schedule in _schedules(description, target, wanted):
            job = Job(name, description, room, schedule)
            if among is not None:
                if str(job) in among:
                    yield job
                continue
            alike[traits := _traits(description, schedule)] += 1
            if alike[traits] <= MOST_ALIKE:
                yield job


def _schedules(
    description: Description, target: Target, wanted: Callable[[str], bool]
) -> Iterator[tuple[Any, Schedule]]:
    """The best of each kind by prediction, of each family."""
    for room in families(description, "triton"):
        if room.NAME == blas.NAME or not wanted(room.NAME) or room.supports(description, target) is not None:
            continue
        legal = room.schedules(description, target).schedules
        seconds = {schedule: room.predict(description, schedule, target) for schedule in legal}
        kinds: dict[str, Schedule] = {}
        for schedule in sorted(legal, key=seconds.__getitem__):
            if blas.NAME not in str(schedule).split():
                kinds.setdefault(kind(schedule), schedule)
        found = list(kinds.values())
        yield from ((room, each) for each in (found[:MOST_OF_OTHERS] if _is_composite(found) else found))


def _is_composite(schedules: Sequence[Schedule]) -> bool:
    return bool(schedules) and any(hasattr(schedules[0], name) for name in ("product", "steps"))


def _traits(description: Description, schedule: Schedule) -> Hashable:
    """The traits, besides the kind of a schedule, that decide which parts of a kernel are compiled."""
    hooks = ("fn", "a_fn", "b_fn", "c_fn", "epilogue", "c", "aux", "algebra")
    there = tuple(bool(getattr(description, hook, None)) for hook in hooks)
    return kind(schedule), description.d.dtype, str(getattr(description, "arithmetic", "")), there

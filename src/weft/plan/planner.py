"""From a description to the schedule that computes it: collect candidates, rank them, take the best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from weft.errors import UnsupportedError, WorkspaceError
from weft.plan.schedule import Description, Ranked, ResourceError, Target
from weft.spec.permutation import Permutation

# The rooms of each backend, imported when first asked: the Triton ones must not be imported with weft.
FAMILIES = {
    "triton": (
        "weft.kernels.library",
        "weft.kernels.packed",
        "weft.kernels.matrix",
        "weft.kernels.vector",
        "weft.plan.reduced",
    ),
    "cpu": ("weft.cpu", "weft.plan.reduced"),
}
PERMUTATION_FAMILIES = {
    "triton": ("weft.kernels.permute",),
    "cpu": ("weft.cpu.permute",),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen schedule, what else could have been chosen (best first), and why the rest could not."""

    description: Description
    backend: str
    target: Target
    best: Ranked
    ranked: tuple[Ranked, ...]
    excluded: tuple[str, ...] = field(default=())

    def build(self) -> Any:
        """Build the best schedule: a launch. `ResourceError` when the device cannot hold it."""
        rooms = {room.NAME: room for room in families(self.description, self.backend)}
        return rooms[self.best.schedule.family].build(self.description, self.best.schedule, self.target)

    def built(self) -> tuple[Choice, Any]:
        """The best schedule that the device can hold, built, and the choice without those that it cannot."""
        choice = self
        while True:
            try:
                return choice, choice.build()
            except ResourceError as error:
                reason = f"{choice.best.schedule}: {error}"
                rest = choice.ranked[1:]
                if not rest:
                    raise UnsupportedError(f"no schedule fits the device: {reason}") from None
                choice = replace(choice, best=rest[0], ranked=rest, excluded=(*choice.excluded, reason))


def families(description: Description, backend: str) -> list[ModuleType]:
    rooms = PERMUTATION_FAMILIES if isinstance(description, Permutation) else FAMILIES
    return [import_module(name) for name in rooms[backend]]


def choose(description: Description, backend: str, target: Target, workspace_limit: int | None = None) -> Choice:
    """Rank every legal schedule by predicted time.

    Raises `UnsupportedError` when no family can do it and `WorkspaceError` when only schedules over
    `workspace_limit` bytes could; both say each family's reason.
    """
    ranked: list[Ranked] = []
    excluded: list[str] = []
    least_workspace: int | None = None
    for family in families(description, backend):
        reason = family.supports(description, target)
        if reason is not None:
            excluded.append(f"{family.NAME}: {reason}")
            continue
        candidates = family.schedules(description, target)
        excluded.extend(f"{family.NAME}: {sentence}" for sentence in candidates.excluded)
        for schedule in candidates.schedules:
            if workspace_limit is not None and schedule.workspace_bytes > workspace_limit:
                least_workspace = min(least_workspace or schedule.workspace_bytes, schedule.workspace_bytes)
                continue
            ranked.append(Ranked(schedule, family.predict(description, schedule, target)))
    if not ranked:
        if least_workspace is not None:
            raise WorkspaceError(
                f"the plan that needs least takes {least_workspace} bytes of workspace, the limit is {workspace_limit}"
            )
        raise UnsupportedError(f"the {backend} backend cannot do this: {'; '.join(excluded)}")
    ranked.sort(key=lambda candidate: candidate.seconds)
    return Choice(description, backend, target, ranked[0], tuple(ranked), tuple(excluded))

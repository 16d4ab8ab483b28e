"""From a contraction to the schedule that computes it: collect candidates, rank them, take the best."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from weft.errors import UnsupportedError, WorkspaceError
from weft.plan.schedule import Launch, Ranked, Target
from weft.spec import Contraction

# The rooms of each backend, imported when first asked: the Triton ones must not be imported with weft.
FAMILIES = {
    "triton": ("weft.kernels.library", "weft.kernels.matrix", "weft.kernels.vector"),
    "cpu": ("weft.cpu",),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen schedule, what else could have been chosen (best first), and why the rest could not."""

    contraction: Contraction
    backend: str
    target: Target
    best: Ranked
    ranked: tuple[Ranked, ...]
    excluded: tuple[str, ...] = field(default=())

    def build(self) -> Launch:
        rooms = {room.NAME: room for room in families(self.backend)}
        return rooms[self.best.schedule.family].build(self.contraction, self.best.schedule, self.target)


def families(backend: str) -> list[ModuleType]:
    return [import_module(name) for name in FAMILIES[backend]]


def choose(contraction: Contraction, backend: str, target: Target, workspace_limit: int | None = None) -> Choice:
    """Rank every legal schedule by predicted time.

    Raises `UnsupportedError` when no family can do it and `WorkspaceError` when only schedules over
    `workspace_limit` bytes could; both say each family's reason.
    """
    ranked: list[Ranked] = []
    excluded: list[str] = []
    least_workspace: int | None = None
    for family in families(backend):
        reason = family.supports(contraction, target)
        if reason is not None:
            excluded.append(f"{family.NAME}: {reason}")
            continue
        candidates = family.schedules(contraction, target)
        excluded.extend(f"{family.NAME}: {sentence}" for sentence in candidates.excluded)
        for schedule in candidates.schedules:
            if workspace_limit is not None and schedule.workspace_bytes > workspace_limit:
                least_workspace = min(least_workspace or schedule.workspace_bytes, schedule.workspace_bytes)
                continue
            ranked.append(Ranked(schedule, family.predict(contraction, schedule, target)))
    if not ranked:
        if least_workspace is not None:
            raise WorkspaceError(
                f"the plan that needs least takes {least_workspace} bytes of workspace, the limit is {workspace_limit}"
            )
        raise UnsupportedError(f"the {backend} backend cannot do this: {'; '.join(excluded)}")
    ranked.sort(key=lambda candidate: candidate.seconds)
    return Choice(contraction, backend, target, ranked[0], tuple(ranked), tuple(excluded))

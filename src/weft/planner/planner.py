"""From a description to the schedule that computes it: collect candidates, rank them, take the best.

`choose` goes by the cost model alone; `select` lets measured times decide where they are known or requested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from weft.errors import UnsupportedError, WorkspaceError
from weft.planner.coefficients import coefficients
from weft.planner.registry import blames_triton, families, family_names, first_line, missing, versions
from weft.planner.schedule import Candidates, Description, Origin, Ranked, ResourceError, Target, is_invariant
from weft.planner.verdicts import failures
from weft.spec.permutation import Permutation


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen schedule, what else could have been chosen (best first), and why the rest could not."""

    description: Description
    backend: str
    target: Target
    best: Ranked
    ranked: tuple[Ranked, ...]
    excluded: tuple[str, ...] = field(default=())
    origin: Origin = field(default=Origin("model"), compare=False)

    def led_by_each(self, kept: Sequence[Ranked]) -> Iterator[Choice]:
        """The choice with each of these as its best schedule; those behind it serve where the device cannot hold it."""
        for at, best in enumerate(kept):
            yield replace(self, best=best, ranked=tuple(kept[at:]))

    def build(self) -> Any:
        """Build the best schedule: a launch. `ResourceError` when the device cannot hold it."""
        return self.best.build(self.description, self.target)

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

    def built_as_a_step(self) -> tuple[Choice, Any]:
        """`built` for a step of another schedule, which counts on its workspace: none that takes more is built.

        `ResourceError` when the device can hold none: then the whole schedule is not for it.
        """
        counted = self.best.schedule.workspace_bytes
        fitting = tuple(rank for rank in self.ranked if rank.schedule.workspace_bytes <= counted)
        try:
            return replace(self, ranked=fitting).built()
        except UnsupportedError as error:
            raise ResourceError(str(error)) from None


def choose(
    description: Description,
    backend: str,
    target: Target,
    workspace_limit: int | None = None,
    without: Collection[str] = (),
) -> Choice:
    """Rank every legal schedule by predicted time; the families named in `without` are left out.

    Raises `UnsupportedError` when no family can do it and `WorkspaceError` when only schedules over
    `workspace_limit` bytes could; both say each family's reason.
    """
    if isinstance(description, Permutation):
        # Ways to stage operands share most of their permutations. Their texts may differ, which are for messages.
        factors = tuple(sorted(coefficients(target).families.items()))
        failed = tuple(failures(backend, target, family_names(description, backend)).items())
        found = _permutation(description, backend, target, workspace_limit, tuple(without), factors, failed)
        return replace(found, description=description)
    return _chosen(description, backend, target, workspace_limit, without)


@lru_cache(maxsize=1024)
def _permutation(
    description: Permutation,
    backend: str,
    target: Target,
    workspace_limit: int | None,
    without: tuple[str, ...],
    factors: tuple[tuple[str, float], ...],
    failed: tuple[tuple[str, str], ...],
) -> Choice:
    """`choose` for a permutation; the order depends on the device's `factors`, and on what has `failed` there."""
    return _chosen(description, backend, target, workspace_limit, without)


def _chosen(
    description: Description, backend: str, target: Target, workspace_limit: int | None, without: Collection[str]
) -> Choice:
    found = [family for family in families(description, backend) if family.NAME not in without]
    return choose_among(found, description, backend, target, workspace_limit, missing(description, backend))


def choose_among(
    found: Sequence[Any],
    description: Description,
    backend: str,
    target: Target,
    workspace_limit: int | None = None,
    broken: Sequence[str] = (),
) -> Choice:
    """`choose` among these families; `broken` are sentences about families that cannot be imported."""
    ranked: list[Ranked] = []
    excluded: list[str] = []
    least_workspace: int | None = None
    failed = failures(backend, target, tuple([family.__name__ for family in found]))
    broken = list(broken)  # these sentences come first: they tell of faults
    if is_invariant(description):
        found = [family for family in found if hasattr(family, "adds_in_order")]
        broken.append("the bits of other families and schedules depend on extents")
    for family in found:
        if family.__name__ in failed:
            broken.append(f"{family.NAME}: {failed[family.__name__]}")
            continue
        candidates = offered(family, description, target)
        if isinstance(candidates, str):
            excluded.append(f"{family.NAME}: {candidates}")
            continue
        factor = coefficients(target).families.get(family.NAME, 1.0)
        excluded.extend(f"{family.NAME}: {sentence}" for sentence in candidates.excluded)
        for schedule in candidates.schedules:
            if workspace_limit is not None and schedule.workspace_bytes > workspace_limit:
                least = schedule.workspace_bytes
                least_workspace = least if least_workspace is None else min(least_workspace, least)
                continue
            ranked.append(Ranked(schedule, factor * family.predict(description, schedule, target), family))
    if not ranked:
        if least_workspace is not None:
            raise WorkspaceError(
                f"the plan that needs least takes {least_workspace} bytes of workspace, the limit is {workspace_limit}"
            )
        raise UnsupportedError(f"the {backend} backend cannot do this: {'; '.join((*broken, *excluded))}")
    ranked.sort(key=attrgetter("seconds"))
    return Choice(description, backend, target, ranked[0], tuple(ranked), (*broken, *excluded))


def offered(family: Any, description: Description, target: Target) -> Candidates | str:
    """Schedules of a family for a description, or why there are none."""
    try:
        reason: str | None = family.supports(description, target)
        if reason is not None:
            return reason
        found: Candidates = family.schedules(description, target)
        if is_invariant(description):
            kept = tuple(each for each in found.schedules if family.adds_in_order(description, each))
            found = replace(found, schedules=kept)
        return found
    except UnsupportedError as error:  # of a step that no family is left for
        return str(error)
    except (ImportError, AttributeError) as error:
        if not blames_triton(error):
            raise
        return f"it does not work under {versions('triton')} ({first_line(error)})"

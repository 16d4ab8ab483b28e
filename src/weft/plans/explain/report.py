"""The text of `explain`: the operation, its cost, the roof above it, and the choice that was made.

A contraction and a permutation have the same sections. `weft.plans.explain.contraction` and
`weft.plans.explain.permutation` say what is particular to each; what follows from the choice is said here.
"""

from __future__ import annotations

from typing import Any

from weft.base.figures import duration, share, si
from weft.machine.roofline import Floor
from weft.planner.planner import Choice
from weft.planner.promotion import Tier
from weft.planner.request import Request
from weft.planner.schedule import Description
from weft.plans.explain import contraction, permutation
from weft.plans.explain.ceilings import known_ceilings
from weft.plans.explain.lines import device_of, section
from weft.spec.permutation import Permutation

CANDIDATES_SHOWN = 4
EXCLUSIONS_SHOWN = 6


def explain(
    request: Request,
    description: Description,
    choice: Choice | None,
    tier: Tier | None = None,
    behind: str | None = None,
) -> str:
    """The text of a plan's `explain`, at most forty lines.

    `description` is the canonical form that was planned. `choice` is None for the reference backend, which chooses
    nothing. `tier` says which kind of kernel serves, `behind` what its passes do. Nothing is measured here:
    ceilings are those kept from an earlier measurement, or a datasheet's.
    """
    about: Any = permutation if isinstance(description, Permutation) else contraction
    known, unknown = known_ceilings(request.target)
    floor = about.floor(description, known) if known is not None else None
    sections = {
        "modes": about.modes(description),
        "types": about.types(description),
        "fused": about.fused(request, description),
        "work": about.work(description),
        "roof": about.roof(description, known, floor) if floor is not None else [unknown],
        "plan": _plan(request.workspace_limit, description, choice, floor),
        "tier": _tier(tier, choice, behind) if tier is not None and choice is not None else [],
        "candidates": _candidates(choice),
        "excluded": _excluded(choice, request.workspace_limit),
    }
    lines = [line for name, found in sections.items() for line in section(name, found)]
    head, formula = about.operation(request, description)
    return "\n".join([f"{head}  by the {request.backend} backend on {device_of(request)}", f"  {formula}", *lines])


def _plan(
    workspace_limit: int | None, description: Description, choice: Choice | None, floor: Floor | None
) -> list[str]:
    if choice is None:
        return ["the oracle in float64, complex128 or int64: nothing is chosen and no time is predicted"]
    best = choice.best
    how = {"model": " (not tuned)", "forced": " (forced by schedule=)"}.get(choice.origin.source, "")
    of_host = f" on the device, {duration(best.host)} on the host" if best.host else ""
    predicted = f"predicted {duration(best.seconds)}{of_host}{how}"
    if floor is not None and floor.seconds > best.seconds:
        predicted += " (under the floor: the model or the ceilings are off on this machine)"
    elif floor is not None:
        predicted += f", of which the floor is {share(floor.efficiency(best.seconds))}"
    limit = f" (limit {si(workspace_limit, 'B')})" if workspace_limit is not None else ""
    predicted += f"; workspace_bytes = {best.schedule.workspace_bytes}{limit}"
    lines = [str(best.schedule), predicted, *_tiles(description, choice)]
    return lines if choice.origin.source in ("model", "forced") else [*lines, _measured(choice, floor)]


def _tiles(description: Description, choice: Choice) -> list[str]:
    if isinstance(description, Permutation) or not (found := contraction.tiles(description, choice.best.schedule)):
        return []
    covered, useful, padding = " x ".join(map(str, found["covered"])), share(found["useful"]), found["padding"]
    than = f": whole tiles would take {si(padding, 'B')} more" if padding else ""
    return [f"tiles cover {covered}: {useful} of the products are useful; nothing is padded{than}"]


def _tier(tier: Tier, choice: Choice, behind: str | None) -> list[str]:
    """Which tier serves, why, what computes functions there, and from which call on another tier does."""
    lines = [f"{tier.name}: {tier.why}", *([f"passes: {behind}"] if behind is not None else [])]
    if tier.look_at is not None:
        lines.append(f"call {tier.look_at} looks for a better kernel")
    elif tier.switch_at is not None:
        lines.append(f"{tier.then} from call {tier.switch_at} on, predicted to take {duration(tier.better)}; prepared "
                     f"alongside from call {tier.early} on")  # fmt: skip
    return lines


def _measured(choice: Choice, floor: Floor | None) -> str:
    """The seconds that a tuning measured of the chosen schedule, and when."""
    seconds, origin = choice.best.measured, choice.origin
    how = "tuned just now" if origin.source == "tuned" else f"stored by the tuning of {origin.date[:10]}"
    if seconds is None:
        return how
    part = ""
    if floor is not None and seconds < floor.seconds:
        part = ", under the floor: the ceilings were measured low (`weft info --refresh` measures them anew)"
    elif floor is not None:
        part = f", of which the floor is {share(floor.efficiency(seconds))}"
    return f"measured {duration(seconds)}{part}; {how}"


def _candidates(choice: Choice | None) -> list[str]:
    if choice is None:
        return []
    shown = choice.ranked[:CANDIDATES_SHOWN]
    times = [duration(candidate.seconds) for candidate in shown]
    if any(candidate.measured is not None for candidate in shown):
        found = [duration(each.measured) if each.measured is not None else "unknown" for each in shown]
        times = [f"{time} predicted, {measured} measured" for time, measured in zip(times, found, strict=True)]
    width = max(map(len, times))
    lines = [f"{time:>{width}}  {candidate.schedule}" for time, candidate in zip(times, shown, strict=True)]
    rest = len(choice.ranked) - len(shown)
    return [*lines, f"... and {rest} {'slower ones' if choice.origin.source == 'model' else 'more'}"] if rest else lines


def _excluded(choice: Choice | None, workspace_limit: int | None) -> list[str]:
    if choice is None:
        return []
    sentences = list(choice.excluded)
    if workspace_limit is not None:
        sentences.insert(0, f"schedules that need more than {workspace_limit} bytes of workspace")
    rest = len(sentences) - EXCLUSIONS_SHOWN
    return [*sentences[:EXCLUSIONS_SHOWN], f"... and {rest} more"] if rest > 0 else sentences

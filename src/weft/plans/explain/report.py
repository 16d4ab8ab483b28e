"""The report of a plan, as text, as data and as a notebook shows it: the operation, its cost, the roof, the choice.

A contraction and a permutation have the same sections. `weft.plans.explain.contraction` and
`weft.plans.explain.permutation` say what is particular to each; what follows from the choice is said here.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.base.figures import duration, share, si, table
from weft.machine.ceilings import Ceilings
from weft.machine.counts import Work
from weft.machine.roofline import Floor
from weft.planner.planner import Choice
from weft.planner.promotion import Tier
from weft.planner.request import Request
from weft.planner.schedule import Description, Schedule
from weft.plans.explain import contraction, permutation
from weft.plans.explain.lines import device_of, function_name, known_ceilings, section
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

CANDIDATES_SHOWN = 4
EXCLUSIONS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class ModeReport:
    """One canonical mode: its labels, its extent, its role and its stride in each tensor (0: absent)."""

    name: str
    extent: int
    role: str  # "batch", "m", "n" or "k"; "" in a permutation
    strides: dict[str, int]  # elements


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One schedule that could be chosen, best first. `schedule=` of a call takes `schedule` or `text`."""

    text: str
    family: str
    predicted_seconds: float
    measured_seconds: float | None
    workspace_bytes: int
    schedule: Schedule = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `explain` says; seconds, bytes and flops of one call.

    `floor_seconds`, `floor_binds` and `ceilings` are None where the device's ceilings are not known. `source` says who
    chose: "model", "store" (an earlier tuning), "tuned", "forced" or "reference", which chooses nothing.
    """

    equation: str
    backend: str
    device: str
    modes: tuple[ModeReport, ...]
    types: dict[str, str]  # of each tensor by name, and of "products" and "sums"
    functions: dict[str, str]  # by hook
    flops: int  # of products and sums
    function_flops: int
    bytes_read: int  # compulsory
    bytes_written: int
    intensity: float  # flops per byte
    floor_seconds: float | None
    floor_binds: str | None  # "compute", "memory" or "launch"
    ceilings: str | None  # "measured" or "datasheet"
    schedule: str | None
    family: str | None
    source: str
    tuned_on: str  # date, "" where nothing was tuned
    predicted_seconds: float | None  # of the device
    host_seconds: float | None  # predicted, of the library tier on a GPU: a call takes the longer of the two
    measured_seconds: float | None
    workspace_bytes: int
    workspace_limit: int | None
    useful_share: float | None  # of the products that the schedule's tiles make; None where it has none
    padding_bytes: int | None  # that whole tiles would take: nothing is padded
    candidates: tuple[CandidateReport, ...]
    excluded: tuple[str, ...]  # one sentence for each rule that excludes something

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: schedules are text, an infinite intensity is None."""
        apart = ("modes", "candidates")
        shallow = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in apart}
        shallow["intensity"] = self.intensity if math.isfinite(self.intensity) else None
        shallow["excluded"] = list(self.excluded)
        shallow["modes"] = [asdict(mode) for mode in self.modes]
        names = [name for name in CandidateReport.__dataclass_fields__ if name != "schedule"]
        shallow["candidates"] = [{name: getattr(each, name) for name in names} for each in self.candidates]
        return shallow

    def _repr_html_(self) -> str:
        """HTML for a notebook: what is computed, what it costs, what was chosen, and what else could have been."""
        heads = ("", "schedule", "predicted", "measured", "workspace")
        candidates = [
            (
                at, each.text, duration(each.predicted_seconds),
                "" if each.measured_seconds is None else duration(each.measured_seconds), si(each.workspace_bytes, "B"),
            )
            for at, each in enumerate(self.candidates[:CANDIDATES_SHOWN], 1)
        ]  # fmt: skip
        return table(_rows(self)) + (table(candidates, heads) if candidates else "")


def _rows(found: Report) -> list[tuple[str, str]]:
    """The table of a notebook."""
    modes = [f"{mode.name}={mode.extent}" + (f" ({mode.role})" if mode.role else "") for mode in found.modes]
    rows = [
        ("equation", found.equation),
        ("device", f"{found.device}, {found.backend} backend"),
        ("modes", ", ".join(modes)),
        ("types", ", ".join(f"{name} {dtype}" for name, dtype in found.types.items())),
    ]
    if found.functions:
        rows.append(("fused", ", ".join(f"{hook}: {name}" for hook, name in found.functions.items())))
    rows.append(("work", f"{si(found.flops, 'flop')}, {si(found.bytes_read + found.bytes_written, 'B')} of traffic"))
    if found.floor_seconds is not None:
        binds = f"{found.floor_binds} binds ({found.ceilings} ceilings)"
        rows.append(("floor", f"{duration(found.floor_seconds)}, {binds}"))
    if found.schedule is not None:
        rows.append(("schedule", f"{found.schedule} (by {found.source})"))
    if found.predicted_seconds is not None:
        of_floor = found.floor_seconds / found.predicted_seconds if found.floor_seconds else None
        reached = f", {share(of_floor)} of the floor's speed" if of_floor is not None and of_floor <= 1 else ""
        of_host = f", {duration(found.host_seconds)} on the host" if found.host_seconds is not None else ""
        rows.append(("predicted", duration(found.predicted_seconds) + reached + of_host))
    rows.append(("workspace", si(found.workspace_bytes, "B")))
    return rows


def _seen(request: Request, description: Description) -> tuple[Any, Ceilings | None, Floor | None, str]:
    """The module of a description's sections; the ceilings over it and its floor, or why there are none."""
    about: Any = permutation if isinstance(description, Permutation) else contraction
    known, unknown = known_ceilings(request.target)
    return about, known, about.floor(description, known) if known is not None else None, unknown


def report(request: Request, description: Description, choice: Choice | None) -> Report:
    """The report of a request, of its canonical form, and of what was chosen (None: the reference backend)."""
    about, known, floor, _ = _seen(request, description)
    work: Work = about.needed(description)
    types = {name: dtype_name(layout.dtype) for name, _, layout in about.tensors(description)}
    tiles: dict[str, Any] = {}
    if isinstance(description, Contraction):
        arithmetic = description.arithmetic
        types |= {"products": dtype_name(arithmetic.product), "sums": dtype_name(arithmetic.accumulate)}
        tiles = contraction.tiles(description, choice.best.schedule) if choice is not None else {}
    raw = zip(about.HOOKS, request.functions.raw, strict=False)
    return Report(
        equation=request.text,
        backend=request.backend,
        device=device_of(request),
        modes=tuple(
            ModeReport(
                name=mode.name,
                extent=mode.extent,
                role="" if isinstance(description, Permutation) else mode.role.value,
                strides={name: mode.strides[at] for name, at, _ in about.tensors(description)},
            )
            for mode in description.modes
        ),
        types=types,
        functions={hook: function_name(function) for hook, function in raw if function is not None},
        flops=work.flops,
        function_flops=work.function_flops,
        bytes_read=work.reads,
        bytes_written=work.writes,
        intensity=work.intensity,
        floor_seconds=floor.seconds if floor is not None else None,
        floor_binds=floor.binds if floor is not None else None,
        ceilings=known.source if known is not None else None,
        **_chosen(choice),
        workspace_limit=request.workspace_limit,
        useful_share=tiles.get("useful"),
        padding_bytes=tiles.get("padding"),
    )


def _chosen(choice: Choice | None) -> dict[str, Any]:
    """The fields that a choice decides."""
    if choice is None:
        nothing = dict.fromkeys(("schedule", "family", "predicted_seconds", "host_seconds", "measured_seconds"))
        return {
            **nothing, "source": "reference", "tuned_on": "", "workspace_bytes": 0, "candidates": (), "excluded": (),
        }  # fmt: skip
    best = choice.best
    return {
        "schedule": str(best.schedule),
        "family": best.schedule.family,
        "source": choice.origin.source,
        "tuned_on": choice.origin.date,
        "predicted_seconds": best.seconds,
        "host_seconds": best.host or None,
        "measured_seconds": best.measured,
        "workspace_bytes": best.schedule.workspace_bytes,
        "candidates": tuple(
            CandidateReport(
                str(rank.schedule), rank.schedule.family, rank.seconds, rank.measured, rank.schedule.workspace_bytes,
                rank.schedule,
            )
            for rank in choice.ranked
        ),
        "excluded": choice.excluded,
    }  # fmt: skip


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
    about, known, floor, unknown = _seen(request, description)
    sections = {
        "modes": about.modes(description),
        "types": about.types(description),
        "fused": about.fused(request, description),
        "work": about.work(description),
        "roof": about.roof(description, known, floor) if floor is not None else [unknown],
        "plan": ["the oracle in float64, complex128 or int64: nothing is chosen and no time is predicted"],
    }
    if choice is not None:
        sections |= {
            "plan": _plan(request.workspace_limit, description, choice, floor),
            "tier": _tier(tier, behind) if tier is not None else [],
            "candidates": _candidates(choice),
            "excluded": _excluded(choice, request.workspace_limit),
        }
    lines = [line for name, found in sections.items() for line in section(name, found)]
    head, formula = about.operation(request, description)
    return "\n".join([f"{head}  by the {request.backend} backend on {device_of(request)}", f"  {formula}", *lines])


def _plan(workspace_limit: int | None, description: Description, choice: Choice, floor: Floor | None) -> list[str]:
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


def _tier(tier: Tier, behind: str | None) -> list[str]:
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


def _candidates(choice: Choice) -> list[str]:
    shown = choice.ranked[:CANDIDATES_SHOWN]
    times = [duration(candidate.seconds) for candidate in shown]
    if any(candidate.measured is not None for candidate in shown):
        found = [duration(each.measured) if each.measured is not None else "unknown" for each in shown]
        times = [f"{time} predicted, {measured} measured" for time, measured in zip(times, found, strict=True)]
    width = max(map(len, times))
    lines = [f"{time:>{width}}  {candidate.schedule}" for time, candidate in zip(times, shown, strict=True)]
    rest = len(choice.ranked) - len(shown)
    return [*lines, f"... and {rest} {'slower ones' if choice.origin.source == 'model' else 'more'}"] if rest else lines


def _excluded(choice: Choice, workspace_limit: int | None) -> list[str]:
    sentences = list(choice.excluded)
    if workspace_limit is not None:
        sentences.insert(0, f"schedules that need more than {workspace_limit} bytes of workspace")
    rest = len(sentences) - EXCLUSIONS_SHOWN
    return [*sentences[:EXCLUSIONS_SHOWN], f"... and {rest} more"] if rest > 0 else sentences

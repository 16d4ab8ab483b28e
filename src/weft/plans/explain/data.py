"""Reports of plans as data: a `Report`, which `to_dict` makes plain JSON values of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.machine.counts import Work
from weft.machine.roofline import Floor
from weft.planner.planner import Choice
from weft.planner.request import Request
from weft.planner.schedule import Description, Schedule
from weft.plans.explain import contraction, permutation
from weft.plans.explain.ceilings import known_ceilings
from weft.plans.explain.lines import device_of, function_name
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation


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
        shallow = {
            name: value
            for name, value in ((name, getattr(self, name)) for name in self.__dataclass_fields__)
            if name not in ("modes", "candidates")
        }
        shallow["intensity"] = self.intensity if math.isfinite(self.intensity) else None
        shallow["excluded"] = list(self.excluded)
        shallow["modes"] = [asdict(mode) for mode in self.modes]
        names = [name for name in CandidateReport.__dataclass_fields__ if name != "schedule"]
        shallow["candidates"] = [{name: getattr(each, name) for name in names} for each in self.candidates]
        return shallow

    def _repr_html_(self) -> str:
        """HTML for a notebook."""
        from weft.plans.explain.page import shown

        return shown(self)


def report(request: Request, description: Description, choice: Choice | None) -> Report:
    """The report of a request, of its canonical form, and of what was chosen (None: the reference backend)."""
    moves = isinstance(description, Permutation)
    about: Any = permutation if moves else contraction
    known, _ = known_ceilings(request.target)
    work: Work = about.needed(description)
    floor: Floor | None = about.floor(description, known) if known is not None else None
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
                role="" if moves else mode.role.value,
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

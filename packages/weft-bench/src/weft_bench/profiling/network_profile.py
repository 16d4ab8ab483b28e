"""The profile of a network: time, floor, and every step with its time beside the predicted one.

`NetworkProfile` is data: it prints itself, makes JSON, and a page. What could not be had is in `missing`, with the
reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from weft.base.figures import counted, duration, share, si
from weft.errors import WeftError
from weft.machine.statistics import Interval, summarise
from weft.plans.explain.lines import aligned
from weft.plans.explain.lines import section as lines_of
from weft_bench.profiling.launches import Launch
from weft_bench.profiling.page import JSON_FILE, PAGE_FILE
from weft_bench.profiling.threats import of_network
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, disclosure, page, section
from weft_bench.report.threats import TITLE, paragraphs

FORMAT = 1
MOST_STEPS = 20  # that the text lists, those that take longest

_STEPS = (
    "One row a step, by the time that it takes in all slices: the median of one run with operands in the caches, the "
    "interval that holds it with 95 % confidence, what was predicted, and the least time that the ceilings allow. "
    "Equal steps are timed once."
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step. Times in seconds, flops and compulsory bytes are of one run."""

    node: int  # that it makes
    of: tuple[int, int]
    equation: str
    times: int  # that it runs in a call: once for each slice, or once for all
    seconds: float  # the median
    low: float
    high: float
    predicted: float
    floor: float | None  # None without ceilings
    flops: int
    bytes: int
    schedule: str

    @property
    def total(self) -> float:
        """Seconds in a whole call."""
        return self.times * self.seconds


@dataclass
class NetworkProfile:
    """The measurements of one network. Times in seconds, work in flops and bytes."""

    about: str
    device: str
    date: str = ""
    slices: int = 1
    sliced: list[str] = field(default_factory=list)
    samples: tuple[float, ...] = ()  # seconds of a call; empty where it would take too long
    slice_samples: tuple[float, ...] = ()  # seconds of a slice; empty without slices
    timing: dict[str, Any] = field(default_factory=dict)  # how they were taken
    flops: int = 0  # along the path, of all slices
    bytes: int = 0  # compulsory: operands and result
    floor: dict[str, Any] = field(default_factory=dict)  # seconds by cause, what binds; empty without ceilings
    predicted: float = 0.0  # of a call: the sum of the steps'
    steps: list[StepTime] = field(default_factory=list)  # in the order in which they run
    launches: list[Launch] = field(default_factory=list)
    energy: dict[str, Any] = field(default_factory=dict)  # see `weft_bench.profiling.energy.Energy.to_dict`
    missing: dict[str, str] = field(default_factory=dict)  # what could not be had, and why
    environment: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def seconds(self) -> Interval:
        """A call: the median with its 95 % interval; where no call was timed, reckoned from a slice."""
        if self.samples:
            return _interval(self.samples)
        each = _interval(self.slice_samples)
        once = sum(step.seconds for step in self.steps if step.times == 1)
        return Interval(*(once + self.slices * value for value in (each.value, each.low, each.high)))

    @property
    def slice_seconds(self) -> Interval | None:
        """A slice, without the steps that run once for all; None where there are no slices."""
        return _interval(self.slice_samples) if self.slice_samples else None

    @property
    def steps_seconds(self) -> float:
        """All steps of a call, one after the other."""
        return sum(step.total for step in self.steps)

    @property
    def share(self) -> float | None:
        """The floor over the time: 1 is the best there can be along this path."""
        return self.floor["seconds"] / self.seconds.value if self.floor else None

    @property
    def ranked(self) -> list[StepTime]:
        """The steps, those first that take longest in a call."""
        return sorted(self.steps, key=lambda step: -step.total)

    @property
    def sentence(self) -> str:
        """Where the time goes, in one sentence."""
        if not self.steps:
            return "a network of one operand has no steps: it is moved or reduced"
        first = self.ranked[0]
        part = share(first.total / self.steps_seconds)
        text = f"step {first.node} ({first.equation}) takes {part} of the steps' time"
        least = first.floor / first.seconds if first.floor is not None else None
        return text if least is None else f"{text}, at {share(least)} of its roof"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them again."""
        entry: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        entry["samples"], entry["slice_samples"] = list(self.samples), list(self.slice_samples)
        entry["steps"] = [{**asdict(step), "of": list(step.of)} for step in self.steps]
        entry["launches"] = [each.to_dict() for each in self.launches]
        entry["seconds"] = asdict(self.seconds)
        entry["share"], entry["sentence"] = self.share, self.sentence
        return entry

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """A profile as it was written; `WeftError` for another format."""
        if saved.get("format") != FORMAT:
            raise WeftError(f"this profile has format {saved.get('format')}, this version of weft reads {FORMAT}")
        entry = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        entry["samples"], entry["slice_samples"] = tuple(entry["samples"]), tuple(entry["slice_samples"])
        entry["steps"] = [StepTime(**{**step, "of": tuple(step["of"])}) for step in entry["steps"]]
        entry["launches"] = [Launch(**each) for each in entry["launches"]]
        return cls(**entry)

    def save(self, folder: Path | str) -> Path:
        """Write ``profile.json`` and the page ``index.html`` into a folder, and return the page's path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / JSON_FILE, json.dumps({"network": self.to_dict()}, indent=1, allow_nan=False) + "\n")
        lead = f"{self.device}, {self.date}. {self.sentence}"
        write_whole(folder / PAGE_FILE, page(f"weft profile {self.about}", lead, [self._repr_html_()]))
        return folder / PAGE_FILE

    def __str__(self) -> str:
        sections = {
            "time": _time(self),
            "roof": _roof(self),
            "steps": _step_lines(self),
            "launches": [f"{duration(each.seconds):>8}  {each.name}" for each in self.launches],
            "missing": [f"{what}: {why}" for what, why in self.missing.items()],
            "so": [self.sentence],
        }
        lines = [line for name, found in sections.items() for line in lines_of(name, found)]
        return "\n".join([f"{self.about} on {self.device}", *lines])

    def _repr_html_(self) -> str:
        parts = [
            section("Time", _figures(self).html()),
            section("Steps", _steps(self.ranked, self.steps_seconds).html(), _STEPS) if self.steps else "",
            section("What is missing", _missing(self).html()) if self.missing else "",
            section(TITLE, paragraphs(of_network(self))),
            section("How it was measured", disclosure(self.environment | {"timing of this call": self.timing})),
        ]
        return "\n".join(part for part in parts if part)


def _interval(samples: Sequence[float]) -> Interval:
    found = summarise(samples)
    return Interval(found.median, found.low, found.high)


def _time(profile: NetworkProfile) -> list[str]:
    found, how = profile.seconds, profile.timing
    lines = [f"{_spelled(found)} a call, " + (
        f"{len(profile.samples)} samples of {counted(how.get('calls', 1), 'call')}, operands {how.get('mode')}"
        if profile.samples else f"reckoned from {counted(len(profile.slice_samples), 'sample')} of a slice"
    )]  # fmt: skip
    if (each := profile.slice_seconds) is not None:
        lines.append(f"{_spelled(each)} a slice, {counted(profile.slices, 'slice')} over {', '.join(profile.sliced)}")
    if profile.steps:
        lines.append(
            f"{counted(len(profile.steps), 'step')} one after the other {duration(profile.steps_seconds)}, "
            f"predicted {duration(profile.predicted)}"
        )
    return [*lines, *how.get("notes", ())]


def _roof(profile: NetworkProfile) -> list[str]:
    if not profile.floor:
        return []
    floor, seconds = profile.floor, profile.seconds.value
    return [
        f"floor {duration(floor['seconds'])}, {floor['binds']} binds (compute {duration(floor['compute'])} along this "
        f"path, memory {duration(floor['memory'])} for operands and result, launch {duration(floor['launch'])}); the "
        f"call is at {share(profile.share or 0)}",
        f"the steps' own floors, each with its intermediates, are {duration(floor['steps'])} together",
        f"{si(profile.flops / seconds, 'FLOP/s')}, {si(profile.bytes / seconds, 'B/s')} of compulsory bytes",
    ]


_HEADS = ("node", "time", "interval", "runs", "of all", "predicted", "floor", "contraction", "schedule")


def _step_lines(profile: NetworkProfile) -> list[str]:
    if not profile.steps:
        return []
    shown = profile.ranked[:MOST_STEPS]
    rows = [_HEADS, *(_row(step, profile.steps_seconds) for step in shown)]
    more = len(profile.steps) - len(shown)
    return aligned(rows, left=(7, 8)) + ([f"... and {more} more: to_dict() has all"] if more else [])


def _row(step: StepTime, whole: float) -> tuple[str, ...]:
    floor = "-" if step.floor is None else duration(step.floor)
    return (
        str(step.node), duration(step.seconds), f"[{duration(step.low)}, {duration(step.high)}]", str(step.times),
        share(step.total / whole), duration(step.predicted), floor, step.equation, step.schedule,
    )  # fmt: skip


def _steps(steps: Sequence[StepTime], whole: float) -> Table:
    rows = []
    for step in steps:
        cells = [Cell(text) for text in _row(step, whole)]
        for at, value in ((0, step.node), (1, step.seconds), (3, step.times), (4, step.total), (5, step.predicted)):
            cells[at] = Cell(cells[at].text, float(value))
        cells[6] = Cell(cells[6].text, step.floor)
        rows.append(cells)
    return Table(_HEADS, rows)


def _figures(profile: NetworkProfile) -> Table:
    """Time, floor and work as rows of two."""
    lines = [*_time(profile), *_roof(profile)]
    return Table(("what was found",), [(Cell(line),) for line in lines])


def _missing(profile: NetworkProfile) -> Table:
    return Table(("what", "why"), [(Cell(what), Cell(why)) for what, why in profile.missing.items()])


def _spelled(found: Interval) -> str:
    return f"{duration(found.value)} [{duration(found.low)}, {duration(found.high)}]"

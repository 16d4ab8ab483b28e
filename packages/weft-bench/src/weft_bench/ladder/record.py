"""The record of a climb: a value of plain figures for each rung, and one JSON file for a ladder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.errors import WeftError
from weft.machine.stamp import commit, device_stamp
from weft.machine.statistics import Interval
from weft_bench.records import check_continues, reading

FORMAT = 1
PREFIX = "ladder-"  # of the files
BUDGET_ENDED = "the budget ended before samples agreed"  # a note of steps


@dataclass
class Step:
    """One rung as it was found. Times are seconds of a call; shares are of the roofline floor, 1 at best."""

    number: int
    flight: str
    name: str
    title: str
    tool: str
    problem: str
    over: str  # the rung that gains are over; empty for the first of a flight
    predicted_gain: float | None
    predicted_share: float
    because: str
    published: list[dict[str, Any]]
    published_gain: float | None
    seconds: dict[str, float] = field(default_factory=dict)  # value, low, high
    floor: dict[str, Any] = field(default_factory=dict)  # seconds, binds, compute, memory, launch
    share: float | None = None
    gain: float | None = None
    flops: int = 0
    bytes: int = 0
    error_over_bound: float | None = None
    notes: list[str] = field(default_factory=list)  # departures from the protocol of timing
    missing: str = ""  # why it did not run here
    wrong: str = ""  # what was wrong with its result, or how it broke
    profile: dict[str, Any] = field(default_factory=dict)  # see `weft_bench.profiling.record.Record.to_dict`

    @property
    def interval(self) -> Interval | None:
        """The median time and its 95 % interval; None where nothing was timed."""
        return Interval(self.seconds["value"], self.seconds["low"], self.seconds["high"]) if self.seconds else None

    @property
    def rate(self) -> tuple[float, str] | None:
        """TFLOP/s, or TB/s of what only moves."""
        if not self.seconds:
            return None
        work, unit = (self.flops, "TFLOP/s") if self.flops else (self.bytes, "TB/s")
        return work / self.seconds["value"] / 1e12, unit

    @property
    def state(self) -> str:
        """"right", "wrong" or "not run"."""
        return "wrong" if self.wrong else "not run" if self.missing else "right"


@dataclass
class Climb:
    """A ladder as it was climbed on one device. `measured` is False where values were only checked."""

    ladder: str
    says: str
    device: str
    date: str
    measured: bool
    steps: list[Step] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Climb:
        """A climb as it was written; `WeftError` for another format."""
        if saved.get("format") != FORMAT:
            raise WeftError(f"this climb has format {saved.get('format')}, this version of weft reads {FORMAT}")
        return cls(**{**saved, "steps": [Step(**each) for each in saved["steps"]]})

    def step(self, flight: str, name: str) -> Step | None:
        """A rung of a flight, where it is among those that were climbed."""
        return next((each for each in self.steps if (each.flight, each.name) == (flight, name)), None)


def begun(folder: Path, name: str, device: torch.device) -> Climb | None:
    """The climb of that ladder in a folder, if any. `WeftError` where it is of another device or commit."""
    file = folder / f"{PREFIX}{name}.json"
    if not file.exists():
        return None
    found = _read(file)
    there = {"device": found.device, "commit": found.environment.get("artifacts", {}).get("commit")}
    check_continues(f"ladder '{name}'", there, {"device": str(device_stamp(device)["name"]), "commit": commit()})
    return found


def read(folder: Path) -> list[Climb]:
    """All climbs that were written to a folder, by name; `WeftError` where there are none."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if not files:
        raise WeftError(f"{folder} holds no ladder: no file {PREFIX}*.json")
    return [_read(file) for file in files]


def _read(file: Path) -> Climb:
    with reading(file, "ladder of weft"):
        return Climb.from_dict(json.loads(file.read_text()))

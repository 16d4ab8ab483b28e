"""Profiles as records, and those that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from weft.errors import UnsupportedError, WeftError
from weft.machine.stamp import device_stamp
from weft.machine.statistics import Interval, summarise
from weft.machine.store import Store, number
from weft_bench.profiling.attribution import Finding, attribute, binds, figures_of, sentence
from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.evidence import Variant, weigh
from weft_bench.profiling.launches import Launch
from weft_bench.records import reading, write_whole


def keep_l2(device: torch.device, rate: float) -> None:
    """Remember the bandwidth of a card's L2, bytes/s."""
    Store("micro").save(_key(device, "l2"), {"text": "bandwidth of the L2", "rate": rate})


def kept_l2(device: torch.device) -> float | None:
    """The bandwidth of a card's L2, bytes/s, where `weft micro l2` has measured it."""
    found: Any = Store("micro").load(_key(device, "l2"))
    with suppress(KeyError, TypeError, ValueError):
        return number(found["rate"]) or None
    return None


def keep_model(device: torch.device, rate: str, coefficients: dict[str, float]) -> None:
    """Remember an energy model for products of one rate name."""
    Store("energy").save(_key(device, rate), {"text": f"energy of {rate} products", **coefficients})


def kept_model(device: torch.device, rate: str) -> dict[str, Any] | None:
    """The coefficients of an energy model that was fitted before, as they are stored."""
    found: Any = Store("energy").load(_key(device, rate))
    return {name: value for name, value in found.items() if name != "text"} if isinstance(found, dict) else None


def _key(device: torch.device, what: str) -> dict[str, Any]:
    return {"environment": device_stamp(device), "what": what}


def call_share(profile: Record) -> float | None:
    """The share of one call, host and then device, that the device takes: what faster kernels can shorten."""
    if profile.host is None or not profile.samples:
        return None
    return profile.seconds.value / (profile.seconds.value + profile.host)


FORMAT = 1


@dataclass
class Record:
    """The measurements of one call. Times in seconds, work in flops and bytes."""

    name: str  # who computes: "weft", a peer, a schedule
    about: str  # equation and extents
    device: str
    date: str = ""
    schedule: str | None = None
    samples: tuple[float, ...] = ()  # seconds a call
    timing: dict[str, Any] = field(default_factory=dict)  # how they were taken
    host: float | None = None  # seconds that the host spends on one call
    flops: int = 0
    bytes: int = 0  # compulsory
    floor: dict[str, Any] = field(default_factory=dict)  # seconds by cause, what binds; empty without ceilings
    ceilings: dict[str, Any] = field(default_factory=dict)  # rates, and where they come from
    kernels: list[dict[str, Any]] = field(default_factory=list)  # see `weft_bench.kernels.kernel.Kernel.to_dict`
    launches: list[Launch] = field(default_factory=list)
    counters: list[CounterSet] = field(default_factory=list)
    error_over_bound: float | None = None  # of the result, where it was checked
    energy: dict[str, Any] = field(default_factory=dict)  # see `weft_bench.profiling.energy.Energy.to_dict`
    missing: dict[str, str] = field(default_factory=dict)  # what could not be had, and why
    environment: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def seconds(self) -> Interval:
        """The median and its 95 % interval."""
        found = summarise(self.samples)
        return Interval(found.median, found.low, found.high)

    @property
    def share(self) -> float | None:
        """The floor over the time: 1 is the best there can be."""
        return self.floor["seconds"] / self.seconds.value if self.floor and self.samples else None

    @property
    def moved(self) -> float | None:
        """Bytes that really moved to and from memory, over all launches that were counted."""
        found = [each.dram_bytes for each in self.counters]
        return sum(each for each in found if each is not None) if found and None not in found else None

    @property
    def busiest(self) -> CounterSet | None:
        """The counters of the launch that took longest under the profiler."""
        return max(self.counters, key=lambda each: each.get("seconds") or 0.0, default=None)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the rules for the longest launch; empty without counters."""
        return attribute(self.busiest) if self.busiest is not None else []

    @property
    def sentence(self) -> str:
        """The limit of the call in one sentence: by its counters, else by the roofline alone."""
        if self.busiest is not None:
            return sentence(self.busiest)
        if not self.floor:
            return "neither counters nor ceilings are known: nothing says what binds it"
        times = " or ".join(("floor", "time")) if self.share is None else f"{self.share:.0%} of the roof"
        return f"by the roofline alone {self.floor['binds']} binds, at {times}; nothing was counted"

    def figures(self) -> dict[str, float]:
        """Figures that two variants are compared by: see `evidence.Variant`."""
        found: dict[str, float] = dict(figures_of(self.busiest)) if self.busiest is not None else {}
        if self.launches:
            found["launches"] = float(len(self.launches))
        if self.host is not None:
            found["host"] = self.host
        if self.moved is not None:
            found["bytes"] = self.moved
        return found

    def variant(self) -> Variant:
        """This profile as one side of a comparison."""
        artifacts = self.environment.get("artifacts", {})
        provenance = {name: str(artifacts.get(name) or "") for name in ("command", "commit")} | {"device": self.device}
        return Variant(self.name, self.samples, self.figures(), self.error_over_bound, provenance)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them again."""
        entry: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        entry["samples"] = list(self.samples)
        entry["launches"] = [each.to_dict() for each in self.launches]
        entry["counters"] = [each.to_dict() for each in self.counters]
        entry["findings"] = [each.to_dict() for each in self.findings]
        entry["sentence"] = self.sentence
        entry["share"] = self.share
        return entry

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """A profile as it was written; `WeftError` for another format."""
        if saved.get("format") != FORMAT:
            raise WeftError(f"this profile has format {saved.get('format')}, this version of weft reads {FORMAT}")
        entry = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        entry["samples"] = tuple(entry["samples"])
        entry["launches"] = [Launch(**each) for each in entry["launches"]]
        entry["counters"] = [CounterSet.from_dict(each) for each in entry["counters"]]
        return cls(**entry)


def recorded_sets(file: Path) -> dict[str, Any]:
    """A file of recorded sets, an empty one where there is none; `WeftError` where it is something else."""
    if not file.is_file():
        return {"about": "Recorded counters.", "sets": []}
    with reading(file, "file of recorded sets"):
        document = dict(json.loads(file.read_text()))
        for each in document["sets"]:
            CounterSet.from_dict(each)
        return document


def append_recorded(file: Path, records: Sequence[Record]) -> int:
    """Add the counters of profiles to a file of recorded sets, each with its source and what binds it.

    Returns how many sets there are then. A set of the same kernel, call and device takes the place of the one before.
    """
    document = recorded_sets(file)
    for each in records:
        found = each.busiest
        if found is None:
            raise UnsupportedError(
                f"nothing was counted of {each.about}: {each.missing.get('counters', 'no counters')}"
            )
        first = binds(each.findings)
        tool = each.environment.get("profiling", {}).get("tool", "")
        source = f"weft profile {each.about}, {tool}, commit {each.environment.get('artifacts', {}).get('commit')}"
        name = f"{found.kernel}: {each.about}, {each.device}"
        entry = found.to_dict() | {"kernel": name, "source": source, "binds": first.pattern if first else None}
        document["sets"] = [kept for kept in document["sets"] if kept["kernel"] != name] + [entry]
    write_whole(file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return len(document["sets"])


def compared(profiles: Sequence[Record], claim: str | None = None) -> dict[str, Any] | None:
    """The comparison of the first profile with the second; None where there is no second."""
    if len(profiles) < 2:
        return None
    return weigh(profiles[1].variant(), profiles[0].variant(), claim).to_dict()

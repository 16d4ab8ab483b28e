"""Times and counters that the thesis on dense matrices printed, by the names of this package's cases.

*Parallel algorithms for operations with dense matrices*, A. Krastenov, Czech Technical University in Prague, 2024.
Times are those of a Tesla V100 (tables 4.5 to 4.10 and 4.17 to 4.20), counters those of a Quadro P6000 (appendix B). It
names no type; its programs take double precision by default, and cuBLAS reaches 7.4 TFLOP/s on the V100, its fp64 rate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

SOURCE = "Parallel algorithms for operations with dense matrices (thesis)"
DTYPE = "float64"  # of all of its times
_IN_PLACE = "2.4"  # the kernel that needs no second matrix


@dataclass(frozen=True)
class PublishedTimes:
    """One case in its tables: seconds by library ("cuBLAS") and by kernel ("1.6")."""

    table: str
    libraries: Mapping[str, float]
    kernels: Mapping[str, float]

    @property
    def library(self) -> tuple[str, float] | None:
        """The library that the table's speed-ups are over, and its time; None for what no library did."""
        return next(iter(self.libraries.items()), None)

    @property
    def fastest_kernel(self) -> tuple[str, float]:
        """The number of the thesis's own kernel that was fastest, and its time."""
        return min(self.kernels.items(), key=lambda each: each[1])


@cache
def published_times() -> Mapping[str, PublishedTimes]:
    """All of the V100's times, by the name of a case of the suites `dense`, `permute` and `transpose`."""
    found = {}
    for table in _data()["tables"]:
        for at, name in enumerate(table["cases"]):
            seconds = {who: times[at] for who, times in table["seconds"].items() if times[at] is not None}
            kernels = {who: time for who, time in seconds.items() if who[0].isdecimal()}
            libraries = {who: time for who, time in seconds.items() if who not in kernels}
            if (within := kernels.pop(_IN_PLACE, None)) is not None:
                place = name.replace("transpose-square", "in-place")
                found[place] = PublishedTimes(table["table"], {}, {_IN_PLACE: within})
            found[name] = PublishedTimes(table["table"], libraries, kernels)
    return found


def published_counters(kernel: str) -> Mapping[str, float]:
    """The counters of a kernel ("1.1" to "2.4") by metric."""
    counted = _data()["counters"]
    return dict(zip(counted["metrics"], counted["kernels"][kernel], strict=True))


def counted_how() -> str:
    """Where and how the counters were read."""
    counted = _data()["counters"]
    return f"{counted['machine']}, {counted['by']} ({SOURCE}, tables {counted['tables']})"


@cache
def _data() -> dict[str, Any]:
    text = resources.files("weft_bench").joinpath("data/dense_thesis.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found

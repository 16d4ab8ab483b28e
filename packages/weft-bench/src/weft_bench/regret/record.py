"""The record of a run: a row for each workload and state of the caches, kept whole after each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft_bench.records import check_continues, reading, write_whole
from weft_bench.regret.workloads import CALLS

FORMAT = 1
FILE = "regret.json"
EMPTY, KEPT = "empty", "kept"
CACHES = (EMPTY, KEPT)
MARKS = (1, 10, 100, 1000, 3000)


@dataclass(frozen=True)
class Row:
    """One process: what it measured, or why there is nothing."""

    workload: str
    kind: str
    caches: str  # before the process: empty, or those of the process before it
    figures: dict[str, Any] = field(default_factory=dict)  # as `weft_bench.regret.process` says them
    failed: str = ""

    @property
    def failure(self) -> str:
        """Why there is no time: the process broke, or its result was wrong."""
        return self.failed or str(self.figures.get("wrong", ""))

    def regret(self, at: int) -> float:
        """The total at the mark of that place over torch's total for as many calls, each as at its end."""
        return float(self.figures["weft"]["totals"][at] / (self.figures["torch"]["each"] * self.marks[at]))

    @property
    def marks(self) -> list[int]:
        """Numbers of calls at which totals were taken."""
        return list(self.figures["marks"])

    @property
    def steady(self) -> float:
        """A call at the end over torch's."""
        return float(self.figures["weft"]["each"] / self.figures["torch"]["each"])


@dataclass
class RegretRun:
    """A run on one device."""

    device: str
    environment: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # workloads left out, with the reason
    ended: str = "running"
    format: int = FORMAT

    def has(self, workload: str, caches: tuple[str, ...]) -> bool:
        """Whether the workload was measured in all these states of the caches."""
        there = {row.caches for row in self.rows if row.workload == workload and not row.failed}
        return there >= set(caches)

    def of_kind(self, calls: bool) -> list[Row]:
        """The rows that are calls over and over, or the others; those with a time."""
        return [row for row in self.rows if (row.kind == CALLS) == calls and not row.failure]

    def failures(self) -> list[str]:
        return [f"{row.workload}, caches {row.caches} ({row.failure})" for row in self.rows if row.failure]


def save(run: RegretRun, folder: Path) -> None:
    """Write the run into `folder`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, json.dumps(asdict(run), indent=1, allow_nan=False) + "\n")


def load(folder: Path) -> RegretRun:
    """The run in `folder`. `WeftError` where there is none that can be read."""
    file = folder / FILE
    with reading(file, "run of weft bench regret"):
        entry = json.loads(file.read_text())
        if entry["format"] != FORMAT:
            raise WeftError(f"{file} has format {entry['format']}, this version of weft reads {FORMAT}")
        rows = [Row(**row) for row in entry.pop("rows")]
        return RegretRun(**entry, rows=rows)


def continued(run: RegretRun, before: RegretRun) -> RegretRun:
    """`run` with the rows of `before`. `WeftError` where device or commit differ."""
    origins = [
        {"device": each.device, "commit": each.environment.get("artifacts", {}).get("commit")} for each in (before, run)
    ]
    check_continues("run", *origins)
    run.rows = [row for row in before.rows if not row.failed]
    return run

"""Run every workload in fresh processes: the first with empty caches, the next with those that the first has left."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.base.interpreter import command, environment
from weft_bench.regret.record import CACHES, KEPT, MARKS, RegretRun, Row
from weft_bench.regret.workloads import COUNT, Workload

START = 10.0  # seconds that a process needs besides its calls, before any has been measured
VARIABLES = {"WEFT_CACHE_DIR": "weft", "TRITON_CACHE_DIR": "triton"}
CPU_NETWORK_WORK = 1 << 26  # multiply-adds of a network on a CPU


@dataclass(frozen=True)
class Asked:
    """How each process measures."""

    device: str
    seconds: float = 6.0  # of weft's calls after the first
    threads: int | None = None
    marks: tuple[int, ...] = MARKS
    count: int = COUNT  # of small shapes
    work: int | None = None  # most multiply-adds of a case

    def job(self, workload: Workload) -> str:
        on_cpu = self.device.startswith("cpu")
        about: dict[str, Any] = {
            "name": workload.name, "kind": workload.kind, "device": self.device, "seconds": self.seconds,
            "threads": self.threads, "marks": self.marks, "count": self.count, "work": self.work,
            "network work": self.work or (CPU_NETWORK_WORK if on_cpu else None),
        }  # fmt: skip
        return json.dumps(about)


@dataclass
class Regret:
    """Measures workloads and adds rows to `run`; what does not fit before `deadline` is left out."""

    run: RegretRun
    asked: Asked
    caches: tuple[str, ...] = CACHES  # whose rows are kept; the first process runs in any case
    deadline: float = float("inf")  # of time.monotonic()
    begun: Callable[[str], None] = lambda name: None
    kept: Callable[[Row], None] = lambda row: None

    def go(self, workloads: Sequence[Workload]) -> None:
        """Measure what the run does not have yet."""
        try:
            for each in workloads:
                if not self.run.has(each.name, self.caches):
                    self.begun(each.name)
                    self._workload(each)
            self.run.ended = "finished"
        except KeyboardInterrupt:
            self.run.ended = "interrupted"

    def _workload(self, workload: Workload) -> None:
        states = CACHES if KEPT in self.caches else CACHES[:1]
        self.run.rows = [row for row in self.run.rows if row.workload != workload.name]
        with tempfile.TemporaryDirectory(prefix="weft-regret-", ignore_cleanup_errors=True) as folder:
            for state in states:
                left = self.deadline - time.monotonic()
                if left < START + self.asked.seconds:
                    self.run.skipped[f"{workload.name}, caches {state}"] = "the time was up"
                    return
                row = self._process(workload, state, Path(folder), left)
                if row is None:
                    self.run.skipped[f"{workload.name}, caches {state}"] = "cut off: the time was up"
                    return
                if state in self.caches:
                    self.run.rows.append(row)
                    self.kept(row)
                if row.failed:
                    return

    def _process(self, workload: Workload, state: str, folder: Path, left: float) -> Row | None:
        """The row of one process, or None where it was cut off."""
        line = command("-m", "weft_bench.regret.process", self.asked.job(workload))
        given = environment(**{name: str(folder / part) for name, part in VARIABLES.items()})
        limit = None if left == float("inf") else left
        about = (workload.name, workload.kind, state)
        try:
            ran = subprocess.run(line, capture_output=True, text=True, check=False, env=given, timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        if ran.returncode:
            return Row(*about, failed=(ran.stderr.strip() or "it ended without a word").splitlines()[-1])
        return Row(*about, figures=json.loads(ran.stdout.splitlines()[-1]) | {"marks": list(self.asked.marks)})

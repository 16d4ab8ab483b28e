"""Measure the everyday set: for each case every contender is made and checked, then all are timed in turns.

A time is that of a call in a loop: on a GPU the longer of what the host and what the device does. What the cost model
predicts of the device is held against the device's own time, from a CUDA graph whose calls find their operands in no
cache, as the model has it; a call that no graph takes has none. On a CPU there is one time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch

from weft.errors import AccuracyError, UnsupportedError
from weft.machine.rotation import Mode
from weft.machine.timing import Timing, measure
from weft_bench.cases.everyday import EverydayCase
from weft_bench.entry import Entry
from weft_bench.everyday.calls import tensors_of
from weft_bench.everyday.ways import DEFAULT, PEERS, PLANS, Made, make
from weft_bench.peers.registry import first_line
from weft_bench.records import CaseRecord, Result, Run
from weft_bench.runner import DeviceLost
from weft_bench.timed_sets import Sampling, TimedSets

PREDICTED, ALONE = "predicted seconds", "seconds alone"  # what a result says of weft's plans
HOST = 2e-4  # seconds of a call, more than the host needs for one: the device is at work all the time
SETS = 256  # of operands that the device's own time goes through, at most


@dataclass(frozen=True)
class Rounds:
    """How often each contender has its turn, and for how long."""

    rounds: int = 5
    budget: float = 0.05  # seconds of samples of one turn
    quick: bool = False  # shorter batches

    @classmethod
    def short(cls) -> Rounds:
        """Two turns of three samples each."""
        return cls(2, 0.0, quick=True)


@dataclass
class Everyday:
    """Measures cases on one device and adds them to `run`; those for which the time is up are left out."""

    run: Run
    device: torch.device
    calls: int  # plain calls before weft's default is timed
    how: Rounds = field(default_factory=Rounds)
    deadline: float = float("inf")  # of time.monotonic()
    begun: Callable[[str], None] = lambda name: None
    kept: Callable[[Run], None] = lambda run: None

    def go(self, entries: Sequence[Entry]) -> None:
        """Measure all entries that the run does not have yet."""
        spent: list[float] = []  # seconds of each case
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                for entry in self.run.missing(entries):
                    begun = time.monotonic()
                    if begun + (fmean(spent) if spent else 0.0) > self.deadline:
                        self.run.skipped[entry.case.name] = "the time was up"
                        continue
                    self.begun(entry.case.name)
                    self._case(entry)
                    self.kept(self.run)
                    spent.append(time.monotonic() - begun)
            self.run.ended = "finished"
        except KeyboardInterrupt:
            self.run.ended = "interrupted"
        except DeviceLost as error:
            self.run.ended = f"the device was lost: {error}"
        self.kept(self.run)

    def _case(self, entry: Entry) -> None:
        case: EverydayCase = entry.case
        try:
            tensors = tensors_of(case, self.device)
        except torch.OutOfMemoryError as error:
            self.run.skipped[case.name] = first_line(error)
            return
        record = recorded(entry, tensors)
        made = {name: self._made(name, case, tensors, record) for name in self.run.contenders}
        self._time({name: one for name, one in made.items() if one is not None}, tensors, record)
        self.run.cases.append(record)
        del tensors, made
        if self.device.type == "cuda" and entry.case.work > 1 << 32:
            gc.collect()
            torch.cuda.empty_cache()

    def _made(self, name: str, case: EverydayCase, tensors: list[torch.Tensor], record: CaseRecord) -> Made | None:
        """The contender, or None where its result, which is none, is in the record."""
        try:
            return make(name, case, tensors, self.calls, self._settled)
        except UnsupportedError as error:
            record.results[name] = Result(cannot=first_line(error))
        except (AccuracyError, AssertionError) as error:
            record.results[name] = Result(wrong=f"wrong: {first_line(error)}")
        except Exception as error:
            self._survives(error)
            said = first_line(error)
            record.results[name] = Result(cannot=said) if name in PEERS else Result(wrong=said)
        return None

    def _survives(self, error: Exception) -> None:
        """Raise `DeviceLost` if the GPU no longer answers."""
        try:
            self._settled()
        except RuntimeError as lost:
            raise DeviceLost(f"{first_line(error)}; then {first_line(lost)}") from error

    def _time(self, made: dict[str, Made], tensors: list[torch.Tensor], record: CaseRecord) -> None:
        samples: dict[str, list[float]] = {name: [] for name in made}
        taken: dict[str, Timing] = {}
        for _ in range(self.how.rounds):
            for name, one in made.items():
                taken[name] = self._measured(one, [tensors])
                samples[name] += taken[name].samples
        sets = TimedSets(tuple(tensors), self.device, Sampling(most_sets=SETS))
        for name, one in made.items():
            about = self._about(one, sets, samples[name])
            timing = asdict(taken[name])
            del timing["samples"]
            figures = tuple(float(f"{each:.5g}") for each in samples[name])
            record.results[name] = Result(samples=figures, timing=timing | {"clocks": None}, about=about)
        record.results = {name: record.results[name] for name in self.run.contenders}

    def _measured(self, made: Made, sets: Sequence[Sequence[Any]], mode: Mode = "hot") -> Timing:
        """The time of a loop of calls; "cold" that of a graph of them, which goes through all sets."""
        return measure(made.call, sets, device=self.device, mode=mode, budget=self.how.budget, capture=mode == "cold",
                       quick=self.how.quick)  # fmt: skip

    def _about(self, made: Made, sets: TimedSets, samples: list[float]) -> dict[str, Any]:
        """The schedule and the tier that serve, the device's time as predicted, and its time alone."""
        plans = made.plans
        if plans is None:
            return {}
        about: dict[str, Any] = {"schedule": plans.schedule, "tier": plans.tier}
        if plans.predicted is not None:
            about[PREDICTED] = float(f"{plans.predicted:.4g}")
            called = sorted(samples)[len(samples) // 2]
            apart = self.device.type == "cuda" and called < HOST
            alone = self._in_a_graph(plans.call, sets) if apart else called
            if alone is not None:
                about[ALONE] = float(f"{alone:.4g}")
        return about

    def _in_a_graph(self, call: Callable[..., Any], sets: TimedSets) -> float | None:
        """Seconds of a call on the device; None where a graph does not take it."""
        try:
            found = self._measured(Made(call), sets.rotated(call), "cold")
        except UnsupportedError:
            return None
        return found.seconds if found.captured else None

    def _settled(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def recorded(entry: Entry, tensors: Sequence[torch.Tensor]) -> CaseRecord:
    """A case before anybody has run it."""
    case: EverydayCase = entry.case
    dtype = str(case.dtype).removeprefix("torch.")
    fused = {"epilogue": " ".join((*case.fused.operands, *case.fused.indices)) or "of the value"} if case.fused else {}
    functions = {name: getattr(value, "__name__", str(value)) for name, value in case.options.items()}
    used = sum(x.numel() * x.element_size() for x in tensors)
    return CaseRecord(
        name=case.name, group=entry.group, base=entry.base, equation=case.equation,
        extents=[(label, extent) for label, extent in case.extents.items()], dtypes=(dtype, dtype), precision="",
        functions=fused | functions, layouts=case.layouts, scaled=entry.scaled, modes={},
        work={"flops": 2 * case.work, "function_flops": 0, "bytes": used}, floor={},
    )  # fmt: skip


def contenders(peers: Sequence[str], tiers: bool) -> list[str]:
    """weft's default first, its plans, then the peers."""
    plans = list(PLANS)
    return [DEFAULT, *(plans if tiers else plans[:1]), *peers]

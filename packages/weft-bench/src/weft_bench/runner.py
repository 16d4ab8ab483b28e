"""Run a suite: for each case make inputs, let every contender prepare, check what it computes, then time it.

The check and the timing share nothing: they have other operands and other memory for the result.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import Ceilings
from weft.machine.rotation import free_bytes
from weft.machine.timing import Timing, measure
from weft_bench.checking import WrongResult
from weft_bench.entry import Entry
from weft_bench.launched import launched
from weft_bench.machine.energy import call_energy, one_pass, synchroniser
from weft_bench.machine.sensors import Sensor
from weft_bench.peers.registry import Contender, Prepared, Way, first_line
from weft_bench.problems import PROBLEMS, Check, Problem
from weft_bench.records import Result, Run
from weft_bench.timed_sets import Sampling, TimedSets

ENERGY_SECONDS, ENERGY_REPETITIONS = 1.0, 3  # of one repetition, and how many, where energy is measured
IMPOSSIBLE = 0.4  # of the floor; ceilings are measured, and thin matrices have been seen at 0.58
NEAR = 1.2  # ways within this factor of the fastest first try are timed in full
_CHECKED_SEED, _TIMED_SEED = 1, 0


@dataclass
class Runner:
    """Measures entries of a suite on one device and adds them to `run`.

    `begun` hears the name of each case before it is measured; `kept` is called after each and may save the run.
    """

    run: Run
    contenders: Sequence[Contender]  # weft first
    device: torch.device
    ceilings: Ceilings | None = None
    sampling: Sampling = field(default_factory=Sampling)
    kind: str = "contraction"  # of the suite's cases: one of PROBLEMS
    begun: Callable[[str], None] = lambda name: None
    kept: Callable[[Run], None] = lambda run: None
    sensor: Sensor | None = None  # with one, the energy of each contender's best way is measured, too

    def go(self, entries: Sequence[Entry]) -> None:
        """Measure all entries that the run does not have yet.

        An interruption (Ctrl-C) or a GPU that no longer answers ends the run early and is noted in it.
        """
        begun, before = time.perf_counter(), self.run.seconds if self.run.cases else 0.0
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                for entry in self.run.missing(entries):
                    self._case(entry)
                    if before is not None:
                        self.run.seconds = round(before + time.perf_counter() - begun, 2)
                    self.kept(self.run)
            self.run.ended = "finished"
        except KeyboardInterrupt:
            self.run.ended = "interrupted"
        except DeviceLost as error:
            self.run.ended = f"the device was lost: {error}"
        self.kept(self.run)

    def _case(self, entry: Entry) -> None:
        problem = PROBLEMS[self.kind](entry.case)
        name = f"{entry.group} {entry.case.name}"
        self.begun(name)
        if reason := self._too_large(problem):
            self.run.skipped[name] = reason
            return
        try:
            sets = TimedSets(problem.inputs(self.device, _TIMED_SEED), self.device, self.sampling)
            check = problem.check(problem.inputs(self.device, _CHECKED_SEED))
        except torch.OutOfMemoryError as error:
            self.run.skipped[name] = first_line(error)
            return
        record = problem.record(entry, sets.first, self.ceilings)
        self.run.cases.append(record)
        for contender in self.contenders:
            with contender.settings(entry.case):
                result = self._contend(contender, entry.case, sets, check)
            record.results[contender.name] = possible(result, record.floor, self.ceilings)

    def _contend(self, contender: Contender, case: Any, sets: TimedSets, check: Check) -> Result:
        """One contender's result; what it raises is its result too."""
        try:
            prepared = contender.prepare(case, sets.first)
            if isinstance(prepared, str):
                return Result(cannot=prepared)
            return self._fastest(prepared, sets, check)
        except UnsupportedError as error:
            return Result(cannot=first_line(error))
        except Exception as error:
            self._survives(error)
            return Result(wrong=first_line(error))

    def _fastest(self, prepared: Prepared, sets: TimedSets, check: Check) -> Result:
        """Check every way, try all that are right, time in full those near the fastest; the fastest counts.

        What is past its bound is tried too where others are right: a shorter compute type is of interest beside them.
        """
        ways: dict[str, float | str] = dict(prepared.refused)
        errors: dict[str, float] = {}
        right: list[Way] = []
        past: list[Way] = []
        for way in prepared.ways:
            try:
                errors[way.label] = check.error(way.run, prepared.stored)
                right.append(way)
            except AssertionError as error:
                ways[way.label] = f"wrong: {error}"
                if isinstance(error, WrongResult) and math.isfinite(error.error):
                    errors[way.label] = error.error
                    past.append(way)
            except UnsupportedError as error:
                if len(prepared.ways) == 1:
                    raise
                ways[way.label] = first_line(error)
            except Exception as error:
                self._survives(error)
                ways[way.label] = first_line(error)
        right, worse = self._as_exact(right, errors, prepared.yardstick)
        for way in worse:
            ways[way.label] = f"wrong: error {errors[way.label]:.3g} times its bound, above that of IEEE sums"
        past += worse
        if not right:
            said = "; ".join(f"{label} {text}".strip() for label, text in ways.items())
            about = dict(prepared.ways[0].about) if len(prepared.ways) == 1 else {}
            return Result(wrong=said, ways=ways, error_over_bound=min(errors.values(), default=None), about=about)
        best, taken = self._best(right, ways, sets)
        several = len(ways) > 1
        return Result(
            samples=tuple(float(f"{sample:.7g}") for sample in taken.samples),
            way=best.label,
            error_over_bound=errors[best.label],
            timing=_how(taken),
            about=self._about(best, sets),
            ways=_rounded(ways) if several else {},
            errors={label: float(f"{error:.3g}") for label, error in errors.items()} if several else {},
            beyond={way.label: float(f"{self._time(way, sets, budget=0.0).seconds:.4g}") for way in past},
            note=prepared.note,
        )

    @staticmethod
    def _as_exact(right: list[Way], errors: dict[str, float], yardstick: Set[str]) -> tuple[list[Way], list[Way]]:
        """Ways whose error is not above the largest of a yardstick's, and those where it is."""
        most = max((errors[way.label] for way in right if way.label in yardstick), default=math.inf)
        return [way for way in right if errors[way.label] <= most], [way for way in right if errors[way.label] > most]

    def _best(self, right: list[Way], ways: dict[str, float | str], sets: TimedSets) -> tuple[Way, Timing]:
        """The fastest of the ways that are right, and its timing; `ways` hears the seconds of each."""
        if len(right) > 1:
            for way in right:
                ways[way.label] = self._time(way, sets, budget=0.0).seconds
            tried = {way.label: float(ways[way.label]) for way in right}
            right = [way for way in right if tried[way.label] <= NEAR * min(tried.values())]
        timed = [(way, self._time(way, sets, budget=self.sampling.budget)) for way in right]
        ways |= {way.label: taken.seconds for way, taken in timed}
        return min(timed, key=lambda pair: pair[1].seconds)

    def _about(self, way: Way, sets: TimedSets) -> dict[str, Any]:
        """The facts of a way; weft's kernels that one call launches, where no plan has said them; the energy of one."""
        found = dict(way.about)
        if "kernels" not in found and (kernels := launched(way.timed or way.run, sets.first, self.device)):
            found["kernels"] = kernels
        if self.sensor is not None:
            try:
                found["energy"] = self._energy(way, sets)
            except UnsupportedError as error:  # the time stands without it
                found["energy missing"] = first_line(error)
        return found

    def _energy(self, way: Way, sets: TimedSets) -> dict[str, float | str]:
        """The energy of one call of a way: see `weft_bench.machine.energy.Energy`."""
        assert self.sensor is not None
        call = way.timed or way.run
        rotated = sets.rotated(call)
        work = self.run.cases[-1].work
        drawn = call_energy(
            way.label, one_pass(call, rotated, self.device), synchroniser(self.device), self.sensor,
            flops=work.get("flops", 0), moved=work.get("bytes", 0), seconds=ENERGY_SECONDS,
            repetitions=ENERGY_REPETITIONS, calls_in_one=len(rotated),
        )  # fmt: skip
        kept = ("joules", "low", "high", "watts", "idle_watts", "source", "flops_per_joule", "bytes_per_joule", "edp",
                "ed2p", "agreement")  # fmt: skip
        return {name: value for name, value in drawn.to_dict().items() if name in kept}

    def _time(self, way: Way, sets: TimedSets, budget: float) -> Timing:
        sampling = self.sampling
        call = way.timed or way.run
        return measure(
            call, sets.rotated(call), device=self.device, mode=sampling.mode, rrs=sampling.rrs, budget=budget,
            threads=sampling.threads, capture=sampling.capture, quick=budget == 0.0 < sampling.budget,
        )  # fmt: skip

    def _too_large(self, problem: Problem) -> str:
        """Why a case does not fit into the device's memory; empty where it does."""
        if self.device.type != "cuda":
            return ""
        if 2 * problem.memory <= free_bytes(self.device):  # collecting takes longer than many a case
            return ""
        gc.collect()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        if problem.memory <= free:
            return ""
        return f"about {problem.memory >> 30} GiB are needed, {free >> 30} GiB are free"

    def _survives(self, error: Exception) -> None:
        """Raise `DeviceLost` if the GPU no longer answers: nothing after that could be trusted."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as lost:
            raise DeviceLost(f"{first_line(error)}; then {first_line(lost)}") from error


def possible(result: Result, floor: Mapping[str, Any], known: Ceilings | None) -> Result:
    """The result; a wrong one where operands out of cache took a fraction of the least time that the device allows.

    Nothing is held against ceilings that were measured while other programs used the device.
    """
    if not result.samples or not floor or result.timing["mode"] != "cold" or known is None or not known.steady:
        return result
    share = result.summary.median / floor["seconds"]
    if share >= IMPOSSIBLE:
        return result
    said = f"{share:.2g} of the least time that the device allows: something was left out"
    return replace(result, samples=(), wrong=said)


class DeviceLost(RuntimeError):
    """The GPU's context is broken (an illegal access, say)."""


def _how(taken: Timing) -> dict[str, Any]:
    """A timing without its samples, as JSON gives it back."""
    about: dict[str, Any] = json.loads(json.dumps(asdict(taken)))
    del about["samples"]
    return about


def _rounded(ways: Mapping[str, float | str]) -> dict[str, float | str]:
    return {label: found if isinstance(found, str) else float(f"{found:.4g}") for label, found in ways.items()}

"""Run a suite: for each case make inputs, let every contender prepare, check what it computes, then time it."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from weft.api import plan
from weft.bench.checking import Truth, poison, truths
from weft.bench.peers import Contender, Prepared, Tensors, Way, first_line
from weft.bench.records import CaseRecord, Result, Run
from weft.bench.suites import Entry
from weft.cases import Case, operands
from weft.errors import WeftError
from weft.perf.counts import contraction_work
from weft.perf.device import Ceilings
from weft.perf.floor import contraction_floor
from weft.testing import poisoned
from weft.tune import timing
from weft.tune.inputs import Mode, Rotation, cache_bytes, memory_bytes, rotation
from weft.tune.timing import Timing, measure

NEAR = 1.2  # ways within this factor of the fastest first try are timed in full
_MEMORY_PER_ELEMENT = 24  # bytes, of A, B and D together: two input sets, random numbers and guards as they are made


@dataclass(frozen=True)
class Sampling:
    """How a run times: see `weft.tune.timing.measure`."""

    mode: Mode = "cold"
    rrs: float = timing.RRS_BOUND
    budget: float = timing.BUDGET
    threads: int | None = None  # of torch on the CPU


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
    begun: Callable[[str], None] = lambda name: None
    kept: Callable[[Run], None] = lambda run: None

    def go(self, entries: Sequence[Entry]) -> None:
        """Measure all entries that the run does not have yet.

        An interruption (Ctrl-C) or a GPU that no longer answers ends the run early and is noted in it.
        """
        there = {(case.group, case.name) for case in self.run.cases}
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                for entry in entries:
                    if (entry.group, entry.case.name) not in there:
                        self._case(entry)
                        self.kept(self.run)
            self.run.ended = "finished"
        except KeyboardInterrupt:
            self.run.ended = "interrupted"
        except DeviceLost as error:
            self.run.ended = f"the device was lost: {error}"
        self.kept(self.run)

    def _case(self, entry: Entry) -> None:
        case = entry.case
        self.begun(f"{entry.group} {case.name}")
        if reason := self._too_large(case):
            self.run.skipped[f"{entry.group} {case.name}"] = reason
            return
        try:
            sets = self._inputs(case)
            first = Tensors(*sets.sets[0])
            expected = truths(case, first)
        except torch.OutOfMemoryError as error:
            self.run.skipped[f"{entry.group} {case.name}"] = first_line(error)
            return
        record = describe(entry, first, self.ceilings)
        self.run.cases.append(record)
        for contender in self.contenders:
            with contender.settings(case):
                record.results[contender.name] = self._contend(contender, case, sets, expected)

    def _contend(self, contender: Contender, case: Case, sets: Rotation, expected: Sequence[Truth]) -> Result:
        """One contender's result; what it raises is its result too."""
        try:
            tensors = Tensors(*sets.sets[0])
            prepared = contender.prepare(case, tensors)
            if isinstance(prepared, str):
                return Result(cannot=prepared)
            return self._fastest(prepared, tensors, sets, expected)
        except Exception as error:
            self._survives(error)
            return Result(wrong=first_line(error))

    def _fastest(self, prepared: Prepared, tensors: Tensors, sets: Rotation, expected: Sequence[Truth]) -> Result:
        """Check every way, try all that are right, time in full those near the fastest; the fastest counts."""
        ways: dict[str, float | str] = dict(prepared.refused)
        errors: dict[str, float] = {}
        right: list[Way] = []
        for way in prepared.ways:
            try:
                errors[way.label] = self._error(way, tensors, expected, prepared)
                right.append(way)
            except AssertionError as error:
                ways[way.label] = f"wrong: {error}"
            except Exception as error:
                self._survives(error)
                ways[way.label] = first_line(error)
        if not right:
            return Result(wrong="; ".join(f"{label} {text}".strip() for label, text in ways.items()), ways=ways)
        if len(right) > 1:
            for way in right:
                ways[way.label] = self._time(way, sets, budget=0.0).seconds
            tried = {way.label: float(ways[way.label]) for way in right}
            right = [way for way in right if tried[way.label] <= NEAR * min(tried.values())]
        timed = [(way, self._time(way, sets, budget=self.sampling.budget)) for way in right]
        ways |= {way.label: taken.seconds for way, taken in timed}
        best, taken = min(timed, key=lambda pair: pair[1].seconds)
        return Result(
            samples=tuple(float(f"{sample:.7g}") for sample in taken.samples),
            way=best.label,
            error_over_bound=errors[best.label],
            timing=_how(taken),
            about=dict(best.about),
            ways=_rounded(ways) if len(ways) > 1 else {},
            note=prepared.note,
        )

    def _error(self, way: Way, tensors: Tensors, expected: Sequence[Truth], prepared: Prepared) -> float:
        poison(tensors.d)
        result = way.run(*tensors)
        return max(truth.compare(result, prepared.stored) for truth in expected)

    def _time(self, way: Way, sets: Rotation, budget: float) -> Timing:
        sampling = self.sampling
        return measure(
            way.run, sets.sets, device=self.device, mode=sampling.mode, rrs=sampling.rrs, budget=budget,
            threads=sampling.threads,
        )  # fmt: skip

    def _inputs(self, case: Case) -> Rotation:
        """Sets for all contenders alike, each with its own place for the result."""
        seeds = iter(range(1 << 30))

        def make() -> Tensors:
            given = operands(case, device=self.device, seed=next(seeds))
            place = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3], device=self.device)
            return Tensors(given.a, given.b, given.c, place.tensor)

        mode = self.sampling.mode
        return rotation(make, mode, cache=cache_bytes(self.device), memory=memory_bytes(self.device))

    def _too_large(self, case: Case) -> str:
        """Why a case does not fit into the device's memory; empty where it does."""
        if self.device.type != "cuda":
            return ""
        gc.collect()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        elements = case_elements(case)
        if elements * _MEMORY_PER_ELEMENT <= free:
            return ""
        return f"{elements} elements need about {elements * _MEMORY_PER_ELEMENT >> 30} GiB, {free >> 30} GiB are free"

    def _survives(self, error: Exception) -> None:
        """Raise `DeviceLost` if the GPU no longer answers: nothing after that could be trusted."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as lost:
            raise DeviceLost(f"{first_line(error)}; then {first_line(lost)}") from error


class DeviceLost(RuntimeError):
    """The GPU's context is broken (an illegal access, say)."""


def describe(entry: Entry, tensors: Tensors, ceilings: Ceilings | None) -> CaseRecord:
    """All that is known of a case before anybody runs it."""
    case = entry.case
    modes, work, floor = _counts(case, tensors, ceilings)
    hooks = ("a_fn", "b_fn", "c_fn", "epilogue")
    return CaseRecord(
        name=case.name,
        group=entry.group,
        base=entry.base,
        equation=str(case.notation),
        extents=[(str(label), extent) for label, extent in case.extents.items()],
        dtypes=(_short(case.dtypes[0]), _short(case.dtypes[1]), _short(case.dtypes[2])),
        precision=_short(case.precision) if case.precision is not None else "",
        functions={hook: getattr(case, hook) for hook in hooks if getattr(case, hook)},
        layouts=case.layouts,
        scaled=entry.scaled,
        modes=modes,
        work=work,
        floor=floor,
    )


def case_elements(case: Case) -> int:
    """Elements of A, B and D together."""
    return sum(_count(shape) for shape in (*case.shapes, case.d_shape))


def _counts(
    case: Case, tensors: Tensors, ceilings: Ceilings | None
) -> tuple[dict[str, int], dict[str, int], dict[str, Any]]:
    """Products of extents, flops and bytes, and the floor; empty where weft cannot read the case."""
    options = case.options()
    del options["alpha"]
    beta = options.pop("beta")
    a, b, c, d = tensors
    try:
        contraction = plan(case.equation, a, b, c=c, out=d, backend="reference", **options).contraction
    except WeftError:
        return {}, {}, {}
    work = contraction_work(contraction, beta=beta)
    modes = {"m": contraction.m, "n": contraction.n, "k": contraction.k, "batch": contraction.batch}
    counted = {"flops": work.flops, "function_flops": work.function_flops, "bytes": work.traffic}
    if ceilings is None:
        return modes, counted, {}
    floor = contraction_floor(contraction, ceilings, beta=beta, in_graph=a.device.type == "cuda")
    causes = {name: seconds for name, seconds in asdict(floor).items() if math.isfinite(seconds)}
    return modes, counted, {"seconds": floor.seconds, "binds": floor.binds, **causes}


def _how(taken: Timing) -> dict[str, Any]:
    """A timing without its samples, as JSON gives it back."""
    about: dict[str, Any] = json.loads(json.dumps(asdict(taken)))
    del about["samples"]
    return about


def _rounded(ways: Mapping[str, float | str]) -> dict[str, float | str]:
    return {label: found if isinstance(found, str) else float(f"{found:.4g}") for label, found in ways.items()}


def _short(value: torch.dtype | str) -> str:
    return str(value).removeprefix("torch.")


def _count(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count

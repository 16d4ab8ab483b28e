"""Go up a ladder: every rung is checked, timed by the one timing protocol, and held against prediction and roof.

Without a GPU kernels go through simulator and interpreter on tiny tensors: values are checked, and nothing is timed.
"""

from __future__ import annotations

import math
import pickle
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import Ceilings
from weft.machine.roofline import Floor, work_floor
from weft.machine.stamp import device_stamp
from weft.machine.timing import measure
from weft_bench.environment import disclose
from weft_bench.ladder.ladders import ladder
from weft_bench.ladder.problems import LadderProblem, Run
from weft_bench.ladder.record import BUDGET_ENDED, Climb, Step
from weft_bench.ladder.rung import Flight, Ladder, Rung, Size, predicted_gain, published_gain
from weft_bench.profiling.energy import measured_energy
from weft_bench.profiling.profile import NOT_ASKED, Profile, add_counters, profiled
from weft_bench.profiling.subject import Subject
from weft_bench.timed_sets import Sampling, TimedSets

BUDGET = 0.3  # seconds of samples for each rung
CPU_THREADS = 1  # of the ladder that is timed on a CPU
NOT_YET = "the climb ended before they were read"
MOST_LAUNCHES = 64  # of a call that a record keeps, as many as are counted: a rung of loops has ten thousand
ENERGY = (0.5, 3)  # seconds of calls whose joules are measured, and how many times


@dataclass(frozen=True)
class How:
    """How a climb is made: at which size, on which device, with `budget` seconds of samples for each rung.

    On a CPU only the ladder "cpu" is timed, on one thread, and kernels of the others are simulated; beside a GPU that
    wants NUMBA_ENABLE_CUDASIM and TRITON_INTERPRET set to 1 before weft is imported.
    """

    size: Size
    device: torch.device
    ceilings: Ceilings | None = None
    budget: float = BUDGET
    profile: bool = False
    energy: bool = False
    begun: Callable[[str], None] = lambda name: None
    kept: Callable[[Climb], object] = lambda climb: None  # may save what is known after each rung
    on: str = "cuda"  # the kind of device that times are of

    @property
    def timed(self) -> bool:
        return self.device.type == self.on


@dataclass(frozen=True)
class RungRecipe:
    """How the profiler's process makes a rung's call: see `weft_bench.profiling.subject`."""

    ladder: str
    number: int
    size: Size
    device: str

    def make(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        flight, rung = ladder(self.ladder).rungs[self.number - 1]
        problem = flight.problem(self.size, rung.kind)
        return problem.call(rung.run), problem.tensors(torch.device(self.device))


def climb(which: Ladder, how: How, numbers: Sequence[int] = (), before: Climb | None = None) -> Climb:
    """Check and measure the rungs of those numbers, or all: a `Climb`. One that cannot run says why; others go on.

    What `before` has, a climb that was cut off or one of other rungs, is taken over: of a rung that lacks no more than
    its counters these alone are read.

    Raises `UnsupportedError` for a number that is none, and what problems raise for a size or type they do not have.

    >>> import torch
    >>> library = 14
    >>> found = climb(ladder("multiply"), How(Size(4), torch.device("cpu")), [library])
    >>> found.steps[0].state, found.measured
    ('right', False)
    """
    how = replace(how, on=which.on)
    if which.on == "cpu":  # ceilings are those of all threads
        how = replace(how, device=torch.device("cpu"), ceilings=None, profile=False, energy=False)
    wanted = numbers or range(1, len(which.rungs) + 1)
    if strangers := [number for number in wanted if not 1 <= number <= len(which.rungs)]:
        raise UnsupportedError(f"ladder '{which.name}' has rungs 1 to {len(which.rungs)}, no {strangers[0]}")
    if not how.timed and how.size.extent is None:
        how = replace(how, size=replace(how.size, extent=which.tiny))
    for number, flight, rung in which:
        if number in wanted:
            flight.problem(how.size, rung.kind)  # bad sizes and types are refused before anything runs
    found = Climb(
        which.name, which.says, str(device_stamp(how.device)["name"]), datetime.now(UTC).isoformat(timespec="seconds"),
        how.timed, environment=_disclosed(which, how),
    )  # fmt: skip
    found.steps = list(before.steps) if before else []
    _go_up(found, which, how, wanted)
    return found


def _go_up(found: Climb, which: Ladder, how: How, wanted: Collection[int]) -> None:
    """Measure what the rungs of those numbers lack; counters are read after each flight, so that times come first."""
    known = {step.number: step for step in found.steps}
    at_work = _Bench(how)
    for flight, rungs in groupby((each for each in which if each[0] in wanted), key=lambda each: each[1]):
        for number, _, rung in rungs:
            step, recipe = known.get(number), RungRecipe(which.name, number, how.size, str(how.device))
            if step is None or _must_be_timed(step, how):
                how.begun(f"{flight.name}: {rung.name}")
                _put(found, at_work.step(number, flight, rung, recipe))
                how.kept(found)
            elif how.profile and _has_no_counters_yet(step):
                at_work.await_counters(step, Profile.from_dict(step.profile), recipe)
        at_work.count()
        how.kept(found)


def _must_be_timed(step: Step, how: How) -> bool:
    """Whether a rung that was measured lacks what is asked for, besides counters."""
    if step.state != "right" or not how.timed:
        return False
    has_energy = step.profile.get("energy") or "energy" in step.profile.get("missing", ())
    return (how.energy and not has_energy) or (how.profile and not step.profile)


def _has_no_counters_yet(step: Step) -> bool:
    return step.profile.get("missing", {}).get("counters") in (NOT_YET, NOT_ASKED)


def _put(found: Climb, step: Step) -> None:
    """Add a rung in its place, where one of its number makes room."""
    found.steps = [each for each in found.steps if each.number != step.number]
    insort(found.steps, step, key=lambda each: each.number)
    _add_gains(found)


class _Bench:
    """The reference that rungs of one problem are compared with."""

    def __init__(self, how: How) -> None:
        self._how = how
        self._problem: LadderProblem | None = None
        self._waiting: list[tuple[Step, Profile, RungRecipe]] = []
        self._error: Callable[[Run], float] = lambda run: math.nan

    def step(self, number: int, flight: Flight, rung: Rung, recipe: RungRecipe) -> Step:
        problem = flight.problem(self._how.size, rung.kind)
        before = flight.before(rung)
        found = Step(
            number, flight.name, rung.name, rung.title, rung.tool, problem.text, before.name if before else "",
            predicted_gain(before, rung), 1 / rung.predicted.times_floor, rung.predicted.because,
            [asdict(each) for each in rung.published], published_gain(rung),
            flops=problem.work.flops, bytes=problem.work.traffic,
        )  # fmt: skip
        try:
            run = rung.run
            found.error_over_bound = self._checked(problem, run)
            if self._how.timed:
                self._time(found, problem, run)
                if self._how.profile or self._how.energy:
                    self._profile(found, problem, run, recipe)
        except UnsupportedError as reason:
            found.missing = str(reason)
        except AssertionError as wrong:
            found.wrong = str(wrong)
        except Exception as broken:  # compilers raise what they like; the other rungs go on
            found.wrong = f"{type(broken).__name__}: {str(broken).strip().partition(chr(10))[0]}"
        return found

    def _checked(self, problem: LadderProblem, run: Run) -> float:
        if problem != self._problem:
            self._error = lambda run: math.nan  # the old reference makes room for the new one
            self._error, self._problem = problem.checker(self._how.device), problem
        return self._error(run)

    def _time(self, found: Step, problem: LadderProblem, run: Run) -> None:
        how = self._how
        on_cpu = how.device.type == "cpu"
        sampling, call = Sampling("hot" if on_cpu else "cold", budget=how.budget), problem.call(run)
        sets = TimedSets(problem.tensors(how.device), how.device, sampling)
        taken = measure(call, sets.rotated(call), device=how.device, mode=sampling.mode, rrs=sampling.rrs,
                        budget=how.budget, threads=CPU_THREADS if on_cpu else None)  # fmt: skip
        summary = taken.summary
        found.seconds = {"value": summary.median, "low": summary.low, "high": summary.high}
        found.notes = [*taken.notes, *([BUDGET_ENDED] if taken.ended == "budget" else [])]
        floor = floor_of(problem, how.ceilings)
        if floor is not None:
            found.floor = {"seconds": floor.seconds, "binds": floor.binds, "compute": floor.compute,
                           "memory": floor.memory, "launch": floor.launch}  # fmt: skip
            found.share = floor.seconds / summary.median

    def _profile(self, found: Step, problem: LadderProblem, run: Run, recipe: RungRecipe) -> None:
        how = self._how
        subject = Subject(found.name, problem.call(run), problem.tensors(how.device), how.device, recipe, None,
                          problem.text)  # fmt: skip
        taken = profiled(subject, sampling=Sampling(budget=how.budget), ceilings=how.ceilings, counters=False)
        if how.profile:
            taken.missing["counters"] = NOT_YET
        if len(taken.launches) > MOST_LAUNCHES:
            taken.missing["other launches"] = f"the first {MOST_LAUNCHES} of {len(taken.launches)} are kept"
            taken.launches = taken.launches[:MOST_LAUNCHES]
        taken.flops, taken.bytes, taken.floor = found.flops, found.bytes, found.floor
        if how.energy:
            try:
                taken.energy = measured_energy(
                    subject, flops=found.flops, moved=found.bytes, seconds=ENERGY[0], repetitions=ENERGY[1]
                ).to_dict()
            except UnsupportedError as reason:
                taken.missing["energy"] = str(reason)
        found.profile = taken.to_dict()
        if how.profile:
            self.await_counters(found, taken, recipe)

    def await_counters(self, step: Step, taken: Profile, recipe: RungRecipe) -> None:
        """Counters are read of all rungs of a flight together."""
        self._waiting.append((step, taken, recipe))

    def count(self) -> None:
        """Read the counters of the rungs that wait for them."""
        if not self._waiting:
            return
        self._how.begun("counters")
        add_counters([(taken, pickle.dumps(recipe)) for _, taken, recipe in self._waiting], self._how.device)
        for found, taken, _ in self._waiting:
            found.profile = taken.to_dict()
        self._waiting = []


def floor_of(problem: LadderProblem, known: Ceilings | None) -> Floor | None:
    """The least time of a problem in a graph; a matrix that only moves is held against the rate of a copy.

    None where no ceilings are known, or none for its products.
    """
    if known is None:
        return None
    if not problem.rate:
        moved = problem.work.traffic
        launch = known.launch_graph if known.launch_graph is not None else known.launch_eager
        return Floor(0.0, moved / known.copy, launch, 0.0, 0.0)
    peak = known.rate(problem.rate)
    return work_floor(problem.work, known, peak=peak, in_graph=True) if peak is not None else None


def _add_gains(found: Climb) -> None:
    for step in found.steps:
        before = found.step(step.flight, step.over)
        if before is not None and before.seconds and step.seconds:
            step.gain = before.seconds["value"] / step.seconds["value"]


def _disclosed(which: Ladder, how: How) -> dict[str, Any]:
    found = disclose(
        how.device, workloads={"ladder": which.name, "inputs": "normal random values"},
        correctness="every rung against the oracle's bounds, or bit for bit", ceilings=how.ceilings,
        rrs=Sampling().rrs, budget=how.budget,
    )  # fmt: skip
    if which.on == "cpu":
        found["timing"]["threads"] = CPU_THREADS
    return found

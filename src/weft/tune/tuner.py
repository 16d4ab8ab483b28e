"""Measuring candidates: the cost model's best and a random sample of the rest, each checked before it may win.

The method is that of "Flexible Performant Tensor Contractions on GPUs", section III-D: a random subset of the legal
kernels is compiled and measured, the fastest is kept. Here the model's favourites come first, and measurements are
halved in number as they get longer: all candidates quickly, those near the front again, the last few in full and in
turn. The winner is stored (`weft.planner.tuned`) unless it is told from the model's choice by less than the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch

from weft.errors import UnsupportedError, WeftError, WorkspaceError
from weft.machine import timing
from weft.machine.rotation import Rotation, cache_bytes, memory_bytes, rotation
from weft.oracle.problem import Operands, Problem, described_bytes, is_empty
from weft.planner import tuned as winners
from weft.planner.planner import Choice, families
from weft.planner.schedule import Origin, ResourceError, Target
from weft.planner.validity import now
from weft.tune.candidates import Effort, Outcome, Trial, candidates
from weft.tune.checker import Judge
from weft.tune.compile_pool import Compiler
from weft.tune.journal import Journal
from weft.tune.progress import quiet, shown

NEAR = (1.5, 1.1)  # how far from the fastest a candidate may be to come into the second and the last round
SECOND_ROUND = 6  # candidates at most
LAST_BUDGET = 0.06  # seconds of sampling for each turn of the last round
LONG = 0.1  # seconds of a call that is measured well enough at once
TURNS = 2  # of the last round, in which the candidates follow one another
GLANCE_SECONDS = 5e-4  # by which a glance may be off: what the host spends on launches while compilers keep it busy
NOISE = 0.005  # a winner is this much faster than the model's choice, or the choice stands

Report = Callable[[str, int, int], None]  # what is being done, how many candidates are done, of how many

_one_at_a_time = RLock()  # two tunings on one machine would measure each other


def tuned(choice: Choice, workspace_limit: int | None) -> Choice:
    """What ``tune="measure"`` does when a plan is made: the choice with what measuring found in the first place.

    Raises `UnsupportedError` while a CUDA graph is being captured.
    """
    with _one_at_a_time:
        found = winners.recalled(choice, workspace_limit)  # another thread may have been faster
        if found is not None or is_empty(choice.description):
            return found or choice
        with shown(f"tuning {choice.description.text}") as report:
            return tune(choice, workspace_limit, report=report).choice


def tune(
    choice: Choice,
    workspace_limit: int | None = None,
    effort: Effort | None = None,
    *,
    compiler: Compiler | None = None,
    again: bool = False,
    report: Report = quiet,
) -> Outcome:
    """Measure candidates of `choice` on its target's device and store the fastest.

    `compiler`, where given, may have begun to compile what `candidates` names. `again` forgets what an interrupted
    tuning of the same description has measured. Raises `UnsupportedError` for an empty description, while a CUDA graph
    is being captured, and where no candidate computes the right thing; `WorkspaceError` where memory is too short.
    """
    effort = effort or Effort()
    device = choice.target.device
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("candidates cannot be measured while a CUDA graph is being captured")
    if is_empty(choice.description):
        raise UnsupportedError("a mode is empty: there is nothing to measure")
    began = time.perf_counter()
    trials = candidates(choice.ranked, effort)
    owned = Compiler(choice.target, choice.backend, effort.jobs) if compiler is None else None
    with _one_at_a_time, owned or nullcontext(compiler) as working, on(device):
        assert working is not None
        journal = Journal(choice, workspace_limit, again)
        winner, model = _Session(choice, effort, trials, working, journal, report).run()
    spent = time.perf_counter() - began
    tried = sum(trial.verdict in ("measured", "slow") for trial in trials)
    found = winners.Winner(winner.schedule, winner.best_known, model.schedule, model.best_known, tried)
    winners.remember(choice, workspace_limit, found)
    journal.forget()
    excluded = [f"{trial.schedule}: {trial.reason}" for trial in trials if trial.verdict in ("wrong", "refused")]
    best = winners.first(choice, found, Origin("tuned", now()))
    measured = {trial.schedule: trial.best_known for trial in trials if trial.verdict == "measured"}
    return Outcome(winners.noted(best, measured, excluded), trials, winner, spent, len(choice.ranked))


def measured(choice: Choice, effort: Effort, compiler: Compiler, report: Report = quiet) -> list[Trial]:
    """Build, check and measure candidates quickly, for their own sake: nothing is stored and none is measured again."""
    trials = candidates(choice.ranked, effort)
    with _one_at_a_time, on(choice.target.device):
        _Session(choice, effort, trials, compiler, None, report).look()
    return trials


@dataclass
class _Session:
    """One tuning at work."""

    choice: Choice
    effort: Effort
    trials: list[Trial]
    compiler: Compiler
    journal: Journal | None  # None keeps none
    report: Report
    began: float = 0.0  # when the first candidate was ready: the start of the compilers is nobody's time
    launches: dict[int, Any] = field(default_factory=dict)  # built ones, by the identity of their trial
    glances: dict[int, float] = field(default_factory=dict)

    def run(self) -> tuple[Trial, Trial]:
        """The winner and the trial of the model's choice: the first that can be run at all."""
        try:
            self.look()
            model, last = self._finalists()
            return self._decided(model, last)
        finally:
            if self.journal is not None:
                self.journal.save(self.trials)

    def look(self) -> None:
        """Try every candidate once."""
        if self.journal is not None:
            self.journal.restore(self.trials)
        self._rooms = {room.NAME: room for room in families(self.choice.description, self.choice.backend)}
        self._problem = Problem(self.choice.description, self.choice.target.device)
        compiled = [(trial, self.compiler.submit(self.choice.description, trial.schedule)) for trial in self.trials]
        try:
            self._sets = self._inputs()
            self._judge = Judge(self._problem, Operands(*self._sets.sets[0]), self.effort.seed)
        except torch.OutOfMemoryError:
            size = described_bytes(self.choice.description)
            raise WorkspaceError(f"too little memory to measure candidates on tensors of {size} bytes") from None
        for done, (trial, reason) in enumerate(_as_they_come(compiled)):
            self.began = self.began or time.perf_counter()
            self.report(str(trial.schedule), done, len(self.trials))
            self._try(trial, reason)

    def _inputs(self) -> Rotation:
        device, seeds = self._problem.device, iter(range(1, 1 << 30))
        mode = timing_mode(device)
        return rotation(
            lambda: self._problem.operands(next(seeds)), mode, cache=cache_bytes(device), memory=memory_bytes(device)
        )

    def _try(self, trial: Trial, reason: str | None) -> None:
        """Build, check and measure one candidate, as far as it gets."""
        if trial.verdict != "waiting":
            return  # an interrupted tuning has done it
        if reason is not None:
            trial.verdict, trial.reason = "refused", reason
            return
        late = time.perf_counter() - self.began > self.effort.budget
        if late and any(other.verdict == "measured" for other in self.trials):
            return
        launch = self._built(trial)
        if launch is None:
            return
        if self.journal is not None:
            self.journal.begin(self.trials, trial)
        if not self._right(trial, launch):
            return
        try:
            self._look_at(trial, launch)
        except RuntimeError as error:
            self._fails(trial, error)

    def _look_at(self, trial: Trial, launch: Any) -> None:
        """Time a right candidate, unless a glance says that it is far too slow."""
        glance = timing.glance(self._problem.call(launch), self._sets.sets[0], self._problem.device)
        self.glances[id(trial)] = glance
        best = min(self.glances.values())
        if glance > self.effort.slow * best + GLANCE_SECONDS:
            trial.verdict, trial.seconds = "slow", glance
            trial.reason = f"its first run takes {glance / best:.1f} times as long as the best's"
            return
        trial.seconds = self._timed(trial, budget=0.0, quick=True)[1]
        trial.verdict = "measured"

    def _fails(self, trial: Trial, error: Exception) -> None:
        """Note that a candidate cannot be run; raises anew where it has taken the device along."""
        trial.verdict, trial.reason = "wrong", _first_line(error)
        if self._problem.device.type == "cuda":
            torch.cuda.synchronize(self._problem.device)

    def _built(self, trial: Trial) -> Any:
        """The candidate's launch; None where it cannot be built, which is noted."""
        if id(trial) not in self.launches:
            choice = self.choice
            try:
                room = self._rooms[trial.schedule.family]
                self.launches[id(trial)] = room.build(choice.description, trial.schedule, choice.target)
            except Exception as error:  # compilers raise what they like; a candidate that fails is one less
                trial.verdict = "refused"
                trial.reason = str(error) if isinstance(error, ResourceError | WeftError) else _first_line(error)
        return self.launches.get(id(trial))

    def _right(self, trial: Trial, launch: Any) -> bool:
        """Whether the candidate computes the right thing; what it shows of another is noted as well."""
        try:
            reason, revoked = self._judge.verdict(launch, str(trial.schedule))
        except UnsupportedError:
            raise
        except Exception as error:
            self._fails(trial, error)
            return False
        for other in self.trials:
            if revoked is not None and str(other.schedule) == revoked:
                other.verdict, other.reason = "wrong", f"{trial.schedule} shows it to be wrong"
        if reason is not None:
            trial.verdict, trial.reason = "wrong", reason
        return reason is None

    def _timed(self, trial: Trial, budget: float, quick: bool) -> tuple[tuple[float, ...], float]:
        device = self._problem.device
        taken = timing.measure(
            self._problem.call(self.launches[id(trial)]), self._sets.sets, device=device, mode=timing_mode(device),
            budget=budget, quick=quick,
        )  # fmt: skip
        return taken.samples, taken.seconds

    def _finalists(self) -> tuple[Trial, list[Trial]]:
        """The model's choice and those that a second look leaves near the front, fastest first."""
        near = self._front([trial for trial in self.trials if trial.verdict == "measured"], NEAR[0], SECOND_ROUND)
        if not near:
            first = next((trial for trial in self.trials if trial.reason), None)
            raise UnsupportedError(
                f"no candidate can be measured; {first.schedule}: {first.reason}" if first else "no candidate is left"
            )
        model = next(trial for trial in self.trials if trial.verdict == "measured")
        for trial in near:
            if (trial.seconds or 0.0) < LONG and self._rerun(trial):
                self.report(f"again: {trial.schedule}", len(self.trials), len(self.trials))
                trial.seconds = min(trial.seconds or float("inf"), self._timed(trial, LAST_BUDGET / 3, quick=True)[1])
        last = self._front([trial for trial in near if trial.verdict == "measured"], NEAR[1], self.effort.finals)
        return model, _distinct([model, *last])

    def _decided(self, model: Trial, last: list[Trial]) -> tuple[Trial, Trial]:
        """Measure the last few in full, one after the other in turns, and name the fastest."""
        last = [trial for trial in last if self._rerun(trial)]
        if not last:
            raise UnsupportedError(f"no candidate can be measured again; {model.schedule}: {model.reason}")
        for _ in range(TURNS if len(last) > 1 and last[0].best_known < LONG else 1):
            for trial in last:
                self.report(f"in full: {trial.schedule}", len(self.trials), len(self.trials))
                trial.samples += self._timed(trial, LAST_BUDGET, quick=False)[0]
        winner = min(last, key=lambda trial: trial.best_known)
        if model in last and winner.best_known > (1 - NOISE) * model.best_known:
            winner = model
        return winner, model

    def _front(self, trials: list[Trial], factor: float, most: int) -> list[Trial]:
        fastest = sorted(trials, key=lambda trial: trial.best_known)
        return [trial for trial in fastest[:most] if trial.best_known <= factor * fastest[0].best_known]

    def _rerun(self, trial: Trial) -> bool:
        """Whether a candidate can be timed again: one from an earlier tuning is built and checked anew first."""
        if id(trial) in self.launches:
            return True
        launch = self._built(trial)
        return launch is not None and self._right(trial, launch)


def timing_mode(device: torch.device) -> Any:
    """Operands come from memory on a GPU; on a CPU they are where the last call left them."""
    return "cold" if device.type == "cuda" else "hot"


def on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def begin_compiling(choice: Choice, effort: Effort, compiler: Compiler) -> None:
    """Hand a tuning's candidates to the compilers before its turn has come."""
    for trial in candidates(choice.ranked, effort):
        compiler.submit(choice.description, trial.schedule)


def target_can_run(target: Target) -> bool:
    """Whether candidates for a target can be run on this machine."""
    return target.kind in ("cpu", "interpreter") or torch.cuda.is_available()


def _as_they_come(
    compiled: list[tuple[Trial, Future[str | None]]],
) -> Iterator[tuple[Trial, str | None]]:
    """Trials with what the compiler said of them: the first one first, as the rest are held against it."""
    first, *waiting = compiled
    yield first[0], first[1].result()
    while waiting:
        wait([future for _, future in waiting], return_when=FIRST_COMPLETED)
        ready = [pair for pair in waiting if pair[1].done()]
        waiting = [pair for pair in waiting if pair not in ready]
        for trial, future in ready:
            yield trial, future.result()


def _distinct(trials: list[Trial]) -> list[Trial]:
    return list({id(trial): trial for trial in trials}.values())


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

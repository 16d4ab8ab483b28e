"""Measuring candidates: the cost model's best and a random sample of the rest, each checked before it may win.

The method is that of "Flexible Performant Tensor Contractions on GPUs", section III-D: a random subset of the legal
kernels is compiled and measured, the fastest is kept. Here the model's favourites come first, and measurements are
halved in number as they get longer: all candidates quickly, those near the front again, the last few in full and in
turn. The fastest is stored (`weft.planner.tuned`), or the model's choice where it is slower by less than the noise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar

import torch

from weft.base.figures import duration
from weft.base.forks import free_in_child
from weft.base.kept import refuse_capture
from weft.base.log import log
from weft.errors import UnsupportedError, WeftError, WorkspaceError
from weft.machine import timing
from weft.machine.rotation import Rotation, cache_bytes, memory_bytes, rotation
from weft.oracle.problem import Operands, Problem, described_bytes, is_empty
from weft.planner import tuned as tuned_schedules
from weft.planner.planner import Choice
from weft.planner.registry import first_line
from weft.planner.schedule import Origin, Ranked, ResourceError
from weft.planner.validity import now
from weft.tune.candidates import Candidate, Effort, Journal, Outcome, pick_candidates, with_others
from weft.tune.checker import Checker
from weft.tune.compile_pool import Compiler
from weft.tune.progress import quiet, shown

NEAR = (1.5, 1.1)  # how far from the fastest a candidate may be to come into the second and the last round
SECOND_ROUND = 6  # candidates at most
LONG = 0.1  # seconds of a call that is measured well enough at once
TURNS = 2  # of the last round, in which the candidates follow one another
GLANCE_SECONDS = 5e-4  # by which a glance may be off: what the host spends on launches while compilers keep it busy
NOISE = 0.005  # of the time: what is not faster by more than this does not replace the model's choice

Item = TypeVar("Item")
Made = TypeVar("Made")
Report = Callable[[str, int, int], None]  # what is being done, how many candidates are done, of how many

one_at_a_time = free_in_child(RLock())  # two tunings on one machine would measure each other


def tuned(choice: Choice, workspace_limit: int | None) -> Choice:
    """The choice of ``tune="measure"`` when a plan is made: what measuring found comes first.

    Raises `UnsupportedError` while a CUDA graph is being captured.
    """
    with one_at_a_time:
        found = tuned_schedules.recalled(choice, workspace_limit)  # another thread may have been faster
        if found is not None or is_empty(choice.description):
            return found or choice
        if len(choice.ranked) == 1 and len(with_others(choice, workspace_limit).ranked) == 1:
            return choice
        with shown(f"tuning {choice.description.text}") as report:
            return tune(choice, workspace_limit, report=report).choice


def tune(
    choice: Choice,
    workspace_limit: int | None = None,
    effort: Effort | None = None,
    *,
    compiler: Compiler | None = None,
    again: bool = False,
    also: Sequence[Ranked] = (),
    report: Report = quiet,
) -> Outcome:
    """Measure candidates of `choice` on its target's device and store the fastest.

    The library tier is among them, and the schedules `also`, which come into the last round
    and stand where nothing is faster by more than noise, as the model's choice does. `compiler`, where given, may have
    begun to compile what `candidates` names. `again` forgets what an interrupted tuning of the same description has
    measured. Raises `UnsupportedError` for an empty description, while a CUDA graph is being captured, and where no
    candidate computes the right thing; `WorkspaceError` where memory is too short.
    """
    effort = effort or Effort()
    device = choice.target.device
    refuse_capture(device, "candidates cannot be measured")
    if is_empty(choice.description):
        raise UnsupportedError("a mode is empty: there is nothing to measure")
    began = time.perf_counter()
    choice = with_others(choice, workspace_limit, also)
    candidates = pick_candidates(choice.ranked, effort, also)
    owned = Compiler(choice.target, choice.backend, effort.jobs) if compiler is None else None
    with one_at_a_time, owned or nullcontext(compiler) as working, on(device):
        assert working is not None
        journal = Journal(choice, workspace_limit, again)
        fastest, model = _Session(choice, effort, candidates, working, journal, report, also).run()
    spent = time.perf_counter() - began
    tried = sum(each.verdict in ("measured", "slow") for each in candidates)
    found = tuned_schedules.TunedSchedule(fastest.schedule, fastest.best_known, model.schedule, model.best_known, tried)
    tuned_schedules.remember(choice, workspace_limit, found)
    journal.forget()
    log.info(
        "%s on %s: tuned in %s, %s of %s candidates measured; the fastest is %s, %s (the model's choice %s)",
        choice.description.text, choice.target.name, duration(spent), tried, len(choice.ranked), fastest.schedule,
        duration(fastest.best_known), duration(model.best_known),
    )  # fmt: skip
    excluded = [f"{each.schedule}: {each.reason}" for each in candidates if each.verdict in ("wrong", "refused")]
    best = tuned_schedules.first(choice, found, Origin("tuned", now()))
    measured = {each.schedule: each.best_known for each in candidates if each.verdict == "measured"}
    noted = tuned_schedules.noted(best, measured, excluded)
    tuned_schedules.keep_here(noted, workspace_limit)
    return Outcome(noted, candidates, fastest, spent, len(choice.ranked))


def measured(
    choice: Choice,
    candidates: list[Candidate],
    effort: Effort,
    compiler: Compiler,
    report: Report = quiet,
    turns: int = 0,
) -> None:
    """Build, check and measure candidates quickly, for their own sake, then in full in so many turns; none is stored.

    Raises what a candidate raises that takes the device along.
    """
    with one_at_a_time, on(choice.target.device):
        session = _Session(choice, effort, candidates, compiler, None, report)
        session.look()
        for _ in range(turns):
            session.in_full([each for each in candidates if each.verdict == "measured"])


@dataclass
class _Session:
    """One tuning at work."""

    choice: Choice
    effort: Effort
    candidates: list[Candidate]
    compiler: Compiler
    journal: Journal | None  # None keeps none
    report: Report
    also: Sequence[Ranked] = ()
    began: float = 0.0  # when the first candidate was ready: the start of the compilers is nobody's time
    launches: dict[int, Any] = field(default_factory=dict)  # built ones, by the identity of their candidate
    glances: dict[int, float] = field(default_factory=dict)

    def run(self) -> tuple[Candidate, Candidate]:
        """The fastest candidate and the model's choice, which is the first that can be run at all."""
        try:
            self.look()
            model, last = self._finalists()
            return self._decided(model, last)
        finally:
            if self.journal is not None:
                self.journal.save(self.candidates)

    def look(self) -> None:
        """Try every candidate once."""
        if self.journal is not None:
            self.journal.restore(self.candidates)
        self._problem = Problem(self.choice.description, self.choice.target.device)
        compiled = [(each, self.compiler.submit(self.choice.description, each.rank)) for each in self.candidates]
        try:
            self._sets = self._inputs()
            self._checker = Checker(self._problem, Operands(*self._sets.sets[0]), self.effort.seed)
        except torch.OutOfMemoryError:
            size = described_bytes(self.choice.description)
            raise WorkspaceError(f"too little memory to measure candidates on tensors of {size} bytes") from None
        for done, (candidate, reason) in enumerate(_as_they_come(compiled, self._patience)):
            self.began = self.began or time.perf_counter()
            self.report(str(candidate.schedule), done, len(self.candidates))
            self._try(candidate, reason)

    def _inputs(self) -> Rotation:
        device, seeds = self._problem.device, iter(range(1, 1 << 30))
        mode = timing_mode(device)
        return rotation(
            lambda: self._problem.operands(next(seeds)), mode, cache=cache_bytes(device), memory=memory_bytes(device)
        )

    def _try(self, candidate: Candidate, reason: str | None) -> None:
        """Build, check and measure one candidate, as far as it gets."""
        if candidate.verdict != "waiting":
            return  # an interrupted tuning has done it
        if reason is not None:
            candidate.verdict, candidate.reason = "refused", reason
            return
        if self._patience() == 0.0:
            return
        launch = self._built(candidate)
        if launch is None:
            return
        if self.journal is not None:
            self.journal.begin(self.candidates, candidate)
        if not self._right(candidate, launch):
            return
        try:
            self._look_at(candidate, launch)
        except RuntimeError as error:
            self._fails(candidate, error)

    def _patience(self) -> float | None:
        """Seconds for which further candidates are waited for and begun; None while none is measured."""
        if not any(each.verdict == "measured" for each in self.candidates):
            return None
        return max(0.0, self.began + self.effort.budget - time.perf_counter())

    def _look_at(self, candidate: Candidate, launch: Any) -> None:
        """Time a right candidate, unless a glance says that it is far too slow."""
        glance = timing.glance(self._problem.call(launch), self._sets.sets[0], self._problem.device)
        self.glances[id(candidate)] = glance
        best = min(self.glances.values())
        if glance > self.effort.slow * best + GLANCE_SECONDS:
            candidate.verdict, candidate.seconds = "slow", glance
            candidate.reason = f"its first run takes {glance / best:.1f} times as long as the best's"
            return
        candidate.seconds = self._timed(candidate, budget=0.0, quick=True)[1]
        candidate.verdict = "measured"

    def _fails(self, candidate: Candidate, error: Exception) -> None:
        """Note that a candidate cannot be run; raises anew where it has taken the device along."""
        candidate.verdict, candidate.reason = "wrong", first_line(error)
        if self._problem.device.type == "cuda":
            torch.cuda.synchronize(self._problem.device)

    def _built(self, candidate: Candidate) -> Any:
        """The candidate's launch; None where it cannot be built, which is noted."""
        if id(candidate) not in self.launches:
            choice = self.choice
            try:
                self.launches[id(candidate)] = candidate.rank.build(choice.description, choice.target)
            except Exception as error:  # compilers raise what they like; a candidate that fails is one less
                candidate.verdict = "refused"
                candidate.reason = str(error) if isinstance(error, ResourceError | WeftError) else first_line(error)
        return self.launches.get(id(candidate))

    def _right(self, candidate: Candidate, launch: Any) -> bool:
        """Whether the candidate computes the right thing; what it shows of another is noted as well."""
        try:
            reason, revoked = self._checker.verdict(launch, str(candidate.schedule))
        except UnsupportedError:
            raise
        except Exception as error:
            self._fails(candidate, error)
            return False
        for other in self.candidates:
            if revoked is not None and str(other.schedule) == revoked:
                other.verdict, other.reason = "wrong", f"{candidate.schedule} shows it to be wrong"
        if reason is not None:
            candidate.verdict, candidate.reason = "wrong", reason
        return reason is None

    def _timed(self, candidate: Candidate, budget: float, quick: bool) -> tuple[tuple[float, ...], float]:
        device = self._problem.device
        taken = timing.measure(
            self._problem.call(self.launches[id(candidate)]), self._sets.sets, device=device, mode=timing_mode(device),
            budget=budget, quick=quick,
        )  # fmt: skip
        return taken.samples, taken.seconds

    def _finalists(self) -> tuple[Candidate, list[Candidate]]:
        """The model's choice and those that a second look leaves near the front, fastest first."""
        near = self._front([each for each in self.candidates if each.verdict == "measured"], NEAR[0], SECOND_ROUND)
        if not near:
            first = next((each for each in self.candidates if each.reason), None)
            raise UnsupportedError(
                f"no candidate can be measured; {first.schedule}: {first.reason}" if first else "no candidate is left"
            )
        model = next(each for each in self.candidates if each.verdict == "measured")
        for candidate in near:
            if (candidate.seconds or 0.0) < LONG and self._rerun(candidate):
                self.report(f"again: {candidate.schedule}", len(self.candidates), len(self.candidates))
                seconds = self._timed(candidate, self.effort.last / 3, quick=True)[1]
                candidate.seconds = min(candidate.seconds or float("inf"), seconds)
        last = self._front([each for each in near if each.verdict == "measured"], NEAR[1], self.effort.finals)
        return model, _distinct([model, *self._standing, *last])

    @property
    def _standing(self) -> list[Candidate]:
        """Measured candidates that nothing replaces without being faster by more than noise, besides the model's."""
        return [each for each in self.candidates if each.verdict == "measured" and each.rank in self.also]

    def _decided(self, model: Candidate, last: list[Candidate]) -> tuple[Candidate, Candidate]:
        """Measure the last few in full, one after the other in turns, and name the fastest."""
        last = [each for each in last if self._rerun(each)]
        if not last:
            raise UnsupportedError(f"no candidate can be measured again; {model.schedule}: {model.reason}")
        for _ in range(TURNS if len(last) > 1 and last[0].best_known < LONG else 1):
            self.in_full(last)
        fastest = min(last, key=lambda each: each.best_known)
        for standing in (model, *self._standing):
            if standing in last and fastest.best_known > (1 - NOISE) * standing.best_known:
                fastest = standing
        return fastest, model

    def in_full(self, candidates: list[Candidate]) -> None:
        """Add samples of each, one after the other."""
        for candidate in candidates:
            self.report(f"in full: {candidate.schedule}", len(self.candidates), len(self.candidates))
            candidate.samples += self._timed(candidate, self.effort.last, quick=False)[0]

    def _front(self, candidates: list[Candidate], factor: float, most: int) -> list[Candidate]:
        fastest = sorted(candidates, key=lambda each: each.best_known)
        return [each for each in fastest[:most] if each.best_known <= factor * fastest[0].best_known]

    def _rerun(self, candidate: Candidate) -> bool:
        """Whether a candidate can be timed again: one from an earlier tuning is built and checked anew first."""
        if id(candidate) in self.launches:
            return True
        launch = self._built(candidate)
        return launch is not None and self._right(candidate, launch)


def timing_mode(device: torch.device) -> Any:
    """Operands come from memory on a GPU; on a CPU they are where the last call left them."""
    return "cold" if device.type == "cuda" else "hot"


def on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def begin_compiling(choice: Choice, effort: Effort, compiler: Compiler) -> None:
    """Hand a tuning's candidates to the compilers before its turn has come."""
    for candidate in pick_candidates(choice.ranked, effort):
        compiler.submit(choice.description, candidate.rank)


def ahead_of(items: Iterable[Item], made: Callable[[Item], Made], count: int) -> Iterator[tuple[Item, Made]]:
    """Items with what is `made` of each: of so many more before one has its turn."""
    waiting: deque[tuple[Item, Made]] = deque()
    for item in items:
        waiting.append((item, made(item)))
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def _as_they_come(
    compiled: list[tuple[Candidate, Future[str | None]]], patience: Callable[[], float | None]
) -> Iterator[tuple[Candidate, str | None]]:
    """Candidates with what the compiler said of them: the first one first, as the rest are held against it.

    Those that are not there when `patience` is over are left out.
    """
    first, *waiting = compiled
    yield first[0], first[1].result()
    while waiting:
        done, _ = wait([future for _, future in waiting], patience(), return_when=FIRST_COMPLETED)
        if not done:
            return
        ready = [pair for pair in waiting if pair[1].done()]
        waiting = [pair for pair in waiting if pair not in ready]
        for candidate, future in ready:
            yield candidate, future.result()


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    return list({id(each): each for each in candidates}.values())

"""Many contractions measured under one budget: those that take longest first, equal ones once.

Candidates of the next few are compiled while one is measured. What is found is stored as by any tuning, so it is there
for all who plan such a contraction; what is stored already is not measured again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from weft.base.figures import counted, duration, table
from weft.base.kept import refuse_capture
from weft.errors import ArgumentError, WeftError
from weft.oracle.problem import is_empty
from weft.planner import tuned as tuned_schedules
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Description, Target
from weft.spec import Contraction
from weft.spec.arguments import read_integer, read_real
from weft.tune import tuner
from weft.tune.candidates import FEW, Effort, Outcome, with_others
from weft.tune.compile_pool import Compiler
from weft.tune.progress import shown

BUDGET = 30.0  # seconds where nobody says how many
_AHEAD = 4  # contractions whose candidates are compiled while another is measured
_SHOWN = 12  # rows of a printed report


@dataclass(frozen=True, slots=True)
class TuningTask:
    """The subject of one tuning: a contraction or permutation, what serves it now, and how often it runs."""

    description: Description
    backend: str
    target: Target
    workspace_limit: int | None
    serving: Choice
    times: int = 1

    @property
    def asked(self) -> tuple[Description, str, Target, int | None]:
        return self.description, self.backend, self.target, self.workspace_limit

    @property
    def text(self) -> str:
        """The equation, with the extents of m, n, k and of a batch."""
        found = self.description
        if not isinstance(found, Contraction):
            return found.text
        batch = f"{found.batch} x " if found.batch > 1 else ""
        return f"{found.text} ({batch}{found.m} x {found.n} x {found.k})"

    @property
    def expected(self) -> float:
        """Seconds of all its runs by what is known."""
        best = self.serving.best
        return self.times * (best.seconds if best.measured is None else best.measured)


@dataclass(frozen=True, slots=True)
class TunedStep:
    """A contraction and what came of it. Times are seconds of one run; None where nobody measured."""

    text: str
    times: int  # runs in a call
    schedule: str  # serves now
    predicted: float  # of that schedule
    before: float | None = None  # of what served before
    after: float | None = None
    measured: bool = False  # now, and not by an earlier tuning
    changed: bool = False
    reason: str = ""  # for which nothing was measured


@dataclass
class TuningReport:
    """The account of a tuning: prints itself, and is a dictionary on request."""

    title: str
    budget: float
    steps: list[TunedStep] = field(default_factory=list)
    seconds: float = 0.0  # spent

    @property
    def measured(self) -> int:
        """Number of steps that were measured now."""
        return sum(step.measured for step in self.steps)

    @property
    def changed(self) -> int:
        """Number of steps that another schedule serves now."""
        return sum(step.changed for step in self.steps)

    @property
    def before(self) -> float:
        """Seconds of all runs of the measured steps as they were."""
        return sum(step.times * (step.before or 0.0) for step in self._compared)

    @property
    def after(self) -> float:
        """Seconds of all runs of the measured steps as they are."""
        return sum(step.times * (step.after or 0.0) for step in self._compared)

    @property
    def _compared(self) -> list[TunedStep]:
        return [step for step in self.steps if step.before is not None and step.after is not None]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; times in seconds."""
        return {
            "title": self.title, "budget": self.budget, "spent": self.seconds, "measured": self.measured,
            "changed": self.changed, "before": self.before, "after": self.after, "steps": list(map(asdict, self.steps)),
        }  # fmt: skip

    def __str__(self) -> str:
        known = sum(step.after is not None and not step.measured for step in self.steps)
        left = len(self.steps) - self.measured - known
        lines = [
            f"{self.title}: {self.measured} of {counted(len(self.steps), 'distinct step')} measured in "
            f"{duration(self.seconds)} (budget {duration(self.budget)}), {known} known before, {left} left as they were"
        ]
        if self._compared:
            lines.append(
                f"the measured steps of a call: {duration(self.before)} before, {duration(self.after)} after; "
                f"{counted(self.changed, 'step')} changed"
            )
        longest = sorted(self.steps, key=lambda step: -step.times * (step.before or step.after or step.predicted))
        lines += [_line(step) for step in longest[:_SHOWN]]
        if len(longest) > _SHOWN:
            lines.append(f"  and {len(longest) - _SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """HTML for a notebook."""
        rows = [(step.text, step.times, _time(step.before), _time(step.after), step.schedule) for step in self.steps]
        return table(rows, ("step", "times", "before", "after", "schedule"))


def read_effort(budget: Any, workers: Any) -> tuple[float, int | None]:
    """`budget` in seconds and the number of compilers; `ArgumentError` for what is none."""
    seconds = read_real("budget", budget)
    if math.isnan(seconds) or seconds < 0:
        raise ArgumentError(f"budget is a number of seconds, 0 or more, not {budget!r}")
    return seconds, None if workers is None else read_integer("workers", workers, 0)


def tune_many(tasks: Sequence[TuningTask], report: TuningReport, workers: int | None = None) -> None:
    """Measure the candidates of tasks until the report's budget is over, and note in the report what was found.

    What was found when Ctrl-C comes is noted. Raises `UnsupportedError` while a CUDA graph is being captured.
    """
    for task in tasks:
        refuse_capture(task.target.device, "candidates cannot be measured")
    run = _TuningRun(tasks, report, workers)
    try:
        run.go()
    finally:
        report.seconds = run.spent
        report.steps += [_untouched(task, "the budget was over") for task in run.waiting]


class _TuningRun:
    """One tuning of many at work."""

    def __init__(self, tasks: Sequence[TuningTask], report: TuningReport, workers: int | None) -> None:
        self.waiting = sorted(tasks, key=lambda task: -task.expected)
        self._report, self._workers = report, workers
        self._began, self._total = time.perf_counter(), len(self.waiting)
        self._compilers: dict[tuple[Target, str], Compiler] = {}

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._began

    @property
    def _left(self) -> float:
        return max(0.0, self._report.budget - self.spent)

    def go(self) -> None:
        with ExitStack() as stack, shown(self._report.title) as show:
            for task, planned in tuner.ahead_of(tuple(self.waiting), partial(self._plan, stack=stack), _AHEAD):
                self._done = len(self._report.steps)
                show(task.text, self._done, self._total)
                step = self._step(task, planned, show)
                self._report.steps.append(step)
                self.waiting.remove(task)

    def _plan(self, task: TuningTask, stack: ExitStack) -> Choice | str:
        """The stored choice, or the model's, whose candidates the compilers have then."""
        if is_empty(task.description):
            return "a mode is empty"
        if not self._left and not tuned_schedules.is_stored(*task.asked):
            return "the budget was over"
        try:
            choice = choose(*task.asked)
        except WeftError as error:
            return str(error)
        found = tuned_schedules.recalled(choice, task.workspace_limit)
        if found is None and self._left:
            compiler = self._compiler(task, stack)
            tuner.begin_compiling(with_others(choice, task.workspace_limit), self._effort, compiler)
        return found or choice

    def _compiler(self, task: TuningTask, stack: ExitStack) -> Compiler:
        place = task.target, task.backend
        if place not in self._compilers:
            self._compilers[place] = stack.enter_context(Compiler(*place, self._workers))
        return self._compilers[place]

    @property
    def _effort(self) -> Effort:
        return replace(FEW, budget=self._left, jobs=self._workers)

    def _step(self, task: TuningTask, planned: Choice | str, show: tuner.Report) -> TunedStep:
        """The report's line for a task."""
        if isinstance(planned, str):
            return _untouched(task, planned)
        with tuner.one_at_a_time:  # another thread may have been faster
            found = tuned_schedules.recalled(planned, task.workspace_limit)
            if found is not None:
                tuned_schedules.keep_here(found, task.workspace_limit)
                return self._noted(task, found, None)
            if not self._left:
                return _untouched(task, "the budget was over")
            text, done, total = task.text, self._done, self._total
            try:
                outcome = tuner.tune(
                    planned, task.workspace_limit, self._effort,
                    compiler=self._compilers.get((task.target, task.backend)), also=(task.serving.best,),
                    report=lambda what, at, of: show(f"{text}: {what}", done, total),
                )  # fmt: skip
            except WeftError as error:
                return _untouched(task, str(error))
        return self._noted(task, outcome.choice, outcome)

    def _noted(self, task: TuningTask, choice: Choice, outcome: Outcome | None) -> TunedStep:
        """The report's line for a task whose fastest schedule is known."""
        served, best = task.serving.best.schedule, choice.best
        before = _seconds_of(outcome, served)
        if outcome is None and best.schedule == served:
            before = best.measured
        return TunedStep(
            task.text, task.times, str(best.schedule), best.seconds, before, best.measured,
            outcome is not None, best.schedule != served,
        )  # fmt: skip


def _seconds_of(outcome: Outcome | None, schedule: Any) -> float | None:
    """Seconds that a schedule took in a tuning."""
    for candidate in outcome.candidates if outcome is not None else ():
        if candidate.schedule == schedule and candidate.verdict in ("measured", "slow"):
            return candidate.best_known
    return None


def _untouched(task: TuningTask, reason: str) -> TunedStep:
    best = task.serving.best
    return TunedStep(task.text, task.times, str(best.schedule), best.seconds, reason=reason)


def _line(step: TunedStep) -> str:
    times = f"{step.times} x " if step.times > 1 else ""
    if step.after is None:
        return f"  {times}{step.text}: {step.reason}"
    change = "now" if step.changed else "still"
    return f"  {times}{step.text}: {_time(step.before)} -> {_time(step.after)}, {change} {step.schedule}"


def _time(seconds: float | None) -> str:
    return "not measured" if seconds is None else duration(seconds)

"""Before a plan uses a family for the first time on a machine, the family's trials are run, and what they find is kept.

Only what was chosen is tested, and only the part of a family that the chosen schedule belongs to, so that a first call
costs about one more kernel. A family that fails is excluded, with one warning, and the plan is made of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

from weft.base.forks import free_in_child
from weft.errors import UnsupportedError
from weft.planner import verdicts
from weft.planner.planner import Choice
from weft.planner.registry import family_names
from weft.planner.schedule import Ranked, Target
from weft.planner.verdicts import Verdict

if TYPE_CHECKING:
    from weft.selftest.cases import Trial

_testing: ContextVar[bool] = ContextVar("within a self-test", default=False)
_one_at_a_time = free_in_child(RLock())


def admitted(choice: Choice) -> bool:
    """Whether every family that a choice is made of may be used; False once one has been excluded: choose anew."""
    if _testing.get() or not verdicts.applies(choice.backend, choice.target):
        return True
    for family in verdicts.failures(choice.backend, choice.target, family_names(choice.description, choice.backend)):
        verdicts.warn_once(family, choice.backend, choice.target)  # one that this choice was made without
    return all(_admitted(*part, choice.backend, choice.target) for part in parts(choice))


def check_in_place(family: str, described: Any, backend: str, target: Target) -> None:
    """Admit a transposition in place, which no other family can do: `UnsupportedError` where it is excluded."""
    if _testing.get() or not verdicts.applies(backend, target):
        return
    if not _admitted(family, described, None, backend, target):
        why = verdicts.failure(family, backend, target)
        raise UnsupportedError(f"matrices cannot be transposed in place: {why}; weft.permute makes a transposed copy")


def parts(choice: Choice) -> Iterator[tuple[str, Any, Any]]:
    """Family (its module), description and schedule of a choice, and of each step of a schedule that has steps."""
    schedule = choice.best.schedule
    yield choice.best.family.__name__, choice.description, schedule
    for step in getattr(schedule, "choices", ()):
        yield from parts(step)


def awaited(choice: Choice) -> Iterator[tuple[Any, Ranked]]:
    """The descriptions and schedules that self-tests build before a choice is admitted, for compiling them ahead."""
    from weft.selftest.cases import trials_of
    from weft.selftest.trials import problem, schedules

    if _testing.get() or not verdicts.applies(choice.backend, choice.target):
        return
    for family, description, schedule in parts(choice):
        known = verdicts.known(family, choice.backend, choice.target)
        for trial in trials_of(family, choice.backend):
            if trial.name in known or not trial.covers(description, schedule):
                continue
            described = problem(trial.case, torch.device("cpu")).description
            found = schedules(trial, described, choice.backend, choice.target)
            if isinstance(found, Choice):
                yield described, found.best


def _admitted(family: str, description: Any, schedule: Any, backend: str, target: Target) -> bool:
    from weft.selftest.cases import trials_of

    wanted = [trial for trial in trials_of(family, backend) if trial.covers(description, schedule)]
    known = verdicts.known(family, backend, target)
    untried = [trial for trial in wanted if trial.name not in known]
    if untried and not _must_wait(target):
        run(untried, backend, target)
    if verdicts.failure(family, backend, target) is None:
        return True
    verdicts.warn_once(family, backend, target)
    return False


def run(
    trials: Iterable[Trial], backend: str, target: Target, report: Callable[[Trial], None] = lambda trial: None
) -> dict[Trial, Verdict]:
    """Run trials and keep what they find; those that cannot be run for now are left for another time.

    `report` hears of each before it is run.
    """
    from weft.selftest.trials import Deferred, verdict

    found = {}
    with _one_at_a_time, _within():
        if target.kind in ("cuda", "hip"):
            torch.cuda.synchronize(target.device)  # an error of what ran before is no family's
        for trial in trials:
            report(trial)
            with suppress(Deferred):
                found[trial] = verdict(trial, backend, target)
                verdicts.record(trial.family, backend, target, {trial.name: found[trial]})
    return found


@contextmanager
def _within() -> Iterator[None]:
    """Plans that are made within are not tested themselves."""
    token = _testing.set(True)
    try:
        yield
    finally:
        _testing.reset(token)


def _must_wait(target: Target) -> bool:
    """Whether nothing can be run now: within a graph capture, or where tensors only pretend."""
    if target.kind in ("cuda", "hip") and torch.cuda.is_current_stream_capturing():
        return True
    return type(torch.empty(0, device="cpu")) is not torch.Tensor

"""One case run on a schedule of its family, twice, and judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from weft.base.arrays import grad_mode
from weft.errors import UnsupportedError
from weft.machine.shortage import causes_of, is_of_memory, is_shortage
from weft.planner.planner import Choice
from weft.planner.registry import first_line
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.validity import now
from weft.planner.verdicts import Verdict
from weft.selftest.cases import InPlaceCase, Trial
from weft.selftest.problems import TrialProblem, in_place, problem

_COMPILERS = ("triton", "numba", "llvmlite")
RUNS = 2  # of each launch, the second on the heels of what the first has left


class Deferred(Exception):
    """A trial could not be run for now, for a reason that is no family's fault."""


def verdict(trial: Trial, backend: str, target: Target) -> Verdict:
    """Run a trial on the target's device. `Deferred` where memory is short or a CUDA graph is being captured.

    Whatever else is raised by planning, compiling or running counts as the family's failure, but only wrong values and
    what compilers say is true of later processes as well: another error may be of this one.
    """
    began = time.perf_counter()
    absent = reason = None
    passing = False
    try:
        with grad_mode(False), _on_the_cpu():
            absent, reason = _tried(trial, backend, target)
    except Exception as error:
        if is_of_memory(error) or "captur" in str(error):  # by another thread
            raise Deferred(first_line(error)) from None
        reason, passing = first_line(error), is_shortage(error) or not _is_compilers(error)
    return Verdict(reason, now(), time.perf_counter() - began, absent, passing)


def _is_compilers(error: BaseException) -> bool:
    """Whether a compiler has said it, or an error that it came of."""
    kinds = [kind for each in causes_of(error) for kind in type(each).__mro__]
    return any(kind.__module__.partition(".")[0] in _COMPILERS for kind in kinds)


def schedules(trial: Trial, description: Description, backend: str, target: Target) -> Choice | str:
    """The schedules that a trial stands for, the best priced first; or why its family has none here."""
    room: Any = import_module(trial.family)
    if (reason := room.supports(description, target)) is not None:
        return str(reason)
    found = [each for each in room.schedules(description, target).schedules if trial.runs(description, each)]
    if not found:
        return "no schedule of this kind is offered"
    priced = (Ranked(each, room.predict(description, each, target), room) for each in found)
    ranked = sorted(priced, key=lambda rank: rank.seconds)
    return Choice(description, backend, target, ranked[0], tuple(ranked))


def _on_the_cpu() -> AbstractContextManager[Any]:
    """Takes back a default device that the caller may have chosen for its own tensors; else costs nothing."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _tried(trial: Trial, backend: str, target: Target) -> tuple[str | None, str | None]:
    """Why a trial cannot be run here, and what was wrong with it."""
    made = problem(trial.case, target.device)
    launch = _launch(trial, made, backend, target)
    if isinstance(launch, str):
        return launch, None
    for _ in range(RUNS):
        made.run(launch)
        if (fault := made.fault()) is not None:
            return None, fault
    return None, None


def _launch(trial: Trial, made: TrialProblem, backend: str, target: Target) -> Callable[..., None] | str:
    """The built launch of a trial; or why there is none."""
    if isinstance(trial.case, InPlaceCase):
        room: ModuleType = import_module(trial.family)
        return partial(_on, target, in_place(room, made.description))
    try:
        found = schedules(trial, made.description, backend, target)
        if isinstance(found, str):
            return found
        return partial(_on, target, found.built()[1])
    except UnsupportedError as error:  # of a step, or of what the device can hold
        return str(error)


def _on(target: Target, launch: Callable[..., None], *arguments: Any) -> None:
    """A launch on the device of the target, whichever is current."""
    if target.kind not in ("cuda", "hip"):
        launch(*arguments)
        return
    with torch.cuda.device(target.device):
        launch(*arguments)

"""All trials of a backend in one go, for `weft doctor`: their kernels are compiled by other processes meanwhile."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import torch

from weft.planner.planner import Choice
from weft.planner.registry import imported, triton_fault
from weft.planner.schedule import Target
from weft.planner.verdicts import Verdict
from weft.selftest import gate
from weft.selftest.cases import InPlaceCase, Trial, trials
from weft.selftest.problems import described
from weft.selftest.trials import schedules

SECONDS = 30.0  # that a compiling process may take


def whole(
    backend: str, target: Target, report: Callable[[Trial], None] = lambda trial: None
) -> dict[Trial, Verdict | None]:
    """Run every trial of a backend on a device that is here, and keep what they find.

    None for a trial that could not be run for now; nothing for a family that cannot be imported. `report` hears of each
    trial before it is run.
    """
    able = [trial for trial in trials(backend) if not isinstance(imported(trial.family), str)]
    # Those in place cannot be compiled ahead: they are run while the others are compiled.
    wanted = sorted(able, key=lambda trial: not isinstance(trial.case, InPlaceCase))
    compiling = _compiled_ahead(wanted, backend, target)

    def before(trial: Trial) -> None:
        report(trial)
        if trial in compiling:
            _awaited(compiling.pop(trial))

    try:
        found = gate.run(wanted, backend, target, before)
    finally:
        for child in compiling.values():
            _ended(child)
    return {trial: found.get(trial) for trial in able}


def _compiled_ahead(wanted: list[Trial], backend: str, target: Target) -> dict[Trial, int]:
    """A process for each trial that has kernels to compile; what it compiles lies in Triton's cache.

    Forked, as a new interpreter would import for longer than it compiles: this is for a process of weft's own, which
    runs nothing else meanwhile.
    """
    if target.kind != "cuda" or not hasattr(os, "fork") or triton_fault() is not None:
        return {}
    for shared in ("triton.compiler", "weft.tune.compile_worker"):
        import_module(shared)  # once for all children
    children = {}
    for trial in wanted:
        if isinstance(trial.case, InPlaceCase):
            continue
        with contextlib.suppress(Exception):  # what fails here fails again, with a verdict
            choice = schedules(trial, described(trial.case), backend, target)
            if isinstance(choice, Choice):
                child = os.fork()
                if child == 0:
                    _compile_and_leave(choice)
                children[trial] = child
    return children


def _compile_and_leave(choice: Choice) -> NoReturn:
    """What a child does; it never touches the GPU, whose driver does not survive a fork."""
    from triton.runtime import driver

    from weft.tune.compile_worker import AbsentDriver, Task, compile_schedule

    try:
        gc.disable()  # it would copy the parent's memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.cuda.is_available = lambda: False
        torch.set_num_threads(1)
        driver.set_active(AbsentDriver(choice.target.capability))
        compile_schedule(Task(0, choice.description, choice.best), choice.target)
    except BaseException:  # it is compiled where it is built, and fails there
        pass
    finally:
        os._exit(0)


def _awaited(child: int) -> None:
    """Wait until a child has ended, or its time is up."""
    deadline = time.monotonic() + SECONDS
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                _ended(child)
                return
            time.sleep(0.002)


def _ended(child: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(child, 9)
        os.waitpid(child, 0)

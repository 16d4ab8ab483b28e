"""All trials of a backend in one go, for `weft doctor`: their kernels are compiled by other processes meanwhile."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, NoReturn

import torch

from weft.planner.planner import Choice
from weft.planner.registry import imported, triton_fault
from weft.planner.schedule import Target
from weft.planner.target import standing_for
from weft.planner.verdicts import Verdict
from weft.selftest import gate
from weft.selftest.cases import InPlaceCase, Trial, trials
from weft.selftest.trials import in_place, problem, schedules

if TYPE_CHECKING:
    from weft.gpu.common.launch import KernelLaunch

SECONDS = 30.0  # that compiling may take


def whole(
    backend: str, target: Target, report: Callable[[Trial], None] = lambda trial: None
) -> dict[Trial, Verdict | None]:
    """Run every trial of a backend on a device that is here, and keep what they find.

    None for a trial that could not be run for now; nothing for a family that cannot be imported. `report` hears of each
    trial before it is run.
    """
    with ThreadPoolExecutor(1) as alongside:
        if _compiles_ahead(target):  # Triton hashes its whole library, once for all children
            alongside.submit(import_module("weft.gpu.common.triton_versions").hash_compiler)
        able = [trial for trial in trials(backend) if not isinstance(imported(trial.family), str)]
    compiling = _compiled_ahead(able, backend, target)
    try:
        found = gate.run(_as_compiled(able, compiling), backend, target, report)
    finally:
        for child in compiling.values():
            _ended(child)
    return {trial: found.get(trial) for trial in able}


def _compiles_ahead(target: Target) -> bool:
    """Whether kernels are compiled in other processes."""
    return target.kind == "cuda" and hasattr(os, "fork") and triton_fault() is None


def _compiled_ahead(wanted: list[Trial], backend: str, target: Target) -> dict[Trial, BaseProcess]:
    """A process for each trial, and in it one for each kernel; what they compile is stored.

    Forked, as a new interpreter would import for longer than it compiles: this is for a process of weft's own, which
    runs nothing else meanwhile.
    """
    if not _compiles_ahead(target):
        return {}
    for shared in ("triton.compiler", "weft.tune.compile_worker"):
        import_module(shared)  # once for all children
    forked = multiprocessing.get_context("fork").Process
    children: dict[Trial, BaseProcess] = {
        trial: forked(target=_compile_and_leave, args=(trial, backend, target)) for trial in wanted
    }
    for child in children.values():
        child.start()
    return children


def _compile_and_leave(trial: Trial, backend: str, target: Target) -> NoReturn:
    """Compile a trial's kernels in a child; it never touches the GPU, whose driver does not survive a fork."""
    from weft.tune.compile_worker import compile_launch, in_place_of_the_driver

    try:
        gc.disable()  # it would copy the parent's memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.setpgid(0, 0)  # for `_ended`
        os.nice(10)  # or some fifty of these leave the process that runs the trials no core
        torch.set_num_threads(1)
        in_place_of_the_driver(target)
        first, *others = _launches(trial, backend, target)
        kernel = first
        children: list[int] = []
        for other in others:
            if (child := os.fork()) == 0:
                kernel, children = other, []
                break
            children.append(child)
        compile_launch(kernel)
        for child in children:
            os.waitpid(child, 0)
    except BaseException:  # it is compiled where it is built, and fails there
        pass
    finally:
        os._exit(0)


def _launches(trial: Trial, backend: str, target: Target) -> list[KernelLaunch]:
    """The launches that a trial will make, of tensors with its own layouts."""
    from weft.gpu.common.launch import collected

    with collected() as made, standing_for(target):
        given = problem(trial.case, torch.device("cpu"))
        if isinstance(trial.case, InPlaceCase):
            given.launched(in_place(import_module(trial.family), given.description))
        elif isinstance(choice := schedules(trial, given.description, backend, target), Choice):
            choice.built()
    return made


def _as_compiled(wanted: list[Trial], compiling: dict[Trial, BaseProcess]) -> Iterator[Trial]:
    """Trials in the order in which their kernels are there; those that take too long, last. Empties `compiling`."""
    yield from (trial for trial in wanted if trial not in compiling)
    deadline = time.monotonic() + SECONDS
    while compiling and (left := deadline - time.monotonic()) > 0:
        ready = wait([child.sentinel for child in compiling.values()], left)
        for trial in [trial for trial, child in compiling.items() if child.sentinel in ready]:
            compiling.pop(trial).join()
            yield trial
    while compiling:
        trial, child = compiling.popitem()
        _ended(child)
        yield trial


def _ended(child: BaseProcess) -> None:
    """End a child and those that it has started."""
    assert child.pid is not None, "it was started"
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()

"""Compiling ahead: candidates are compiled by other processes while this one measures.

Machine code is kept in weft's store, or in Triton's cache, under the key that this process will look it up by. Only for
NVIDIA GPUs: elsewhere nothing is compiled, or it is compiled when it is built.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from types import ModuleType, TracebackType
from typing import Any

import torch

from weft.base.interpreter import command, environment
from weft.fn import Pointwise
from weft.machine.identity import usable_cores
from weft.planner.registry import LIBRARIES
from weft.planner.schedule import Description, Ranked, Target
from weft.tune.compile_worker import Task

_LOWEST = 19  # of priorities
MOST_JOBS = 16  # more compilers than these starve one another of memory bandwidth


class Compiler:
    """Compiles schedules for a target in the background. A context: leaving it ends what is still at work."""

    def __init__(self, target: Target, backend: str, jobs: int | None = None, idle: float = math.inf) -> None:
        """`jobs`: compilers at once, by default one for each core but one; 0 compiles nothing ahead. `idle`: seconds
        after which the process ends that nobody wants anything of; the next task starts another."""
        self.jobs = default_jobs() if jobs is None else jobs
        self._header = target, backend, self.jobs, idle
        self._useful = target.kind == "cuda" and self.jobs > 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[int, Future[Any]] = {}
        self._asked: dict[tuple[Description, Ranked], Future[str | None]] = {}
        self._numbers = count(1)
        self._messages: SimpleQueue[Any] = SimpleQueue()  # of the process that is there
        self._lock = Lock()
        self.works = False  # whether the process has imported what it needs

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Have the compiling process there before anything is wanted of it."""
        with self._lock:
            self._starts()

    def submit(self, description: Description, rank: Ranked) -> Future[str | None]:
        """A future of None, or of the reason why this schedule cannot be compiled for the device.

        Where nothing can be done ahead (another kind of device, torch's own operations, a function that does not
        travel) it is there at once.
        """
        known = self._asked.get((description, rank))
        if known is None:
            task = None if rank.family.__name__ in LIBRARIES else Task(description, rank)
            known = self._asked[description, rank] = self._sent(task)
        return known

    def plan(self, description: Description, workspace_limit: int | None) -> Future[Any]:
        """A future of the schedule that the planner chooses, compiled: its family's name, and the schedule as it is
        stored, by name; of anything else where it is to be chosen here."""
        return self._sent(Task(description, None, workspace_limit))

    def _sent(self, task: Task | None) -> Future[Any]:
        frame = _pickled(task) if self._useful and task is not None else None
        future: Future[Any] = Future()
        with self._lock:
            if frame is not None and self._starts():
                number = next(self._numbers)
                self._pending[number] = future
                self._messages.put((number, frame))
                return future
        future.set_result(None)
        return future

    def close(self) -> None:
        """End the compiling process and what it still works on; futures that are open say None."""
        with self._lock:
            self._useful = False
            process = self._process
        if process is not None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # its children with it
            self._ended(process)

    def _starts(self) -> bool:
        """Whether there is a compiling process, which is started where there is none."""
        if self._process is None and self._useful:
            ours, theirs = socket.socketpair()
            # No GPU for the compilers; a group of their own, so that Ctrl-C reaches them through us alone.
            with theirs, ours:
                try:
                    self._process = subprocess.Popen(
                        command("-c", f"from weft.tune.compile_worker import main; main({os.getpid()})"),
                        stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment(CUDA_VISIBLE_DEVICES=""),
                        start_new_session=True,
                    )  # fmt: skip
                except OSError:  # it is compiled where it is built
                    self._useful = False
                    return False
                if self._header[-1] < math.inf:  # nobody waits for it: the program's own work comes first
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST)
                link, self._messages = Connection(ours.detach()), SimpleQueue()
            self._messages.put(self._header)
            for work in (_feed, self._listen):
                Thread(target=work, args=(link, self._messages, self._process), daemon=True).start()
        return self._process is not None

    def _listen(self, link: Connection, messages: SimpleQueue[Any], process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError, EOFError), link:
            while True:
                number, found = link.recv()
                self.works = True
                with self._lock:
                    future = self._pending.pop(number, None)
                if future is not None:
                    future.set_result(found)
        messages.put(None)
        self._ended(process)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """The process is gone, for good unless nobody wanted anything of it: what is open is compiled where it is
        built."""
        failed = process.wait() != 0
        with self._lock:
            if self._process is not process:
                return
            self._process, self._useful, self.works = None, self._useful and not failed, False
            pending, self._pending, self._asked = self._pending, {}, {}
        for future in pending.values():
            future.set_result(None)


def _feed(link: Connection, messages: SimpleQueue[Any], process: object) -> None:
    """Send messages as the compilers take them: they import for seconds before the first."""
    with suppress(OSError):
        while (message := messages.get()) is not None:
            link.send(message)


def default_jobs() -> int:
    """One for each core that this process may use but its own."""
    return max(1, min(MOST_JOBS, len(usable_cores()) - 1))


class TravellingFunction(Pointwise):
    """A recorded function in another process: its Triton source and what describes it, all that compiling takes."""

    source = ""
    flops = 0
    elementary = 0
    issue_slots = 0.0
    at_zero: float | None = None

    def __init__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)

    @property
    def jit(self) -> Any:
        from weft.fn.triton.device_code import jit_function

        return jit_function(self.source)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a function that has travelled is compiled, not run")


_CARRIED = ("identity", "source", "inputs", "dtypes", "result", "flops", "elementary", "issue_slots", "at_zero")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Pointwise):
            if type(value).__name__ == "TritonFunction":
                raise pickle.PicklingError("a Triton function may read globals of this process")
            return TravellingFunction, ({name: getattr(value, name) for name in _CARRIED},)
        if isinstance(value, ModuleType):  # a family
            return import_module, (value.__name__,)
        return NotImplemented


def _pickled(task: Task) -> bytes | None:
    """The task as bytes; None for one with parts that only this process has."""
    stream = io.BytesIO()
    pickler: Callable[[Any], None] = _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump
    try:
        pickler(task)
    except Exception:  # pickling calls what users wrote, which may raise anything
        return None
    return stream.getvalue()

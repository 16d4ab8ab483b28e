"""Compiling ahead: candidates are compiled by other processes while this one measures.

Machine code is kept in weft's store, or in Triton's cache, under the key that this process will look it up by. Only for
NVIDIA GPUs: elsewhere nothing is compiled, or it is compiled when it is built.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread
from types import ModuleType, TracebackType
from typing import Any

import torch

from weft.base.interpreter import command, environment
from weft.fn import Pointwise
from weft.planner.registry import LIBRARIES
from weft.planner.schedule import Description, Ranked, Target
from weft.tune.compile_worker import LENGTH, Task

MOST_JOBS = 16  # more compilers than these starve one another of memory bandwidth


class Compiler:
    """Compiles schedules for a target in the background. A context: leaving it ends what is still at work."""

    def __init__(self, target: Target, backend: str, jobs: int | None = None) -> None:
        """`jobs`: compilers at once, by default one for each core but one; 0 compiles nothing ahead."""
        self.jobs = default_jobs() if jobs is None else jobs
        self._header = {"target": target, "backend": backend, "jobs": max(self.jobs, 1)}
        self._useful = target.kind == "cuda" and self.jobs > 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[int, Future[str | None]] = {}
        self._asked: dict[tuple[Description, Ranked], Future[str | None]] = {}
        self._numbers = count(1)
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._gone = False
        self._lock = Lock()

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def submit(self, description: Description, rank: Ranked) -> Future[str | None]:
        """A future of None, or of the reason why this schedule cannot be compiled for the device.

        Where nothing can be done ahead (another kind of device, torch's own operations, a function that does not
        travel) it is there at once.
        """
        known = self._asked.get((description, rank))
        if known is not None:
            return known
        future: Future[str | None] = Future()
        self._asked[description, rank] = future
        if rank.family.__name__ in LIBRARIES:
            future.set_result(None)
            return future
        self._send(Task(next(self._numbers), description, rank), future)
        return future

    def plan(self, description: Description, workspace_limit: int | None) -> Future[str | None]:
        """A future of the schedule that the planner chooses, compiled, as `compile_worker.chosen_of` reads it; of
        anything else where it is to be chosen here."""
        future: Future[str | None] = Future()
        self._send(Task(next(self._numbers), description, None, workspace_limit), future)
        return future

    def _send(self, task: Task, future: Future[str | None]) -> None:
        frame = _pickled(task) if self._useful else None
        if frame is None:
            future.set_result(None)
            return
        with self._lock:
            self._pending[task.number] = future
        self._start()
        self._frames.put(LENGTH.pack(task.number) + frame)
        if self._gone:
            self._give_up()

    def close(self) -> None:
        """End the compiling process and what it still works on; futures that are open say None."""
        self._useful = False
        process, self._process = self._process, None
        if process is not None:
            self._frames.put(None)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # its children with it
            process.wait()
        self._give_up()

    def _start(self) -> None:
        if self._process is None and not self._gone:
            # No GPU for the compilers; a group of their own, so that Ctrl-C reaches them through us alone.
            self._frames.put(pickle.dumps(self._header))
            try:
                self._process = subprocess.Popen(
                    command("-c", f"from weft.tune.compile_worker import main; main({os.getpid()})"),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(CUDA_VISIBLE_DEVICES=""),
                    start_new_session=True,
                )  # fmt: skip
            except OSError:  # it is compiled where it is built
                self._gone = True
                return
            for work in (self._feed, self._listen):
                Thread(target=work, args=(self._process,), daemon=True, name="weft compilers").start()

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Write frames as the compilers take them: they import for seconds before the first."""
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stream:
            while (frame := self._frames.get()) is not None:
                stream.write(LENGTH.pack(len(frame)) + frame)
                stream.flush()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with suppress(ValueError), process.stdout as stream:  # what is no answer ends it
            for line in stream:
                number, reason = json.loads(line)
                with self._lock:
                    future = self._pending.pop(number, None)
                if future is not None:
                    future.set_result(reason)
        self._give_up()

    def _give_up(self) -> None:
        """The compilers are gone: what is open will be compiled where it is built."""
        self._gone = True
        with self._lock:
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_result(None)


def default_jobs() -> int:
    """One for each core that this process may use but its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_JOBS, cores - 1))


class TravellingFunction(Pointwise):
    """A recorded function in another process: its Triton source and what describes it, all that compiling takes."""

    source = ""
    flops = 0
    elementary = 0
    issue_slots = 0.0
    at_zero: float | None = None

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    @classmethod
    def of(cls, function: Pointwise) -> dict[str, Any]:
        """The fields of a function that travel to another process."""
        return {name: getattr(function, name) for name in _CARRIED}

    @property
    def jit(self) -> Any:
        from weft.fn.triton.device_code import jit_function

        return jit_function(self.source)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a function that has travelled is compiled, not run")


_CARRIED = ("identity", "source", "inputs", "dtypes", "result", "flops", "elementary", "issue_slots", "at_zero")


def _arrived(fields: dict[str, Any]) -> TravellingFunction:
    return TravellingFunction(**fields)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Pointwise):
            if type(value).__name__ == "TritonFunction":
                raise pickle.PicklingError("a Triton function may read globals of this process")
            return _arrived, (TravellingFunction.of(value),)
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

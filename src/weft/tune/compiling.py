"""Compiling ahead: candidates are compiled by other processes while this one measures.

What comes of it lies in Triton's cache on disk, under the key that this process will look it up by. Only for NVIDIA
GPUs: elsewhere nothing is compiled, or it is compiled when it is built.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from types import TracebackType
from typing import Any

import torch

from weft.fn import Pointwise
from weft.plan.schedule import Description, Schedule, Target
from weft.tune.worker import LENGTH, Task

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
        self._asked: dict[tuple[Description, Schedule], Future[str | None]] = {}
        self._lock = Lock()

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def submit(self, description: Description, schedule: Schedule) -> Future[str | None]:
        """A future of None, or of the reason why this schedule cannot be compiled for the device.

        Where nothing can be done ahead (another kind of device, a function that does not travel) it is there at once.
        """
        known = self._asked.get((description, schedule))
        if known is not None:
            return known
        future: Future[str | None] = Future()
        self._asked[description, schedule] = future
        frame = _pickled(Task(len(self._asked), description, schedule)) if self._useful else None
        if frame is None:
            future.set_result(None)
            return future
        with self._lock:
            self._pending[len(self._asked)] = future
        if not self._send(LENGTH.pack(len(self._asked)) + frame):
            self._give_up()
        return future

    def close(self) -> None:
        """End the compiling process and what it still works on; futures that are open say None."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self._give_up()

    def _send(self, frame: bytes) -> bool:
        try:
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(LENGTH.pack(len(frame)) + frame)
            process.stdin.flush()
        except OSError:
            return False
        return True

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # No GPU for the compilers; their own group, so that Ctrl-C reaches them through us alone.
            environment = os.environ | {
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weft.tune.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )  # fmt: skip
            assert self._process.stdin is not None
            header = pickle.dumps(self._header)
            self._process.stdin.write(LENGTH.pack(len(header)) + header)
            Thread(target=self._listen, args=(self._process,), daemon=True, name="weft compilers").start()
        return self._process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                number, reason = json.loads(line)
                with self._lock:
                    future = self._pending.pop(number, None)
                if future is not None:
                    future.set_result(reason)
        except ValueError:
            pass  # the stream was closed under us, or what came is no answer
        self._give_up()

    def _give_up(self) -> None:
        """The compilers are gone: what is open will be compiled where it is built."""
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

    flops = 0
    source = ""

    def __init__(
        self,
        identity: str,
        source: str,
        inputs: tuple[str, ...],
        dtypes: tuple[torch.dtype, ...],
        result: torch.dtype | tuple[torch.dtype, ...],
    ) -> None:
        self.identity, self.source, self.inputs, self.dtypes, self.result = identity, source, inputs, dtypes, result

    @property
    def jit(self) -> Any:
        from weft.fn.device_code import jit_function

        return jit_function(self.source)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a function that has travelled is compiled, not run")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Pointwise):
            if type(value).__name__ == "TritonFunction":
                raise pickle.PicklingError("a Triton function may read globals of this process")
            fields = (value.identity, value.source, value.inputs, value.dtypes, value.result)
            return TravellingFunction, fields
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

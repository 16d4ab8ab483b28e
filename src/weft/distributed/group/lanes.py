"""Lanes: queues that run alongside the contraction. A CUDA stream of its own, or on a CPU a thread of its own.

What is put on a lane runs in the order in which it was put there, and gives a `Token` that others wait for: on a GPU
one stream for another, by events, so that the host goes on; on a CPU the thread that asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from weft.distributed.planned.timeline import HOST, Event, Timeline


class Token:
    """Something that was put on a lane: what it returns, and when it is done."""

    def __init__(self, value: Any = None, event: torch.cuda.Event | None = None, future: Future[Any] | None = None):
        self._value, self._event, self._future = value, event, future

    def wait(self) -> Any:
        """Let the current stream, or on a CPU this thread, wait; returns what was computed."""
        if self._future is not None:
            return self._future.result()
        if self._event is not None:
            self._event.wait()
            _used_here(self._value)
        return self._value


class Recorder:
    """Notes begin and end of everything that runs in one call, on request.

    What runs on a GPU is timed by events of its stream, the host by its own clock; both count from the moment at which
    this is made, when the device has nothing to do. `began` is that moment in seconds since the epoch, by which the
    times of several ranks are put on one axis: as exact as their machines' clocks agree.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._noted: list[tuple[str, str, Any, Any, int]] = []  # begin and end by the host's clock, or a CUDA event
        if self._cuda:
            torch.cuda.synchronize(device)
        self.began, self._host = time.time(), time.perf_counter()
        with on(device):
            self._origin = self._now()

    @contextmanager
    def noting(self, lane: str, name: str, step: int) -> Iterator[None]:
        """Record start and end of the work issued inside the block: on a GPU on the current stream, but for the host's.
        """
        now = time.perf_counter if lane == HOST else self._now
        begin = now()
        yield
        self._noted.append((lane, name, begin, now(), step))

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> Timeline:
        """All of it, in order; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
        events = [
            Event(lane, name, self._seconds(begin), self._seconds(end), step)
            for lane, name, begin, end, step in self._noted
        ]
        return Timeline("measured", tuple(sorted(events, key=lambda event: (event.begin, event.end))))

    def _seconds(self, mark: Any) -> float:
        return mark - self._host if isinstance(mark, float) else 1e-3 * float(self._origin.elapsed_time(mark))


def noted(recorder: Recorder | None, lane: str, name: str, step: int = -1) -> AbstractContextManager[None]:
    """Around what a recorder is to note, where there is one."""
    return recorder.noting(lane, name, step) if recorder is not None else nullcontext()


class Lane:
    """One queue alongside the main one. It is closed when a call ends, and keeps only its stream between calls."""

    def __init__(self, name: str, device: torch.device, recorder: Recorder | None = None) -> None:
        self.name, self.device, self.recorder = name, device, recorder
        self._stream = _stream(name, device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"weft-{name}") if self._stream is None else None

    def __enter__(self) -> Lane:
        if self._stream is not None:  # what the caller has begun comes first
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:  # memory that the lane used goes back to the caller's stream
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def put(self, name: str, step: int, work: Callable[[], Any], after: Sequence[Token] = ()) -> Token:
        """Run `work` after all that is on the lane, and after the tokens."""
        if self._thread is not None:
            return Token(future=self._thread.submit(self._run, name, step, work, after))
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            value = self._run(name, step, work, after)
            event = torch.cuda.Event()
            event.record()
        return Token(value, event)

    def _run(self, name: str, step: int, work: Callable[[], Any], after: Sequence[Token]) -> Any:
        for token in after:
            token.wait()
        with noted(self.recorder, self.name, name, step):
            return work()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Within, events and streams are those of `device`."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def done(device: torch.device, value: Any = None) -> Token:
    """A token of what the current stream has been given so far; on a CPU all of it is done."""
    if device.type != "cuda":
        return Token(value)
    event = torch.cuda.Event()
    event.record()
    return Token(value, event)


def _used_here(value: Any) -> None:
    """Memory of another stream is not given away before what the current one does with it is done."""
    for one in value if isinstance(value, tuple) else (value,):
        tensor = getattr(one, "tensor", one)
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


_streams: dict[tuple[str, int], torch.cuda.Stream] = {}


def _stream(name: str, device: torch.device) -> torch.cuda.Stream:
    """One stream for each lane and device of this process, of high priority: what travels is short and waited for."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    key = name, index
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device=index, priority=-1)
    return _streams[key]

"""Lanes: what runs beside the contraction. A CUDA stream of its own, or on a CPU a thread of its own.

What is put on a lane runs in the order in which it was put there, and gives a `Token` that others wait for: on a GPU
one stream for another, by events, so that the host goes on; on a CPU the thread that asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.distributed.group.ranks import Ranks


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


@dataclass
class Record:
    """What ran on which lane, when; seconds since the first began."""

    lane: str
    name: str
    step: int
    begin: Any = 0.0  # a CUDA event until `Recorder.finish`
    end: Any = 0.0


@dataclass
class Recorder:
    """Notes begin and end of everything that runs, where it is asked to."""

    device: torch.device
    records: list[Record] = field(default_factory=list)

    def begin(self, lane: str, name: str, step: int) -> Record:
        record = Record(lane, name, step, self._now())
        self.records.append(record)
        return record

    def end(self, record: Record) -> None:
        record.end = self._now()

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> list[Record]:
        """All of it in seconds from the first begin; waits for the device."""
        if not self.records:
            return []
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            origin = self.records[0].begin
            for record in self.records:
                record.begin, record.end = (
                    1e-3 * origin.elapsed_time(event) for event in (record.begin, record.end)
                )
        first = min(record.begin for record in self.records)
        for record in self.records:
            record.begin, record.end = record.begin - first, record.end - first
        return sorted(self.records, key=lambda record: (record.begin, record.end))


class Lane:
    """One queue beside the main one. It is closed when a call ends, and holds nothing between calls but its stream."""

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
        record = self.recorder.begin(self.name, name, step) if self.recorder is not None else None
        value = work()
        if record is not None and self.recorder is not None:
            self.recorder.end(record)
        return value


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
    tensor = getattr(value, "tensor", value)
    if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def wait_for(work: Any, line: Ranks, what: str) -> None:
    """For a collective that a lane began: its stream waits, or its thread."""
    line.wait(work, what)


_streams: dict[tuple[str, int], torch.cuda.Stream] = {}


def _stream(name: str, device: torch.device) -> torch.cuda.Stream:
    """One stream for each lane and device of this process, of high priority: what travels is short and waited for."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    key = name, index
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device=index, priority=-1)
    return _streams[key]

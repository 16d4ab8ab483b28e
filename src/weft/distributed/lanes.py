"""Lanes, queues that run alongside the contraction: a CUDA stream of its own, or on a CPU a thread of its own; and
timelines, what ran when, predicted or measured: transfers, contractions and what is neither, drawn as text.

What is put on a lane runs in the order in which it was put there, and gives a `Token` that others wait for: on a GPU
one stream for another, by events, so that the host goes on; on a CPU the thread that asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.base.figures import duration, share

COMPUTE, HOST = "compute", "host"  # every other lane moves something
_WIDTH = 60


@dataclass(frozen=True)
class Event:
    """Something that ran on a lane from `begin` to `end`, in seconds since the call began.

    `step` is the place of its part in the order of parts, -1 where it belongs to none.
    """

    lane: str
    name: str
    begin: float
    end: float
    step: int = -1


@dataclass(frozen=True)
class Timeline:
    """The events of one call on one rank. `kind` is "predicted" or "measured"; `str` draws it.

    `compute`, `transfer` and `orchestration` are seconds: in which something is contracted, in which something travels,
    and in which neither happens (checks, launches, waiting for other ranks before they send). The first two overlap.
    Events of the lane "host" say what the host did; on a GPU that goes on alongside the others.
    """

    kind: str
    events: tuple[Event, ...]

    @property
    def begin(self) -> float:
        return min((event.begin for event in self.events), default=0.0)

    @property
    def end(self) -> float:
        return max((event.end for event in self.events), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first begin to the last end."""
        return self.end - self.begin

    @property
    def compute(self) -> float:
        return self.busy(COMPUTE)

    @property
    def transfer(self) -> float:
        return self.busy(*self.transfers)

    @property
    def orchestration(self) -> float:
        return self.seconds - self.busy(COMPUTE, *self.transfers)

    def busy(self, *lanes: str) -> float:
        """Seconds in which one of these lanes does something."""
        merged: list[tuple[float, float]] = []
        for begin, end in sorted((event.begin, event.end) for event in self.events if event.lane in lanes):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((begin, end))
        return sum(end - begin for begin, end in merged)

    @property
    def hidden(self) -> float:
        """The share of transfer time in which something is contracted as well; 1 where nothing travels."""
        both = self.transfer + self.compute - self.busy(COMPUTE, *self.transfers)
        return max(0.0, both) / self.transfer if self.transfer else 1.0

    @property
    def bounds(self) -> str:
        """The lane that takes longest: "compute", "transfer" or "orchestration"."""
        found = {"compute": self.compute, "transfer": self.transfer, "orchestration": self.orchestration}
        return max(found, key=lambda name: found[name])

    @property
    def transfers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.lane for event in self.events if event.lane not in (COMPUTE, HOST)))

    @property
    def lanes(self) -> tuple[str, ...]:
        """In the order in which they are drawn."""
        return (COMPUTE, *self.transfers, *([HOST] if any(event.lane == HOST for event in self.events) else []))

    def shifted(self, seconds: float) -> Timeline:
        """A timeline that begins `seconds` later."""
        return replace(self, events=tuple(
            replace(event, begin=event.begin + seconds, end=event.end + seconds) for event in self.events
        ))  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([self.sentence, *drawn({"": self})])

    @property
    def sentence(self) -> str:
        """Its figures in a line."""
        return (
            f"{self.kind}: {duration(self.seconds)}; compute {duration(self.compute)}, transfer "
            f"{duration(self.transfer)} ({share(self.hidden)} of it hidden), orchestration "
            f"{duration(self.orchestration)}; {self.bounds} bounds it"
        )

    def table(self) -> str:
        """Every event with its begin and end."""
        wide = max((len(event.name) for event in self.events), default=0)
        return "\n".join(
            f"{duration(event.begin):>9} {duration(event.end):>9}  {event.lane:<9} {event.name:<{wide}}".rstrip()
            for event in self.events
        )


def drawn(timelines: Mapping[str, Timeline]) -> list[str]:
    """A row of characters for each lane, all on one axis, under the names of the timelines.

    Nothing where no time passes. A digit is the last of a part's number in the order of parts, "=" what belongs to no
    part, a dot is idle.
    """
    begin = min((each.begin for each in timelines.values()), default=0.0)
    seconds = max((each.end for each in timelines.values()), default=0.0) - begin
    if seconds <= 0:
        return []
    heads = max(map(len, timelines)) + (1 if any(timelines) else 0)
    wide = max(len(lane) for each in timelines.values() for lane in each.lanes)
    lines = []
    for name, each in timelines.items():
        for at, lane in enumerate(each.lanes):
            own = [event for event in each.events if event.lane == lane]
            lines.append(f"  {'' if at else name:<{heads}}{lane:<{wide}} |{_row(own, begin, seconds)}|")
    return [*lines, f"  {'':<{heads + wide}}  0{duration(seconds):>{_WIDTH - 1}}"]


def _row(events: Sequence[Event], begin: float, seconds: float) -> str:
    """One character for each 60th of so many seconds."""
    row = ["."] * _WIDTH
    for event in events:
        first = min(_WIDTH - 1, int((event.begin - begin) / seconds * _WIDTH))
        last = max(first + 1, round((event.end - begin) / seconds * _WIDTH))
        row[first:last] = ("=" if event.step < 0 else str(event.step % 10)) * (min(last, _WIDTH) - first)
    return "".join(row)


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
    """One queue alongside the main one. It is closed when a call ends, and keeps only its stream between calls.

    On a CPU what is put on a lane that is not `alongside` runs at once: nothing is contracted meanwhile.
    """

    def __init__(
        self, name: str, device: torch.device, recorder: Recorder | None = None, alongside: bool = True
    ) -> None:
        self.name, self.device, self.recorder = name, device, recorder
        self._stream = _stream(name, device) if device.type == "cuda" else None
        own = self._stream is None and alongside
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"weft-{name}") if own else None

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
        if self._stream is None:
            return Token(self._run(name, step, work, after))
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

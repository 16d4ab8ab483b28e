"""Slices one after the other, for as long as it takes: progress, Ctrl-C between two of them, and a state on disk.

Ctrl-C waits for the end of a slice, part of which may be added; `go_on` takes up from there. Where there is a
checkpoint a request to end (SIGTERM) waits likewise, and the state is written first. On a GPU the host stays a few
slices ahead and no more, so that what it says and writes is near to what is done.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from weft.base.log import warn
from weft.errors import ArgumentError
from weft.networks.checkpoint import Checkpoint, Saved, done
from weft.networks.work import SliceWork
from weft.tune.progress import quiet, shown

EVERY = 60.0  # seconds between states on disk
_AHEAD = 16  # slices that the host may be ahead of a GPU


class Keeper:
    """Writes the state of a run to its file of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, name: str, includes: Sequence[str], before: Sequence[int], every: float):
        """`includes` are the files whose sums the run begins with, `before` the slices that are in them."""
        self._checkpoint, self._name = checkpoint, name
        self._includes, self._before = list(includes), list(before)
        self._every, self._last = every, time.monotonic()
        self._written = -1

    def first(self, work: SliceWork) -> None:
        """Write the state that the run begins with; `ArgumentError` where that cannot be done."""
        try:
            self._write(work, ())
        except OSError as error:
            raise ArgumentError(f"the checkpoint {self._checkpoint.folder} cannot be written: {error}") from error

    @property
    def due(self) -> bool:
        """Whether the last state is old enough for another."""
        return time.monotonic() - self._last >= self._every

    def save(self, work: SliceWork, done: Sequence[int]) -> None:
        """Write; a disk that is full costs a warning, not the run."""
        if len(done) == self._written:
            return
        try:
            self._write(work, done)
        except OSError as error:
            warn(f"the checkpoint {self._checkpoint.folder} cannot be written: {error}")

    def _write(self, work: SliceWork, done: Sequence[int]) -> None:
        self._checkpoint.write(self._name, work.held(), [*self._before, *done], self._includes)
        self._written, self._last = len(done), time.monotonic()


class Slices:
    """The slices of one call, some of which are done: what Ctrl-C leaves and `resume()` goes on with."""

    visible = True  # whether progress is shown

    def __init__(self, work: SliceWork, numbers: Sequence[int], *, before: int = 0) -> None:
        """`before` counts slices of earlier runs, for the bar."""
        self.work, self.numbers = work, numbers
        self.keeper: Keeper | None = None
        self.done = 0
        self._before = before

    def take_up(self, checkpoint: Checkpoint, rank: int, run: int, files: Sequence[Saved], every: float) -> None:
        """Begin with the sums of these files, and write a file of this process's own."""
        for file in files:
            self.work.absorb(checkpoint.read(file.name))
        includes, before = [file.name for file in files], done(files)
        self.keeper = Keeper(checkpoint, f"{run:06}-{rank}.npz", includes, before, every)
        self.keeper.first(self.work)

    def go_on(self, report: Callable[[int], None]) -> Any:
        """The result, once all slices are done that are not. After each `report` hears how many are, those of earlier
        runs too."""
        self.run(report)
        self.work.finish()
        return self.work.result

    def look(self) -> None:
        """Called after each slice: what it raises ends the run, and the state is written then."""

    def run(self, report: Callable[[int], None]) -> None:
        """The slices that are not done."""
        work, keeper = self.work, self.keeper
        with work.program.lock, _put_off(keeper is not None) as interrupted:
            pace = _Pace(work.program.device)
            work.begin()
            for number in self.numbers[self.done :]:
                work.slice(number)
                self.done += 1
                pace.wait()
                report(self._before + self.done)
                if keeper is not None and keeper.due:
                    self._save()
                try:
                    self.look()
                    interrupted(self._save)
                except BaseException:
                    self._save()
                    raise
            self._save()

    def _save(self) -> None:
        if self.keeper is not None:
            self.keeper.save(self.work, self.numbers[: self.done])


def done_with_progress(call: Slices, slices: int, *, visible: bool) -> Any:
    """The result of a call, its slices shown as they are done."""
    with shown("slices") if visible and call.visible else nullcontext(quiet) as report:
        return call.go_on(lambda done: report("contracting", done, slices))


class _Pace:
    """Keeps the host near the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def wait(self) -> None:
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        if len(self._events) > _AHEAD:
            self._events.popleft().synchronize()


@contextmanager
def _put_off(terminations: bool) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Ctrl-C is put off until the function that this yields is called: never amid a slice, part of which may be added.

    `terminations`: SIGTERM, too. Once what the function is given has been called, the signal is raised again for the
    handler of before, be it Python's or the program's own. A signal that the program ignores stays ignored, and one
    that it handles outside Python its own. Only Python's main thread hears of signals; elsewhere nothing is put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda save: None
        return
    asked: list[int] = []

    def look(save: Callable[[], None]) -> None:
        if not asked:
            return
        number = asked.pop(0)
        save()
        ours = signal.signal(number, before[number])
        signal.raise_signal(number)
        signal.signal(number, ours)

    numbers = (signal.SIGINT, signal.SIGTERM) if terminations else (signal.SIGINT,)
    before: dict[int, Any] = {
        number: signal.signal(number, lambda found, frame: asked.append(found))
        for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }  # fmt: skip
    try:
        yield look
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A better kernel on its way: a thread and other processes choose, self-test, compile and load it while calls go on.

Nobody waits for it before the call at which it is due. That call waits for a while where it is late; then what serves
goes on serving, and a later call looks again.

One process of compilers, as many as half of the cores and of the lowest priority, serves all plans of a device. It
starts when a plan first looks for a better kernel, takes some seconds to import what it needs, and ends with this
process or when nothing was wanted of it for a while. What those seconds leave to be waited for is counted in calls,
by their predicted times, so that it is the same in every run.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from weft.base.figures import duration
from weft.base.log import log
from weft.machine.identity import usable_cores
from weft.planner.planner import Choice
from weft.planner.registry import first_line
from weft.planner.schedule import Description, Target
from weft.planner.tuned import restored
from weft.selftest.gate import awaited

if TYPE_CHECKING:
    from weft.tune.compile_pool import Compiler

Built = tuple[Choice, Any]  # a choice and its launch

_PATIENCE = 1.5  # times of what was expected until which a call waits
_LEAST = 0.5  # seconds of patience, however little was expected
_AT_EXIT = 60.0  # seconds that the end of the process waits for threads that are at work

IDLE = 60.0  # seconds after which compilers that nobody wants end
STARTING = 4.0  # seconds until the first kernel of a process of compilers is begun
LATE = "it is late"

_pools: dict[tuple[Target, int], Compiler] = {}  # by target, and the process that they belong to
_started: dict[tuple[Target, int], float] = {}  # seconds that calls had taken when compilers were started
_passed = 0.0  # seconds that calls of plans have taken in this process, as predicted
_OTHERS = "what else could have been chosen is known to another process"

_threads: WeakSet[Thread] = WeakSet()
_closing = Event()


def _schedule_of(built: Any) -> str:
    return str(built[0].best.schedule)


class Arrival:
    """One kernel on its way; `expected` are the seconds that preparing it takes, `told` how the log calls it."""

    def __init__(
        self, make: Callable[[], Any], target: Target, expected: float, told: Callable[[Any], str] = _schedule_of
    ) -> None:
        self._built: Future[Any] = Future()
        self._told = told
        self._due = monotonic() + max(_PATIENCE * expected, _LEAST)
        self._process = os.getpid()
        thread = Thread(target=self._work, args=(make, target), daemon=True, name="weft prepares a kernel")
        _threads.add(thread)
        thread.start()

    def result(self) -> Any:
        """The kernel, a choice and its launch say, or in words why there is none."""
        if os.getpid() != self._process:
            return "the process was forked while it was prepared"
        try:
            return self._built.result(max(0.0, self._due - monotonic()))
        except LateError:
            return LATE
        except Exception as error:  # of planning, compiling or the device
            return f"none could be built: {first_line(error)}"

    def _work(self, make: Callable[[], Any], target: Target) -> None:
        begun = monotonic()
        try:
            with _apart(target):
                check_open()
                built = make()
            log.info("%s: prepared in %s", self._told(built), duration(monotonic() - begun))
            self._built.set_result(built)
        except BaseException as error:
            self._built.set_exception(error)


@contextmanager
def _apart(target: Target) -> Iterator[None]:
    """Within, this thread works on a stream of its own, and no capture of a CUDA graph takes part in it."""
    if target.kind not in ("cuda", "hip"):
        yield
        return
    from weft.gpu.common.driver import aside_of_capture

    with torch.cuda.device(target.device), aside_of_capture():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


def check_open() -> None:
    """Raise `RuntimeError` once the process ends, between the steps of preparing a kernel."""
    if _closing.is_set():
        raise RuntimeError("the process ends")


def pass_by(seconds: float) -> None:
    """Count calls that have taken so long, by prediction."""
    global _passed
    _passed += seconds


def start_compilers(target: Target) -> None:
    """Start the compilers for an NVIDIA GPU, aside, where none were started."""
    place = target, os.getpid()
    if target.kind == "cuda" and place not in _started:
        _started[place] = _passed
        Thread(target=lambda: _pool(target).start(), daemon=True, name="weft starts compilers").start()


def starting(target: Target) -> float:
    """Seconds until compilers are at work that were started, counted in calls."""
    begun = _started.get((target, os.getpid()))
    return STARTING if begun is None else max(0.0, STARTING - (_passed - begun))


def compilers_work(target: Target) -> bool:
    """Whether compilers are at work, by the clock."""
    pool = _pools.get((target, os.getpid()))
    return pool is not None and pool.works


def compile_elsewhere(choice: Choice) -> None:
    """Wait until a choice's kernels are compiled, and those of the self-tests that it has still to pass.

    What goes wrong there is met again where they are built.
    """
    with suppress(Exception):
        pool = _pool(choice.target)
        for future in [pool.submit(*each) for each in ((choice.description, choice.best), *awaited(choice))]:
            future.result()


def planned_elsewhere(description: Description, target: Target, workspace_limit: int | None) -> Choice | None:
    """The planner's choice for an NVIDIA GPU, compiled; None where it is to be made in this process."""
    if target.kind != "cuda":
        return None
    answer = _pool(target).plan(description, workspace_limit).result()
    if not isinstance(answer, dict):
        return None
    rank = restored(answer["serialized"], answer["family"], description, "triton", target)
    return None if rank is None else Choice(description, "triton", target, rank, (rank,), (_OTHERS,))


def _pool(target: Target) -> Compiler:
    """The compilers of this process."""
    from weft.tune.compile_pool import Compiler

    place = target, os.getpid()
    return _pools.get(place) or _pools.setdefault(place, Compiler(target, "triton", len(usable_cores()) // 2, IDLE))


def close_compilers() -> None:
    """End all compilers of this process; who waits for them waits no longer."""
    for place in [place for place in _pools if place[1] == os.getpid()]:
        _started.pop(place, None)
        _pools.pop(place).close()


def _close() -> None:
    """Let threads come to an end that are at work: neither the device nor the interpreter is there afterwards."""
    _closing.set()
    close_compilers()
    until = monotonic() + _AT_EXIT
    for thread in list(_threads):
        with suppress(RuntimeError):
            thread.join(max(0.0, until - monotonic()))


atexit.register(_close)

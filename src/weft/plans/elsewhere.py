"""Planning and compiling in another process, while calls go on in this one.

One process of compilers, as many as half of the cores, serves all plans of a device. It starts with the first kernel
that is wanted, takes some seconds to import what it needs, and ends with this process or when nothing was wanted of it
for a while.
"""

from __future__ import annotations

import atexit
import os
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Timer
from typing import Any

from weft.base.forks import free_in_child
from weft.planner.planner import Choice
from weft.planner.restored import restored
from weft.planner.schedule import Description, Target
from weft.selftest.gate import awaited
from weft.tune.compile_worker import chosen_of

IDLE = 60.0  # seconds after which compilers that nobody wants end
STARTING = 4.0  # seconds until the first kernel of a process of compilers is begun

_pools: dict[tuple[Target, int], Any] = {}  # by target, and the process that they belong to
_timers: dict[tuple[Target, int], Timer] = {}
_lock = free_in_child(Lock())


def is_running(target: Target) -> bool:
    """Whether compilers for a target are there already."""
    return (target, os.getpid()) in _pools


def compiled(choice: Choice) -> None:
    """Wait until a choice's kernels are compiled, and those of the self-tests that it has still to pass.

    What goes wrong there is met again where they are built.
    """
    with suppress(Exception):
        wanted = [(choice.description, choice.best), *awaited(choice)]
        for future in [_used(choice.target, lambda pool, each=each: pool.submit(*each)) for each in wanted]:
            future.result()


def planned(description: Description, target: Target, workspace_limit: int | None) -> Choice | None:
    """The planner's choice for an NVIDIA GPU, compiled; None where it is to be made in this process."""
    if target.kind != "cuda":
        return None
    answer = None
    with suppress(Exception):
        answer = chosen_of(_used(target, lambda pool: pool.plan(description, workspace_limit)).result())
    if answer is None:
        return None
    rank = restored(answer.get("serialized"), answer.get("family"), description, "triton", target)
    return None if rank is None else Choice(description, "triton", target, rank, (rank,), (_OTHERS,))


_OTHERS = "what else could have been chosen is known to another process"


def _used(target: Target, ask: Any) -> Future[Any]:
    """The answer of compilers, which are started where there are none."""
    from weft.tune.compile_pool import Compiler, default_jobs

    place = target, os.getpid()
    with _lock:
        pool = _pools.get(place)
        if pool is None:
            pool = _pools[place] = Compiler(target, "triton", max(2, default_jobs() // 2))
        future: Future[Any] = ask(pool)
        if (old := _timers.pop(place, None)) is not None:
            old.cancel()
        timer = _timers[place] = Timer(IDLE, _end, (place,))
        timer.daemon = True
        timer.start()
    return future


def _end(place: tuple[Target, int]) -> None:
    """Let compilers go that nobody has wanted for a while."""
    with _lock:
        pool = _pools.pop(place, None)
    if pool is not None:
        pool.close()


def close() -> None:
    """End all compilers of this process; who waits for them waits no longer."""
    for place in [place for place in _pools if place[1] == os.getpid()]:
        with suppress(OSError):
            _end(place)
        if (timer := _timers.pop(place, None)) is not None:
            timer.cancel()


atexit.register(close)

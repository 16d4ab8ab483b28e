"""Planning and compiling in another process, while calls go on in this one.

One process of compilers, as many as half of the cores, serves all plans of a device. It starts with the first kernel
that is wanted, takes some seconds to import what it needs, and ends with this process or when nothing was wanted of it
for a while.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weft.planner.planner import Choice
from weft.planner.schedule import Description, Target
from weft.planner.tuned import restored
from weft.selftest.gate import awaited

if TYPE_CHECKING:
    from weft.tune.compile_pool import Compiler

IDLE = 60.0  # seconds after which compilers that nobody wants end
STARTING = 4.0  # seconds until the first kernel of a process of compilers is begun

_pools: dict[tuple[Target, int], Compiler] = {}  # by target, and the process that they belong to


def is_running(target: Target) -> bool:
    """Whether compilers for a target are there already."""
    pool = _pools.get((target, os.getpid()))
    return pool is not None and pool.is_running


def compiled(choice: Choice) -> None:
    """Wait until a choice's kernels are compiled, and those of the self-tests that it has still to pass.

    What goes wrong there is met again where they are built.
    """
    with suppress(Exception):
        pool = _pool(choice.target)
        for future in [pool.submit(*each) for each in ((choice.description, choice.best), *awaited(choice))]:
            future.result()


def planned(description: Description, target: Target, workspace_limit: int | None) -> Choice | None:
    """The planner's choice for an NVIDIA GPU, compiled; None where it is to be made in this process."""
    if target.kind != "cuda":
        return None
    answer = _pool(target).plan(description, workspace_limit).result()
    if not isinstance(answer, dict):
        return None
    rank = restored(answer["serialized"], answer["family"], description, "triton", target)
    return None if rank is None else Choice(description, "triton", target, rank, (rank,), (_OTHERS,))


_OTHERS = "what else could have been chosen is known to another process"


def _pool(target: Target) -> Compiler:
    """The compilers of this process."""
    from weft.tune.compile_pool import Compiler, default_jobs

    place = target, os.getpid()
    return _pools.get(place) or _pools.setdefault(place, Compiler(target, "triton", max(2, default_jobs() // 2), IDLE))


def close() -> None:
    """End all compilers of this process; who waits for them waits no longer."""
    for place in [place for place in _pools if place[1] == os.getpid()]:
        _pools.pop(place).close()

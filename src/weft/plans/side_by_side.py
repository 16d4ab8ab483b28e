"""The kernels of many plans, compiled by other processes before the plans are built one after the other.

A network of some hundred steps takes some dozen kernels that no earlier one left behind, each of which compiles for
seconds. Side by side they take as long as the slowest. What comes of it is stored, and building a plan finds it; a note
says that it is there, so that later processes start no compilers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from weft.base.log import log
from weft.errors import WeftError
from weft.gpu.blas.model import NAME as BLAS
from weft.machine.store import Store
from weft.planner.keys import of_backend
from weft.planner.planner import Choice
from weft.planner.schedule import Description, Ranked, Target, is_invariant
from weft.planner.validity import can_build, environment
from weft.plans.select import ServiceRequest, select
from weft.plans.tiers import library, library_first, twice_as_fast

ROOM = "side-by-side"  # of the store
FEWEST = 3  # kernels that are worth starting compilers, which takes as long as compiling one


def compile_side_by_side(name: str, target: Target, wanted: Callable[[], Iterable[ServiceRequest | None]]) -> int:
    """Have the kernels of plans compiled that are about to be built, and wait: the number of them.

    `name` says what they are: nothing is done where this machine has compiled them under that name before, nor within
    the capture of a CUDA graph, nor elsewhere than on an NVIDIA GPU. A kernel that fails is met again where its plan is
    built.
    """
    if target.kind != "cuda" or not can_build(target):
        return 0
    if is_noted(name, target):
        return 0
    count = compiled(target, [each for each in wanted() if each is not None])
    note(name, target, count)
    return count


def is_noted(name: str, target: Target) -> bool:
    """Whether this machine has compiled the kernels of that name."""
    return Store(ROOM).load(_place(name, target)) is not None


def note(name: str, target: Target, kernels: int = 1) -> None:
    """Keep on disk that this machine has compiled them."""
    Store(ROOM).save(_place(name, target), {"kernels": kernels})


def compiled(target: Target, wanted: Iterable[ServiceRequest]) -> int:
    """Have the kernels of these plans compiled, whatever was compiled before: the number of them."""
    from weft.tune.compile_pool import Compiler

    tasks: dict[Hashable, tuple[Description, Ranked]] = {}  # by what kernels are made of: equal ones are compiled once
    for choice in map(chosen, wanted):
        if choice is not None and choice.best.schedule.family != BLAS:
            tasks[choice.description, choice.best.schedule] = choice.description, choice.best
    if len(tasks) < FEWEST:
        return 0
    log.info("%d kernels are compiled side by side", len(tasks))
    with Compiler(target, "triton") as pool:
        for future in [pool.submit(description, rank) for description, rank in tasks.values()]:
            future.result()
    return len(tasks)


def chosen(asked: ServiceRequest) -> Choice | None:
    """The choice that `weft.plans.tiers.served` begins with, untested and not built; None where it compiles nothing."""
    try:
        if asked.schedule is not None or asked.tune is not None or is_invariant(asked.description):
            return select(asked)
        if library_first(asked.specialize, asked.target) and isinstance(library(asked), Choice):
            return None
        choice = select(asked)
        return None if asked.specialize == "now" and twice_as_fast(asked, choice) is not None else choice
    except WeftError:
        return None


def _place(name: str, target: Target) -> dict[str, Any]:
    return {
        "what": ROOM, "name": hashlib.sha256(name.encode()).hexdigest(), "environment": environment(target),
        "code": of_backend("triton"), "folder": os.environ.get("TRITON_CACHE_DIR", ""),
    }  # fmt: skip

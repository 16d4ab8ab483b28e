"""From what is described to a launch that may be trusted: chosen, self-tested where it is new to the machine, built.

The schedule is the cost model's, or the measured one where that is known or requested.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

from weft.base.figures import duration
from weft.base.log import log, warn
from weft.cpu import jit
from weft.errors import UnsupportedError
from weft.planner.planner import Choice, choose
from weft.planner.registry import WITHOUT_TRITON, supposed_fault
from weft.planner.schedule import Description, Origin, Schedule, Target, in_every_order
from weft.planner.tuned import recalled
from weft.planner.validity import generation
from weft.selftest.gate import admitted


class ServiceRequest(NamedTuple):
    """The request of a plan for a kernel that serves one of its descriptions; the first four say what it computes."""

    description: Description
    backend: str
    target: Target
    workspace_limit: int | None = None
    tune: str | None = None
    schedule: Schedule | str | None = None  # one that is forced
    specialize: str = "now"


def select(asked: ServiceRequest) -> Choice:
    """The choice that a plan is made of.

    `tune` None: the tuned schedule where one is stored, else the cost model's; nothing is measured. "model": the
    cost model's, whatever is stored. "measure": the stored tuned schedule, else one found now by measuring.
    `schedule` forces one, by the object or its printed form. Raises what `choose` raises.
    """
    choice = choose(*asked[:4])
    if asked.schedule is not None:
        return _forced(choice, asked.schedule)
    if asked.tune == "model":
        return choice
    found = recalled(choice, asked.workspace_limit)
    if found is not None:
        return found
    if asked.tune == "measure":
        from weft.tune.tuner import tuned

        return tuned(choice, asked.workspace_limit)
    return choice


def _forced(choice: Choice, schedule: Schedule | str) -> Choice:
    """The choice of that schedule alone; `UnsupportedError` with the nearest where it is not legal here."""
    others = (other for each in choice.ranked for other in in_every_order(each)[1:])
    for rank in chain(choice.ranked, others):
        if schedule in (rank.schedule, str(rank.schedule)):
            return replace(choice, best=rank, ranked=(rank,), origin=Origin("forced"))
    texts = [str(rank.schedule) for rank in choice.ranked]
    near = difflib.get_close_matches(str(schedule), texts, n=1, cutoff=0.0)
    raise UnsupportedError(
        f"schedule {str(schedule)!r} is none of the {len(texts)} that can compute this: the nearest is {near[0]!r}"
    )


def chosen_and_built(asked: ServiceRequest, known: Choice | None = None) -> tuple[Choice, Any]:
    """The choice, without what the device cannot hold and without families that fail there, and its launch.

    `known` is what `select` has found for all this. Raises what `select` raises, which each family that fails brings
    nearer: the others are chosen from.
    """
    if asked.backend == "triton":
        _warn_of_triton()
    elif asked.backend == "cpu":
        _warn_of_numba()
    begun = perf_counter()
    while True:
        before = generation()
        choice = known or select(asked)
        known = None
        if not admitted(choice):
            continue
        chosen = perf_counter()
        found, launch = built(choice)
        if (found.best is choice.best and generation() == before) or admitted(found):
            tell(found, chosen - begun, perf_counter() - chosen)
            return found, launch


def built(choice: Choice) -> tuple[Choice, Any]:
    """`Choice.built`, for a plan's own launch: its kernels are noted where there are several."""
    found, launch = choice.built()
    if found.target.kind == "cuda" and hasattr(launch, "kernels"):
        from weft.gpu.common.direct import addressed

        launch = addressed(launch)
    return found, launch


def tell(choice: Choice, planning: float, building: float) -> None:
    """A line for the log."""
    if not log.isEnabledFor(logging.INFO):
        return
    log.info(
        "%s on %s: %s, from the %s, predicted %s; planned in %s, built in %s",
        choice.description.text, choice.target.name, choice.best.schedule, choice.origin.source,
        duration(choice.best.seconds), duration(planning), duration(building),
    )  # fmt: skip
    for sentence in choice.excluded:
        log.debug("%s: excluded: %s", choice.description.text, sentence)


@lru_cache
def _warn_of_triton() -> None:
    """Once, where plans for a GPU have to do without Triton; an error says so by itself where nothing can be done."""
    if (fault := supposed_fault()) is not None:
        warn(f"{fault}: {WITHOUT_TRITON}")


@lru_cache
def _warn_of_numba() -> None:
    """Warn once, where plans for the CPU have to do without numba, unless it is turned off."""
    if (fault := jit.fault()) is not None and not jit.turned_off():
        warn(f"{fault}: contractions on the CPU run by torch's own operations, slower")

"""From what is described to a launch that may be trusted: chosen, self-tested where it is new to the machine, built."""

from __future__ import annotations

import logging
from functools import lru_cache
from time import perf_counter
from typing import Any

from weft.base.figures import duration
from weft.base.log import log, warn
from weft.cpu import jit
from weft.planner.planner import Choice
from weft.planner.registry import WITHOUT_TRITON, supposed_fault
from weft.planner.schedule import Description, Schedule, Target
from weft.planner.validity import generation
from weft.plans.select import select
from weft.selftest.gate import admitted


def chosen_and_built(
    description: Description,
    backend: str,
    target: Target,
    workspace_limit: int | None,
    tune: str | None,
    schedule: Schedule | str | None = None,
    known: Choice | None = None,
) -> tuple[Choice, Any]:
    """The choice, without what the device cannot hold and without families that fail there, and its launch.

    `known` is what `select` has found for all this. Raises what `select` raises, which each family that fails brings
    nearer: the others are chosen from.
    """
    if backend == "triton":
        _warn_of_triton()
    elif backend == "cpu":
        _warn_of_numba()
    begun = perf_counter()
    while True:
        before = generation()
        choice = known or select(description, backend, target, workspace_limit, tune, schedule)
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

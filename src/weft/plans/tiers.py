"""From a description to the kernel that serves first, and to better ones while calls go on.

library      torch's own operations: nothing is compiled, loaded or tested
specialised  a kernel that is compiled for these extents; on a CPU weft's engine
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

import torch

from weft.algebra import NAMED
from weft.base.forks import free_in_child
from weft.cpu.machine_code import is_packed
from weft.errors import UnsupportedError
from weft.gpu.pointwise.nvrtc import identity
from weft.library import family as contractions
from weft.library import permutations
from weft.machine.store import Store
from weft.planner import promotion, verdicts
from weft.planner.planner import Choice
from weft.planner.promotion import LIBRARY, SPECIALISED, Name, Tier
from weft.planner.registry import BLAS, LIBRARIES, imported
from weft.planner.schedule import Description, Ranked, Target, is_invariant
from weft.planner.tuned import kept_here
from weft.plans.arrival import (
    Built,
    check_open,
    compile_elsewhere,
    compilers_work,
    planned_elsewhere,
    start_compilers,
    starting,
)
from weft.plans.guard import GROSS
from weft.plans.select import ServiceRequest, chosen_and_built, select, tell
from weft.spec.permutation import Permutation

if (torch.version.cuda is not None or torch.version.hip is not None) and identity() is not None:
    imported("weft.library.passes")  # with weft, and not while calls go on

LONG = 1e-4  # seconds of a contraction for which "now" looks at the library tier as well
SHORT = 1e-4  # seconds of a call that the host takes most of: what this process does beside it holds it up
LONG_CALL = 1e-2  # seconds of a call on a GPU beside which this process compiles what takes a third of it
_here = free_in_child(Lock())  # of one kernel at a time
HERE = 2.0  # seconds that a kernel takes until it is compiled and tested in this process
NEARLY = 1.03  # times of what another schedule was measured to take


class Served(NamedTuple):
    """A choice, its launch, and the tier that they are of."""

    choice: Choice
    launch: Callable[..., None]
    tier: Tier


class Offer(NamedTuple):
    """A better kernel that a plan may change to."""

    name: Name
    seconds: float  # of a call, predicted
    ready: float  # seconds that preparing it takes
    choice: Choice | None  # None where it is still to be planned
    tuned: bool = False  # measured to be the fastest

    kept: bool = False  # it served in an earlier process
    disturbs: float = 0.0  # seconds that preparing it takes from calls beside it

    @property
    def worth(self) -> float:
        """Seconds that calls have lost before it is prepared."""
        if self.kept:
            return self.disturbs
        here = self.choice is not None and self.choice.target.kind == "cpu"
        compiles = here and self.ready >= promotion.COMPILING_CPU
        return promotion.WORTH_CPU * self.ready if compiles else promotion.WORTH + self.disturbs


def served(asked: ServiceRequest) -> Served:
    """The choice and launch of the tier that `specialize` asks for, or that "auto" begins with."""
    found = _served(asked)
    for each in _listening:
        each[asked] = found
    return found


@contextmanager
def overheard() -> Iterator[dict[ServiceRequest, Served]]:
    """The requests of all plans that are built within, by any thread, with what serves them."""
    found: dict[ServiceRequest, Served] = {}
    _listening.append(found)
    try:
        yield found
    finally:
        _listening[:] = [each for each in _listening if each is not found]


def is_overheard() -> bool:
    """Whether requests of plans are listened to: calls that make no plan make one then."""
    return bool(_listening)


_listening: list[dict[ServiceRequest, Served]] = []


def _served(asked: ServiceRequest) -> Served:
    specialize = asked.specialize
    if asked.schedule is not None:
        return _specialised(asked, "its schedule is forced")
    if is_invariant(asked.description):
        if specialize == LIBRARY:
            raise UnsupportedError("the library tier cannot do this: the bits of torch's operations depend on extents")
        return _specialised(asked, "its bits may not depend on extents")
    if asked.tune is not None:
        return _specialised(asked, "asked for" if specialize == "now" else "tuning asks for it")
    if specialize == "auto" and (tuned := kept_here(*asked[:4])) is not None:
        choice, launch = chosen_and_built(asked, tuned)
        name = LIBRARY if choice.best.family.__name__ in LIBRARIES else SPECIALISED
        return Served(choice, launch, Tier(name, "it was measured to be the fastest"))
    if specialize == "now":
        return _now(asked)
    why = "calls do not begin with the library tier here"
    if library_first(specialize, asked.target):
        begun = perf_counter()
        first = library(asked)
        if isinstance(first, Choice):
            why = "it needs no compiling" if specialize == "auto" else "asked for"
            look_at = _looks_at(asked, first.best.waited) if specialize == "auto" else None
            tell(first, perf_counter() - begun, 0.0)
            return Served(*first.built(), Tier(LIBRARY, why, look_at=look_at))
        why = f"the library tier cannot do this: {first}"
        if specialize == LIBRARY:
            raise UnsupportedError(why)
    kept = promotion.kept(*asked[:4]) if specialize == "auto" else None
    return _specialised(asked, why) if kept is None else _specialised(asked, kept.why, kept.choice)


def _looks_at(asked: ServiceRequest, seconds: float) -> int:
    """The call that finds out what would be better: the first one where that is stored, and calls are not short."""
    at_once = seconds >= SHORT and promotion.kept(*asked[:4]) is not None
    return 1 if at_once else promotion.looks_at(seconds)


def library_first(specialize: str, target: Target) -> bool:
    """Whether a call that says so begins with the library tier, where that can do it."""
    return specialize in (LIBRARY, "never") or (specialize == "auto" and promotion.begins_with_library(target.kind))


def library(asked: ServiceRequest) -> Choice | str:
    """The choice in the library tier, or why there is none; no self-test is run for its verdict."""
    family: Any = permutations if isinstance(asked.description, Permutation) else contractions
    try:
        found: Choice | str = family.choice(*asked[:4])
    except UnsupportedError as error:
        return str(error)
    return found


def _now(asked: ServiceRequest) -> Served:
    """The specialised choice, or the library tier's where `twice_as_fast` has it."""
    known = select(asked)
    faster = twice_as_fast(asked, known)
    if faster is None:
        return _specialised(asked, "asked for", known)
    return Served(*faster.built(), Tier(LIBRARY, "specialised kernels would take twice as long"))


def twice_as_fast(asked: ServiceRequest, specialised: Choice) -> Choice | None:
    """The library tier's choice where a GPU's specialised one is long and predicted to take twice its time.

    So are sums over nearly all modes, which the library shares out and no family does. What was measured stays.
    """
    best = specialised.best
    if asked.target.kind == "cpu" or best.measured is not None or best.seconds < LONG:
        return None
    choice = library(asked)
    return choice if isinstance(choice, Choice) and 2 * choice.best.seconds < best.seconds else None


def _specialised(asked: ServiceRequest, why: str, known: Choice | None = None) -> Served:
    return Served(*chosen_and_built(asked, known), Tier(SPECIALISED, why))


# -- better kernels ----------------------------------------------------------------------------------------------------


def offered(asked: ServiceRequest, serving: float) -> Offer:
    """The specialised kernel that a plan may change to whose calls take `serving` seconds."""
    kept = promotion.kept(*asked[:4])
    if asked.target.kind == "cpu":
        choice = (kept and kept.choice) or select(asked)
        ready = promotion.LOADING if kept is not None else _ready(choice)
        tuned = choice.best.measured is not None
        return Offer(SPECIALISED, choice.best.seconds, ready, choice, tuned, kept is not None)
    seconds = promotion.expected(asked.description, asked.target)
    imports = 0.0 if "triton" in sys.modules else promotion.IMPORTING
    disturbs = imports if serving < SHORT else 0.0
    if kept is not None:
        return Offer(SPECIALISED, seconds, promotion.LOADING + imports, kept.choice, kept.tuned, True, disturbs)
    if serving >= SHORT:  # which starting a process does not hold up
        start_compilers(asked.target)
    ready = _compiling(asked.target) + _testing_any(asked.target)
    ready = min(ready, HERE) if _compiles_here(serving, seconds) else ready
    return Offer(SPECIALISED, seconds, ready, None, disturbs=disturbs)


def _compiles_here(serving: float, better: float) -> bool:
    """Whether calls are long, and what is on its way so much better, that this process compiles it beside them until
    other processes are ready to."""
    return serving >= LONG_CALL and 3 * better <= serving


def _ready(choice: Choice) -> float:
    """Seconds that it takes until a choice can run, by what is compiled already."""
    if choice.target.kind == "cpu":
        return _testing(choice) + (promotion.LOADING if _is_linked(choice) else promotion.COMPILING_CPU)
    if _is_kept(choice):
        return promotion.LOADING + _testing(choice)
    return _compiling(choice.target) + _testing(choice)


def _compiling(target: Target) -> float:
    """Seconds of a kernel in another process."""
    return promotion.COMPILING + starting(target)


def _testing(choice: Choice) -> float:
    """Seconds of the self-test of a family that was never tested on this machine."""
    family, applies = choice.best.family.__name__, verdicts.applies(choice.backend, choice.target)
    known = not applies or family in LIBRARIES or bool(verdicts.known(family, choice.backend, choice.target))
    return 0.0 if known else promotion.TESTING


def _testing_any(target: Target) -> float:
    """Seconds of a self-test where no family was tested yet, on any device here."""
    untested = verdicts.applies("triton", target) and not Store(verdicts.ROOM).directory.is_dir()
    return promotion.TESTING_FIRST if untested else 0.0


def _is_linked(choice: Choice) -> bool:
    """Whether a CPU's choice is of weft's own kernels alone, which are built ahead, or stored."""
    return choice.best.family.__name__ in LIBRARIES or (is_own(choice.description) and is_packed())


def is_own(description: Description) -> bool:
    """Whether nothing of a user's is compiled into kernels of a description."""
    if isinstance(description, Permutation):
        return description.fn is None
    hooks = (description.a_fn, description.b_fn, description.c_fn, description.epilogue)
    return not any(hooks) and (description.algebra is None or description.algebra.name in NAMED)


def _is_kept(choice: Choice) -> bool:
    """Whether all GPU kernels of a choice are stored."""
    if choice.best.family.__name__ in (*LIBRARIES, BLAS):
        return True
    from weft.gpu.common.cubins import is_kept
    from weft.gpu.common.launch import collected

    with collected() as kernels:
        choice.best.build(choice.description, choice.target)
    return all(map(is_kept, kernels))


def made(asked: ServiceRequest, offer: Offer, serving: float = 0.0) -> Built:
    """An offer's choice and launch, self-tested, while calls go on that take `serving` seconds.

    Calls that take long leave this process time to compile until compilers are at work.
    """
    known, elsewhere = offer.choice, not offer.kept
    here = elsewhere and _compiles_here(serving, offer.seconds) and not compilers_work(asked.target)
    if here and _here.acquire(blocking=False):
        try:
            return chosen_and_built(asked, known)
        finally:
            _here.release()
    if known is None and elsewhere:  # else a tuned schedule is stored, which this process reads
        known = planned_elsewhere(asked.description, asked.target, asked.workspace_limit)
    if known is None:
        known = select(asked)
    if asked.target.kind == "cuda" and elsewhere:
        compile_elsewhere(known)
    check_open()
    return chosen_and_built(asked, known)


def corrected(asked: ServiceRequest, serving: Choice, measured: Mapping[Any, float]) -> Offer | None:
    """A better kernel than the one that serves, which is among those `measured`; None where none is predicted to be.

    `measured`: seconds by schedule. The model is as far off for the other schedules of the same family: their predicted
    times grow as that of what serves did.
    """
    seconds = measured[serving.best.schedule]
    off, same = seconds / serving.best.waited, serving.best.schedule.family
    ranked = list(serving.ranked)
    other = None if is_invariant(asked.description) else library(asked)
    if isinstance(other, Choice) and other.best not in ranked:
        ranked.append(other.best)

    def expected(rank: Ranked) -> float:
        known = measured.get(rank.schedule)
        return known if known is not None else rank.waited * (off if rank.schedule.family == same else 1.0)

    by_time = sorted((replace(rank, seconds=expected(rank)) for rank in ranked), key=lambda rank: rank.seconds)
    best = by_time[0]
    less = NEARLY if best.schedule in measured else GROSS
    if best.schedule == serving.best.schedule or best.seconds * less > seconds:
        return None
    choice = replace(serving, best=best, ranked=tuple(by_time))
    name = LIBRARY if best.family.__name__ in LIBRARIES else SPECIALISED
    return Offer(name, best.seconds, _ready(choice), choice)

"""From a description to the kernel that serves first, and to better ones while calls go on.

library        torch's own operations: nothing is compiled, loaded or tested
shape-generic  kernels that were compiled once for all shapes; on a GPU only
specialised    a kernel that is compiled for these extents; on a CPU weft's engine
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from threading import Lock
from typing import Any, NamedTuple

import torch

from weft.base.log import log
from weft.errors import UnsupportedError, WeftError
from weft.planner import promotion
from weft.planner.at_hand import at_hand, has_shape_generic, library
from weft.planner.planner import Choice
from weft.planner.promotion import GENERIC, LIBRARY, SPECIALISED, Name, Tier
from weft.planner.schedule import Description, Schedule, Target
from weft.plans.arrival import Arrival, Built
from weft.plans.building import chosen_and_built
from weft.plans.handful import settle
from weft.plans.select import select
from weft.selftest.gate import admitted

LONG = 1e-4  # seconds of a contraction for which shape-generic kernels are looked at as well
NEVER = float("inf")


class Asked(NamedTuple):
    """What a plan says of how one of its descriptions is to be served."""

    description: Description
    backend: str
    target: Target
    workspace_limit: int | None
    tune: str | None
    schedule: Schedule | str | None = None  # one that is forced


class Wanted(NamedTuple):
    """What `served` is told."""

    asked: Asked
    specialize: str


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


def served(asked: Asked, specialize: str) -> Served:
    """The choice and launch of the tier that `specialize` asks for, or with which "auto" begins."""
    if asked.schedule is not None:
        return _specialised(asked, "its schedule is forced")
    if asked.tune is not None:
        return _specialised(asked, "asked for" if specialize == "now" else "tuning asks for it")
    if specialize == "library" or (specialize == "auto" and promotion.begins_with_library(asked.target)):
        first = library(*asked[:4])
        if isinstance(first, Choice):
            why = "asked for" if specialize == LIBRARY else "it needs no compiling"
            look_at = promotion.looks_at(first.best.seconds) if specialize == "auto" else None
            return Served(*first.built(), Tier(LIBRARY, why, look_at=look_at))
        if specialize == LIBRARY:
            raise UnsupportedError(f"the library tier cannot do this: {first}")
    if not has_shape_generic(asked.backend):
        why = "asked for" if specialize == "now" else f"the {asked.backend} backend has no shape-generic kernels"
        return _specialised(asked, why)
    return _compiled(asked, specialize)


def _compiled(asked: Asked, specialize: str) -> Served:
    """The same of a backend with shape-generic kernels."""
    kept = promotion.kept(*asked[:4]) if specialize == "auto" else None
    if kept is not None:
        return _specialised(asked, kept.why, kept.choice)
    known = generic = None
    if specialize == "now":
        known, generic = faster_generic(asked)
        if generic is None:
            return _specialised(asked, "asked for", known)
    choice = _admitted_generic(asked, generic)
    if isinstance(choice, str):
        return _specialised(asked, f"no shape-generic kernel serves it ({choice})", known)
    if specialize != "auto":
        why = "asked for" if specialize == "never" else "specialised kernels would take twice as long"
        return Served(*choice.built(), Tier(GENERIC, why))
    tier = Tier(GENERIC, "it needs no compiling")
    better = promotion.expected(asked.description, asked.target)
    tier = promotion.taken_over(tier, 1, choice.best.seconds, SPECIALISED, better, promotion.COMPILING)
    if tier.switch_at == 1:
        return _specialised(asked, "the first call of a shape-generic kernel would lose more than compiling takes")
    return Served(*choice.built(), tier)


def faster_generic(asked: Asked) -> tuple[Choice, Choice | None]:
    """The specialised choice, and the shape-generic one where it is predicted to take half of its time, if it is long.

    So are sums over nearly all modes, which shape-generic kernels share out and no other family does.
    """
    specialised = select(*asked)
    if specialised.best.seconds < LONG:
        return specialised, None
    choice = at_hand(*asked[:4])
    if isinstance(choice, Choice) and choice.best.seconds < 0.5 * specialised.best.seconds:
        return specialised, choice
    return specialised, None


def _admitted_generic(asked: Asked, known: Choice | None) -> Choice | str:
    """A shape-generic choice that has passed its self-test, or why there is none; `known` is what was found before."""
    while True:
        choice = known or at_hand(*asked[:4])
        if isinstance(choice, str):
            return choice
        settle(choice)
        if admitted(choice):
            return choice
        known = None


def _specialised(asked: Asked, why: str, known: Choice | None = None) -> Served:
    return Served(*chosen_and_built(*asked, known), Tier(SPECIALISED, why))


# -- better kernels ----------------------------------------------------------------------------------------------------


def offers(asked: Asked, serving: Name) -> Iterator[Offer]:
    """The better kernels that a plan may change to, the one that is prepared soonest first."""
    if not has_shape_generic(asked.backend):
        choice = select(*asked)
        yield Offer(SPECIALISED, choice.best.seconds, _ready(choice), choice)
        return
    if (kept := promotion.kept(*asked[:4])) is not None:
        seconds = promotion.expected(asked.description, asked.target)
        yield Offer(SPECIALISED, seconds, promotion.LOADING, kept.choice)
        return
    if serving == LIBRARY and isinstance(generic := at_hand(*asked[:4]), Choice):
        yield Offer(GENERIC, generic.best.seconds, _ready(generic), generic)
    yield Offer(SPECIALISED, promotion.expected(asked.description, asked.target), promotion.COMPILING, None)


def _ready(choice: Choice) -> float:
    """Seconds that it takes until a choice can run, by what is compiled already."""
    compiled: Any = getattr(choice.best.family, "is_compiled", None)
    if compiled is not None and compiled(choice.description, choice.best.schedule, choice.target):
        return promotion.LOADING
    return promotion.COMPILING_CPU if choice.target.kind == "cpu" else promotion.COMPILING


def _made(asked: Asked, offer: Offer) -> Built:
    """An offer's choice and launch, self-tested."""
    if offer.name == GENERIC:
        choice = _admitted_generic(asked, offer.choice)
        if isinstance(choice, str):
            raise UnsupportedError(choice)
        return choice.built()
    choice_ahead = offer.choice or select(*asked)
    _compile_elsewhere(choice_ahead)
    return chosen_and_built(*asked, choice_ahead)


def _compile_elsewhere(choice: Choice) -> None:
    """Have another process compile a choice's kernels. What goes wrong there is met again where they are built."""
    from weft.tune.compile_pool import Compiler

    with suppress(Exception), Compiler(choice.target, choice.backend, jobs=1) as compiler:
        compiler.submit(choice.description, choice.best).result()


class PromotingLaunch:
    """The launch of a plan that changes to better kernels while calls go on.

    Calls are counted. At some the plan looks for a better kernel, begins to prepare it, or changes to it; which calls
    these are follows from predicted times. Within the capture of a CUDA graph nothing is exchanged: the first call
    after it does.
    """

    def __init__(self, asked: Asked, first: Served, report: Callable[[Served], None]) -> None:
        """`report` hears of each exchange."""
        self._asked, self._report = asked, report
        self._serving = first
        self._launch = first.launch
        self._offer: Offer | None = None
        self._arrival: Arrival | None = None
        self._count = count(1)
        self._next = _next_event(first.tier)
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> None:
        if (call := next(self._count)) >= self._next:
            self._turn(call)
        self._launch(*arguments)

    def replayed(self, calls: int) -> bool:
        """Count calls that a CUDA graph has replayed; whether other kernels serve from now on, and the graph is stale.

        A kernel that is due has its preparation begun here, and takes over when this is asked again.
        """
        before = self._launch
        if (call := next(islice(self._count, calls - 1, None))) >= self._next:
            self._turn(call, waits=False)
        return self._launch is not before

    @property
    def kernels(self) -> Any:
        return getattr(self._launch, "kernels", ())

    @property
    def now(self) -> Callable[..., None]:
        """The launch that serves at this moment; its calls are not counted."""
        return self._launch

    def _turn(self, call: int, waits: bool = True) -> None:
        """Whatever is due at a call; `waits`: for a kernel, too, whose preparation has just begun."""
        if self._asked.target.kind in ("cuda", "hip") and torch.cuda.is_current_stream_capturing():
            return
        with self._lock:
            while call >= self._next:
                tier = self._serving.tier
                if tier.switch_at is None:
                    self._look(call)
                elif self._arrival is None:
                    self._begin(tier)
                    if not waits:
                        return
                else:
                    self._exchange(tier, call)

    def _look(self, call: int) -> None:
        """Find out what would be better, and when it takes over."""
        serving = self._serving
        plain = replace(serving.tier, look_at=None, then=None, switch_at=None)
        found = plain
        try:
            for offer in offers(self._asked, plain.name):
                tier = promotion.taken_over(plain, call, serving.choice.best.seconds, offer.name, *offer[1:3])
                if tier.switch_at is None:
                    found = found if found.switch_at is not None else tier
                elif found.switch_at is None or tier.switch_at < found.switch_at:
                    found, self._offer = tier, offer
        except (WeftError, RuntimeError, MemoryError) as error:
            found = replace(plain, why=f"{plain.why}; nothing better can be planned: {first_words(error)}")
        self._set(serving._replace(tier=found))

    def _begin(self, tier: Tier) -> None:
        """Prepare the kernel that takes over."""
        asked, offer = self._asked, self._offer or Offer(tier.then or SPECIALISED, 0.0, promotion.COMPILING, None)
        self._arrival = Arrival(lambda: _made(asked, offer), asked.target, offer.ready)
        assert tier.switch_at is not None
        self._next = tier.switch_at

    def _exchange(self, tier: Tier, call: int) -> None:
        """Let the kernel serve that was prepared, if it is there and better."""
        assert self._arrival is not None
        built, serving, name = self._arrival.result(), self._serving, tier.then or SPECIALISED
        self._arrival = self._offer = None
        stays = replace(tier, then=None, switch_at=None, look_at=None)
        if isinstance(built, str):
            log.info("%s: the %s kernel does not take over: %s", self._asked.description.text, name, built)
            self._set(serving._replace(tier=replace(stays, why=f"the {name} kernel does not take over: {built}")))
        elif not is_faster(built[0], serving.choice.best.seconds):
            self._set(serving._replace(tier=replace(stays, why=f"no {name} kernel would be a tenth faster")))
        else:
            now = Served(*built, Tier(name, f"it took over at call {tier.switch_at}"))
            if name == SPECIALISED:
                promotion.promote(built[0], self._asked.workspace_limit, tier)
                self._set(now)
            else:
                self._serving = now
                self._look(call)

    def _set(self, serving: Served) -> None:
        """Serve by this from now on."""
        self._serving, self._launch = serving, serving.launch
        self._next = _next_event(serving.tier)
        self._report(serving)


def _next_event(tier: Tier) -> float:
    """The call at which something is due."""
    due = tier.look_at if tier.look_at is not None else tier.early if tier.switch_at is not None else None
    return NEVER if due is None else due


def is_faster(choice: Choice, seconds: float) -> bool:
    """Whether a kernel is predicted to be a tenth faster than what serves."""
    return choice.best.seconds <= promotion.FASTER * seconds


def first_words(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

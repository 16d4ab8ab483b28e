"""From a description to the kernel of one tier, and from one tier to the other while calls go on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from threading import Lock, Thread
from time import perf_counter
from typing import Any, NamedTuple

import torch

from weft.errors import WeftError
from weft.planner.at_hand import at_hand, has_tiers
from weft.planner.planner import Choice
from weft.planner.promotion import Tier, is_stored, promote, tier
from weft.planner.registry import first_line
from weft.planner.schedule import Description, Schedule, Target
from weft.plans.building import chosen_and_built
from weft.plans.handful import settle
from weft.plans.select import select
from weft.selftest.gate import admitted

LONG = 1e-4  # seconds of a contraction that is worth looking at both


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


def served(asked: Asked, specialize: str) -> Served:
    """The choice and launch of the tier that `specialize` asks for, or that the rule of `promotion` finds."""
    if asked.schedule is not None:
        return _measured(asked, Tier("made to measure", "its schedule is forced"))
    if asked.tune is not None:
        return _measured(asked, Tier("made to measure", "asked for" if specialize == "now" else "tuning asks for it"))
    if specialize == "now":
        begun = perf_counter()
        ranked = select(*asked)
        if not is_twice_as_fast_at_hand(asked, ranked):
            return _measured(asked, Tier("made to measure", "asked for"), (ranked, begun))
    if not has_tiers(asked.backend):
        return _measured(asked, Tier("made to measure", f"the {asked.backend} backend has one kind of kernel"))
    if specialize == "auto" and (why := is_stored(*asked[:4])) is not None:
        return _measured(asked, Tier("made to measure", why))
    choice = _admitted_at_hand(asked)
    if isinstance(choice, str):
        return _measured(asked, Tier("made to measure", f"nothing at hand serves it ({choice})"))
    if specialize != "auto":
        found, launch = choice.built()
        why = "asked for" if specialize == "never" else "kernels made to measure would take twice as long"
        return Served(found, launch, Tier("at hand", why))
    rule = tier(asked.description, asked.target, choice.best.seconds)
    if rule.name == "made to measure":
        return _measured(asked, rule)
    found, launch = choice.built()
    return Served(found, launch, rule)


def is_twice_as_fast_at_hand(asked: Asked, ranked: Choice) -> bool:
    """Whether what is at hand is predicted to take half of the time of the best kernel made to measure, a long one.

    That is sums over nearly all modes, which kernels at hand share out and no family made to measure does.
    """
    measured = ranked.best.seconds
    if measured < LONG or not has_tiers(asked.backend):
        return False
    choice = at_hand(*asked[:4])
    return isinstance(choice, Choice) and choice.best.seconds < 0.5 * measured


def _admitted_at_hand(asked: Asked) -> Choice | str:
    """What is at hand and has passed its self-test, or why nothing is."""
    while True:
        choice = at_hand(*asked[:4])
        if isinstance(choice, str):
            return choice
        settle(choice)
        if admitted(choice):
            return choice


def _measured(asked: Asked, rule: Tier, ranked: tuple[Choice, float] | None = None) -> Served:
    return Served(*chosen_and_built(*asked, ranked=ranked), rule)


class PromotingLaunch:
    """The launch of a plan at hand, which runs the kernel made to measure from one call on.

    Calls are counted, and which of them is the first to run the other kernel is known beforehand. Half way there a
    thread plans it and other processes compile it; the call that needs it waits for them. Within the capture of a CUDA
    graph nothing is exchanged: the first call after it does.
    """

    def __init__(self, asked: Asked, at_hand: Served, report: Callable[[Served], None]) -> None:
        """`report` hears of the exchange."""
        self._asked, self._report = asked, report
        self._launch, self._rule, self._choice = at_hand.launch, at_hand.tier, at_hand.choice
        self._count = count(1)
        self._next: float = self._rule.early
        self._ahead: Future[None] | None = None
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> None:
        if next(self._count) >= self._next:
            self._turn()
        self._launch(*arguments)

    def replayed(self) -> bool:
        """Count a call that a CUDA graph replays; whether other kernels serve from now on, and the graph is stale."""
        before = self._launch
        if next(self._count) >= self._next:
            self._turn()
        return self._launch is not before

    @property
    def kernels(self) -> Any:
        return getattr(self._launch, "kernels", ())

    @property
    def now(self) -> Callable[..., None]:
        """The launch that serves at this moment; its calls are not counted."""
        return self._launch

    def _turn(self) -> None:
        """Begin to compile, or exchange the kernels."""
        if self._asked.target.kind in ("cuda", "hip") and torch.cuda.is_current_stream_capturing():
            return
        with self._lock:
            if self._next == float("inf"):
                return
            if self._ahead is None:
                self._ahead = _compiled_beside(self._asked)
                self._next = self._rule.switch_at or float("inf")
                if self._next > self._rule.early:
                    return
            self._ahead.result()
            self._next = float("inf")
            rule = replace(self._rule, name="made to measure", why=f"promoted at call {self._rule.switch_at}")
            try:
                choice, launch = chosen_and_built(*self._asked)
            except (WeftError, RuntimeError, MemoryError) as error:  # what is at hand serves on
                why = f"no kernel made to measure could be built: {first_line(error)}"
                self._report(Served(self._choice, self._launch, replace(self._rule, why=why, switch_at=None)))
                return
            if _is_faster(choice, self._choice.best.seconds):
                self._launch = launch
                promote(*self._asked[:4], rule)
                self._report(Served(choice, launch, rule))
            else:
                stays = replace(self._rule, why="the best kernel made to measure would not be faster", switch_at=None)
                self._report(Served(self._choice, self._launch, stays))


def _is_faster(choice: Choice, seconds: float) -> bool:
    """Whether a kernel made to measure is predicted to take less than what is at hand."""
    return choice.best.seconds < seconds


def _compiled_beside(asked: Asked) -> Future[None]:
    """Plan in a thread, compile in other processes. What goes wrong there is met again where the kernel is built."""
    done: Future[None] = Future()

    def work() -> None:
        try:
            with suppress(Exception):
                from weft.tune.compile_pool import Compiler

                choice = select(*asked[:5])
                with Compiler(asked.target, asked.backend, jobs=1) as compiler:
                    compiler.submit(asked.description, choice.best).result()
        finally:
            done.set_result(None)

    Thread(target=work, daemon=True, name="weft promotes").start()
    return done

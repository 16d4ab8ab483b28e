"""The launch of a plan that changes to better kernels while calls go on.

    look      find out what would be better, and from which call on
    begin     prepare it, in a thread and other processes
    exchange  let it serve, if it is there and better
    time      hold the prediction of what serves against the device

Calls are counted, and which call does what follows from predicted times; but a prediction that the device shows to be
grossly wrong is corrected, and kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from math import inf
from threading import Lock
from typing import Any

import torch

from weft.base.figures import duration
from weft.base.forks import free_in_child
from weft.base.log import log
from weft.errors import WeftError
from weft.planner import promotion
from weft.planner.planner import Choice
from weft.planner.program import number
from weft.planner.promotion import SPECIALISED, Tier
from weft.planner.schedule import Make, NewTensor, is_invariant
from weft.plans import guard
from weft.plans.arrival import LATE, Arrival, pass_by, start_compilers
from weft.plans.guard import Guard
from weft.plans.select import ServiceRequest
from weft.plans.tiers import NEARLY, Offer, Served, corrected, made, offered

_CORRECTIONS = 3  # of one plan: a model that is wrong so often does not know better


class PromotingLaunch:
    """Runs what serves a plan. Within the capture of a CUDA graph nothing is exchanged."""

    def __init__(self, asked: ServiceRequest, first: Served, report: Callable[[Served], None]) -> None:
        """`report` hears of each exchange."""
        self._asked, self._report = asked, report
        self._serving, self._launch = first, first.launch
        self._seconds = first.choice.best.waited  # of a call, predicted or measured
        self._period = 0.0  # seconds from call to call, where these are steps of something longer
        self._offer: Offer | None = None
        self._arrival: Arrival | None = None
        self._guard: Guard | None = None
        self._corrections, self._reason = 0, ""
        self._measured: dict[Any, float] = {}  # seconds of schedules that the device has shown
        self._count, self._told = count(1), 1  # the next call, and the first one that `pass_by` has not heard of
        self._due = self._sample = self._next = inf  # calls: of a change of kernels, of a timing, and the earlier one
        self._lock = free_in_child(Lock())
        self._settle(first, 0)

    def __call__(self, *arguments: Any) -> None:
        if (call := next(self._count)) >= self._next:
            self._at(call, arguments)
        else:
            self._launch(*arguments)

    def maker(self, new: NewTensor) -> Make:
        """The plain call of what serves, which is counted as others are."""
        count, (shape, strides, dtype, device) = self._count, new
        one = number(1, self._asked.description.arithmetic.accumulate)  # type: ignore[union-attr]
        known: tuple[Any, Make | None] = (None, None)  # a launch and its plain call

        def make(a: torch.Tensor, b: torch.Tensor, *aux: torch.Tensor | None) -> torch.Tensor:
            nonlocal known
            call = next(count)
            if call < self._next:
                launch, made = known
                if self._launch is not launch:
                    launch = self._launch
                    known = launch, made = launch, launch.maker(new) if hasattr(launch, "maker") else None
                if made is not None:
                    return made(a, b, *aux)
            d = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            arguments = (a, b, None, d, one, one, aux) if aux else (a, b, None, d, one, one)
            if call < self._next:
                self._launch(*arguments)
            else:
                self._at(call, arguments)
            return d

        return make

    def replayed(self, calls: int) -> bool:
        """Count calls that a CUDA graph has replayed; whether other kernels serve from now on, and the graph is stale.

        A kernel that is due has its preparation begun here, and takes over when this is read again.
        """
        before, call = self._launch, next(islice(self._count, calls - 1, None))
        if call >= self._due:
            self._pass_by(call)
            self._turn(call, waits=False)
        return self._launch is not before

    @property
    def wants_timing(self) -> bool:
        """Whether the next call is to be timed, which a replay cannot be."""
        return self._sample < inf

    @property
    def wanted(self) -> ServiceRequest:
        """The request for a specialised kernel."""
        return self._asked._replace(specialize="now")

    @property
    def seconds(self) -> float:
        """Seconds of a call of what serves, predicted or measured."""
        return self._seconds

    def beside(self, seconds: float) -> None:
        """Say that calls are steps of a whole that takes so many seconds, which pass from one to the next."""
        self._period = seconds

    @property
    def kernels(self) -> Any:
        return getattr(self._launch, "kernels", ())

    @property
    def now(self) -> Callable[..., None]:
        """The launch that serves at this moment; its calls are not counted."""
        return self._launch

    def warm(self) -> None:
        """Change to the best kernel now, whatever it takes to prepare; what serves stays where there is no better one.

        Raises what planning, compiling and self-tests raise.
        """
        with self._lock:
            choice, launch = made(self._asked, offered(self._asked, self._paid))
            if self._takes_over(choice):
                self._settle(Served(choice, launch, Tier(SPECIALISED, "it was warmed up")), 0)
                promotion.promote(choice, self._asked.workspace_limit, self._serving.tier)
            else:
                tier = Tier(self._serving.tier.name, "no specialised kernel would be faster by enough")
                self._say(self._serving._replace(tier=tier))

    def _arm(self, *, due: float | None = None, sample: float | None = None) -> None:
        """Say at which call a change of kernels is due, or a timing."""
        self._due = self._due if due is None else due
        self._sample = self._sample if sample is None else sample
        self._next = min(self._due, self._sample)

    def _at(self, call: int, arguments: tuple[Any, ...]) -> None:
        """A call at which something is due."""
        if self._asked.target.kind in ("cuda", "hip") and torch.cuda.is_current_stream_capturing():
            self._launch(*arguments)  # nothing is exchanged or timed
            return
        self._pass_by(call)
        if call >= self._due:
            self._turn(call)
        watching = self._guard
        if watching is None or call < self._sample or not _is_current(self._asked):
            self._launch(*arguments)
        elif watching.is_done:
            self._launch(*arguments)
            self._check(watching, call)
        else:
            watching.timed(self._launch, arguments)
            self._arm(sample=call + guard.EVERY)

    def _pass_by(self, call: int) -> None:
        """Count what calls have taken since the last time."""
        pass_by((call - self._told) * self._seconds)
        self._told = call

    def _turn(self, call: int, waits: bool = True) -> None:
        """Whatever change is due at a call that no graph captures; `waits`: for a kernel, too, that was just begun."""
        with self._lock:
            while call >= self._due:
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
        plain = replace(self._serving.tier, look_at=None, then=None, switch_at=None)
        try:
            offer = offered(self._asked, self._paid)
            if offer.choice is not None and offer.choice.best.schedule in self._measured:  # and may be slow
                offer = corrected(self._asked, offer.choice, self._measured) or offer
            better = self._of(offer)
            found = promotion.taken_over(
                plain, call, self._paid, offer.name, better, offer.ready, offer.tuned, offer.worth,
                self._asked.target.kind, self._period,
            )  # fmt: skip
            if found.switch_at is not None:
                self._offer = offer
        except (WeftError, RuntimeError, MemoryError) as error:
            found = replace(plain, why=f"{plain.why}; nothing better can be planned: {_first_words(error)}")
        self._say(self._serving._replace(tier=found))

    @property
    def _paid(self) -> float:
        """Seconds of a call of what serves: measured on a GPU where calls are long, else predicted."""
        known = self._measured.get(self._serving.choice.best.schedule)
        return known if known is not None and self._is_long(known) else self._seconds

    def _is_long(self, seconds: float) -> bool:
        """Whether times of such calls tell kernels apart: a GPU's, which are much longer than its launches."""
        return self._asked.target.kind != "cpu" and seconds >= promotion.LONG

    def _of(self, offer: Offer) -> float:
        """Seconds of a call of an offer: measured where it served before, else predicted."""
        return offer.seconds if offer.choice is None else self._measured.get(offer.choice.best.schedule, offer.seconds)

    def _takes_over(self, choice: Choice) -> bool:
        """Whether a kernel is better than the one that serves: by a tuning, else by a tenth as predicted."""
        if choice.best.measured is not None:
            return choice.best.schedule != self._serving.choice.best.schedule
        slow = self._measured.get(choice.best.schedule, 0.0) > self._paid
        return is_faster(choice, self._paid) and not slow

    def _begin(self, tier: Tier) -> None:
        """Prepare the kernel that takes over."""
        asked, offer = self._asked, self._offer or Offer(tier.then or SPECIALISED, 0.0, promotion.COMPILING, None)
        serving = self._paid
        if not offer.kept:
            start_compilers(asked.target)
        self._arrival = Arrival(lambda: made(asked, offer, serving), asked.target, offer.ready)
        assert tier.switch_at is not None
        self._arm(due=tier.switch_at)

    def _exchange(self, tier: Tier, call: int) -> None:
        """Let the kernel serve that was prepared, if it is there and better."""
        assert self._arrival is not None
        built, name = self._arrival.result(), tier.then or SPECIALISED
        if built == LATE:
            again = call + 1 + (call - tier.early) // 2
            self._say(self._serving._replace(tier=replace(tier, switch_at=again)))
            self._arm(due=again)
            return
        self._arrival = self._offer = None
        stays = replace(tier, then=None, switch_at=None, look_at=None)
        if isinstance(built, str):
            log.info("%s: the %s kernel does not take over: %s", self._asked.description.text, name, built)
            self._say(self._serving._replace(tier=replace(stays, why=f"the {name} kernel does not take over: {built}")))
        elif not self._takes_over(built[0]):
            self._say(self._serving._replace(tier=replace(stays, why=f"no {name} kernel would be faster by enough")))
        else:
            log.info("%s: %s takes over at call %d", self._asked.description.text, built[0].best.schedule, call)
            why = f"it took over at call {tier.switch_at}{self._reason}"
            self._settle(Served(built[0], built[1], Tier(name, why)), call)
            if name == SPECIALISED:
                promotion.promote(built[0], self._asked.workspace_limit, tier)
            else:
                self._look(call)

    def _settle(self, serving: Served, call: int) -> None:
        """Serve by another kernel from now on."""
        best = serving.choice.best
        self._launch, self._seconds = serving.launch, best.waited
        watched = best.measured is None and guard.watches(self._asked.target)
        self._guard = guard.Guard(self._asked.target) if watched else None
        self._arm(sample=call + guard.FIRST if watched else inf)
        self._say(serving)

    def _say(self, serving: Served) -> None:
        """Set and report the tier that serves, until when, and why."""
        self._serving, tier = serving, serving.tier
        due = tier.look_at if tier.look_at is not None else tier.early if tier.switch_at is not None else None
        self._arm(due=inf if due is None else due)
        self._report(serving)

    # -- predictions and the device ------------------------------------------------------------------------------------

    def _check(self, watching: Guard, call: int) -> None:
        """Hold the timed calls against the prediction, once the device has passed them."""
        seconds = watching.seconds()
        if seconds is None:
            self._arm(sample=call + guard.EVERY)
            return
        self._guard = None
        self._arm(sample=inf)
        self._measured[self._serving.choice.best.schedule] = seconds
        beaten = self._is_long(seconds) and min(self._measured.values()) * NEARLY < seconds
        if beaten or guard.is_grossly_wrong(seconds, self._seconds, self._asked.target):
            with self._lock:
                self._arrival = self._offer = None  # what was on its way was thought to be better than less
                self._correct(seconds, call)

    def _correct(self, seconds: float, call: int) -> None:
        """Change to what is better by what was measured, if anything is."""
        predicted, schedule = self._seconds, self._serving.choice.best.schedule
        told = f"{schedule} took {duration(seconds)} where {duration(predicted)} were predicted"
        if min(self._measured.values()) < seconds:
            told += f", and another {duration(min(self._measured.values()))}"
        log.info("%s: %s", self._asked.description.text, told)
        self._seconds, self._corrections, self._reason = seconds, self._corrections + 1, f": {told}"
        known = self._measured
        offer = corrected(self._asked, self._serving.choice, known) if self._corrections <= _CORRECTIONS else None
        plain = replace(self._serving.tier, then=None, switch_at=None, look_at=None, why=told)
        if offer is None:
            due = promotion.looks_at(seconds) if self._asked.target.kind == "cpu" else 0  # there looking is planning
            waits = plain.name != SPECIALISED and call + 1 < due
            self._say(self._serving._replace(tier=replace(plain, look_at=due) if waits else plain))
            if plain.name != SPECIALISED and not waits:
                self._look(call + 1)  # with what was measured
            return
        tier = promotion.taken_over(
            plain, call + 1, seconds, offer.name, offer.seconds, offer.ready, worth=offer.worth,
            kind=self._asked.target.kind,
        )  # fmt: skip
        if offer.name != SPECIALISED:
            promotion.demote(self._serving.choice, self._asked.workspace_limit)
        self._offer = offer
        self._say(self._serving._replace(tier=tier))


def promotes(asked: ServiceRequest, tier: Tier) -> bool:
    """Whether a plan that is served so may change to other kernels."""
    if tier.switch_at is not None or tier.look_at is not None:
        return True
    free = asked.specialize == "auto" and asked.schedule is None and asked.tune is None
    return free and guard.watches(asked.target) and not is_invariant(asked.description)


def is_faster(choice: Choice, seconds: float) -> bool:
    """Whether a kernel is predicted to be faster by enough than what serves."""
    return choice.best.seconds <= promotion.bar(seconds, choice.target.kind)


def _is_current(asked: ServiceRequest) -> bool:
    """Whether the device of a plan is the current one, whose stream a GPU's events are recorded on."""
    return asked.target.kind == "cpu" or torch.cuda.current_device() == asked.target.index


def _first_words(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

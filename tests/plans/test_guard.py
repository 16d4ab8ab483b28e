"""Predictions that the device shows to be grossly wrong: the schedule is replaced, kept on disk and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import promotion
from weft.planner.schedule import Target
from weft.plans import guard, promoting, tiers

GPU, CPU = Target("cuda", 0, "NVIDIA H100", 90, 132, 232448), Target("cpu")
PREDICTED = 1e-3  # seconds of the library tier, by decree


class Clock:
    """Stands in for the device: every call takes as long as the test says."""

    takes = PREDICTED

    def __init__(self) -> None:
        self._count = 0

    @property
    def is_done(self) -> bool:
        return self._count >= guard.SAMPLES

    def timed(self, launch: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        launch(*arguments)
        self._count += 1

    def seconds(self) -> float | None:
        return type(self).takes


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Clock]]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(guard, "Guard", lambda target: Clock())
    monkeypatch.setattr(promoting, "_is_current", lambda asked: True)
    monkeypatch.setattr(guard, "watches", lambda target: True)
    monkeypatch.setattr(Clock, "takes", PREDICTED)
    weft.planner.validity.outdate()
    yield Clock
    weft.planner.validity.outdate()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(60, 50, generator=generator), torch.randn(50, 40, generator=generator)


def planned() -> weft.Plan:
    return weft.plan("ik,kj->ij", *operands(), specialize="auto")


CALLS = guard.FIRST + guard.EVERY * (guard.SAMPLES + 2)


def test_a_schedule_as_quick_as_predicted_stays() -> None:
    a, b = operands()
    plan = planned()
    schedule = plan.schedule
    Clock.takes = plan._first().choice.best.seconds
    for _ in range(CALLS):
        plan(a, b)
    assert plan.schedule == schedule
    assert "were predicted" not in plan.explain()


def test_noise_flips_no_choice() -> None:
    """A third more than predicted, and less than a launch's latency, are no errors of the model."""
    assert not guard.is_grossly_wrong(1.33e-3, 1e-3, GPU)
    assert not guard.is_grossly_wrong(40e-6, 4e-6, GPU)
    assert guard.is_grossly_wrong(63e-3, 3.35e-3, GPU)
    assert guard.is_grossly_wrong(40e-6, 4e-6, CPU)
    assert not guard.is_grossly_wrong(9e-6, 1e-6, CPU)


def test_a_schedule_that_takes_ten_times_as_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library tier begins, whichever kernel the model of this machine's vectors would choose."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    weft.planner.validity.outdate()
    a, b = operands()
    weft.plan("ik,kj->ij", a, b, specialize="now")(a, b)  # so that no compiler is waited for
    exact = a.double() @ b.double()
    plan = planned()
    schedule = plan.schedule
    Clock.takes = 1.0
    for _ in range(CALLS + 15):  # what compiling takes is lost in ten calls
        assert torch.allclose(plan(a, b).double(), exact, atol=1e-4)
        Clock.takes = 1.0 if plan.schedule == schedule else 1e-6
    assert plan.schedule != schedule
    assert f"{schedule} took 1 s where" in plan.explain()
    weft.planner.validity.outdate()  # as a new process, which finds what is on disk
    assert kept(planned()) == plan.schedule


def kept(plan: weft.Plan) -> Any:
    """The schedule that a new process prepares first."""
    request = plan.request
    found = promotion.kept(plan.contraction, request.backend, request.target, None)
    assert found is not None
    assert found.choice is not None
    return found.choice.best.schedule


def test_the_guard_is_turned_off_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("WEFT_GUARD", raising=False)
    assert guard.watches(GPU)
    assert guard.watches(CPU)
    monkeypatch.setenv("WEFT_GUARD", "0")
    assert not guard.watches(GPU)
    assert not guard.watches(CPU)


@pytest.mark.parametrize("slower", [None, 1.3], ids=["by far", "by a little, of long calls"])
def test_what_was_measured_to_be_slow_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch, slower: float | None
) -> None:
    """From the library to a kernel that the model praises, and back when the device shows it to be slow: once."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    if slower:  # times of such calls tell kernels apart
        monkeypatch.setattr(promoting.PromotingLaunch, "_is_long", lambda self, seconds: True)
        monkeypatch.setattr(promotion, "LOADING", 0.0)  # else some thousand of these calls pay for going back
    monkeypatch.setattr(promotion, "looks_at", lambda seconds: CALLS)
    weft.planner.validity.outdate()
    a, b = operands()
    plan = planned()
    first = plan._first().choice.best
    engine = weft.plan("ik,kj->ij", a, b, specialize="now")._first().choice
    engine = replace(engine, best=next(each for each in engine.ranked if each.schedule.family != "library"))
    praised = replace(engine, best=replace(engine.best, seconds=0.8 * first.seconds), ranked=(engine.best,))
    offer = tiers.Offer("specialised", 0.8 * first.seconds, 0.0, praised)
    monkeypatch.setattr(promoting, "offered", lambda asked, serving: offer)
    served = []
    for _ in range(8 * CALLS):
        plan(a, b)
        served.append(plan.schedule)
        takes = slower * first.seconds if slower else 1.0
        Clock.takes = takes if plan.schedule == engine.best.schedule else first.seconds
    assert engine.best.schedule in served
    assert served[-1] == first.schedule
    assert served.count(engine.best.schedule) < 3 * CALLS
    weft.planner.validity.outdate()  # as a new process, which finds nothing of it on disk
    request = plan.request
    assert promotion.kept(plan.contraction, request.backend, request.target, None) is None


def nothing_is_compiled(*asked: Any) -> Any:
    raise weft.UnsupportedError("nothing is compiled in this test")


def test_the_clock_of_a_cpu_shows_a_tier_that_is_slower_than_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host's clock itself: torch's tier is predicted to take a microsecond, and takes longer."""
    monkeypatch.undo()
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setenv("WEFT_GUARD", "1")
    library = tiers.library

    def praised(*asked: Any) -> Any:
        found = library(*asked)
        return replace(found, best=replace(found.best, seconds=1e-6))

    monkeypatch.setattr(tiers, "library", praised)
    monkeypatch.setattr(promoting, "made", nothing_is_compiled)
    weft.planner.validity.outdate()
    try:
        a, b = torch.randn(200, 300), torch.randn(300, 400)
        plan = weft.plan("ik,kj->ij", a, b, epilogue=torch.nn.functional.gelu, specialize="auto")
        exact = torch.nn.functional.gelu(a.double() @ b.double())
        first, text = plan.schedule, ""
        for _ in range(CALLS + 40):  # looking is worth while after some of them
            assert torch.allclose(plan(a, b).double(), exact, atol=1e-3)
            text = text or (plan.explain() if "specialised from call" in plan.explain() else "")
        assert f"{first} took" in text
        assert "where 1 us were predicted" in text
        assert "predicted to take -" not in text
    finally:
        weft.planner.validity.outdate()


def test_what_is_compiled_in_this_process_is_worth_a_quarter_of_its_time() -> None:
    """The end of the process waits for it: a program of few calls must not."""
    a, b = operands()
    engine = weft.plan("ik,kj->ij", a, b, specialize="now")._first().choice
    compiled = tiers.Offer("specialised", 1e-3, promotion.COMPILING_CPU, engine)
    linked = tiers.Offer("specialised", 1e-3, promotion.LOADING, engine)
    elsewhere = tiers.Offer("specialised", 1e-3, promotion.COMPILING_CPU, None)
    assert compiled.worth == promotion.COMPILING_CPU / 4
    assert linked.worth == elsewhere.worth == promotion.WORTH
    first = promotion.Tier("library", "first")
    begins = [
        promotion.taken_over(first, 1, 3e-3, "specialised", 1e-3, each.ready, worth=each.worth).early
        for each in (compiled, linked)
    ]
    assert begins == [1 + int(promotion.COMPILING_CPU / 4 / 2e-3), 1 + int(promotion.LOADING / 2e-3)]

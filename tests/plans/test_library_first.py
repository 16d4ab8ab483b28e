"""A plan begins in the library tier, and better kernels take over at calls that no clock decides."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import promotion
from weft.planner import tuned as tuned_schedules
from weft.planner.schedule import Target
from weft.plans import arrival, promoting, tiers

EQUATION = "ik,kj->ij"


@pytest.fixture(autouse=True)
def library_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_TIERS", "1")
    weft.planner.validity.outdate()
    yield
    weft.planner.validity.outdate()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the third call; the engine is a tenth faster by decree, and as dear as ten calls."""
    seconds = library().choice.best.seconds
    monkeypatch.setattr(arrival, "_LEAST", 60.0)  # a test that runs alone compiles the kernel, beside others that do
    monkeypatch.setattr(promotion, "looks_at", lambda seconds: 3)
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    offer = tiers.Offer("specialised", 0.5 * seconds, 2.6 * seconds, None)
    monkeypatch.setattr(promoting, "offered", lambda asked, serving: offer)


LOOK, BEGIN, SWITCH = 3, 8, 11  # the calls of `soon`


def operands(seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(30, 20, generator=generator), torch.randn(20, 40, generator=generator)


def planned(**options: Any) -> weft.Plan:
    return weft.plan(EQUATION, *operands(), **{"specialize": "auto", **options})


def library() -> Any:
    return planned(specialize="library")._first()


def tier(plan: weft.Plan) -> str:
    return str(plan._first().tier.name)


def test_the_first_call_compiles_nothing() -> None:
    a, b = operands()
    plan = planned()
    assert torch.allclose(plan(a, b).double(), a.double() @ b.double(), atol=1e-5)
    assert tier(plan) == "library"
    assert "library: it needs no compiling" in plan.explain()
    assert f"call {plan._first().tier.look_at} looks for a better kernel" in plan.explain()


def test_the_library_stays_where_it_is_asked_for(soon: None) -> None:
    a, b = operands()
    plan = planned(specialize="library")
    first = plan(a, b)
    assert all(torch.equal(plan(a, b), first) for _ in range(20))
    assert "library: asked for" in plan.explain()


@pytest.mark.parametrize("call", ["contract", "permute", "einsum", "network", "grouped", "gradient"])
def test_every_kind_of_call_has_a_library_tier(call: str) -> None:
    a, b = operands()
    exact = a.double() @ b.double()
    if call == "contract":
        found = weft.contract(EQUATION, a, b, specialize="library")
    elif call == "permute":
        found, exact = weft.permute(a, "ij->ji", specialize="library"), a.double().T
    elif call == "einsum":
        found = weft.einsum("ik,kj->ij", a, b, specialize="library")
    elif call == "network":
        found = weft.network(EQUATION, a, b, specialize="library")(a, b)
    elif call == "grouped":
        found = weft.grouped(EQUATION, [(a, b)])[0]
    else:
        x = a.clone().requires_grad_()
        weft.contract(EQUATION, x, b, specialize="library").sum().backward()
        assert x.grad is not None
        found, exact = x.grad, b.double().sum(1).expand(30, 20)
    assert torch.allclose(found.double(), exact, atol=1e-4)


def test_a_better_kernel_takes_over_at_the_call_that_was_said(soon: None) -> None:
    a, b = operands()
    plan, first, last = planned(), planned(specialize="library")(*operands()), planned(specialize="now")(*operands())
    for call in range(1, SWITCH + 3):
        found = plan(a, b)
        assert torch.equal(found, first if call < SWITCH else last), call
        assert tier(plan) == ("library" if call < SWITCH else "specialised"), call
        if LOOK <= call < SWITCH:
            assert f"specialised from call {SWITCH} on" in plan.explain()
            assert f"prepared alongside from call {BEGIN} on" in plan.explain()
    assert f"specialised: it took over at call {SWITCH}" in plan.explain()


def test_a_slow_compiler_changes_nothing_before_its_call(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call at which the kernel is due waits for it, and every call yields the same bits as with a quick one."""
    a, b = operands()
    runs = []
    for delay in (0.0, 0.4):

        def slow(*arguments: Any, delay: float = delay, make: Any = tiers.chosen_and_built) -> Any:
            time.sleep(delay)
            return make(*arguments)

        weft.planner.validity.outdate()
        with monkeypatch.context() as patch:
            patch.setattr(tiers, "chosen_and_built", slow)
            plan = planned()
            runs.append([plan(a, b) for _ in range(SWITCH + 2)])
            assert tier(plan) == "specialised"
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_a_compiler_that_is_far_too_late_is_not_waited_for(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go on without it, and a later one looks again."""
    a, b = operands()
    monkeypatch.setattr(arrival, "_LEAST", 0.05)

    def slow(*arguments: Any, make: Any = tiers.chosen_and_built) -> Any:
        time.sleep(1.0)
        return make(*arguments)

    monkeypatch.setattr(tiers, "chosen_and_built", slow)
    plan, begun = planned(), time.monotonic()
    for _ in range(20):
        plan(a, b)
    assert time.monotonic() - begun < 0.9
    assert tier(plan) == "library"
    assert "specialised from call 21 on" in plan.explain()  # half as many more as since call 8, three times
    for thread in list(arrival._threads):
        thread.join(60.0)
    plan(a, b)
    assert tier(plan) == "specialised"


def test_a_compiler_that_fails_leaves_the_library_serving(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(tiers, "chosen_and_built", fails)
    a, b = operands()
    plan = planned()
    first = plan(a, b)
    assert all(torch.equal(plan(a, b), first) for _ in range(SWITCH + 5))
    assert "does not take over: none could be built: RuntimeError: no compiler here" in plan.explain()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_goes_on(soon: None) -> None:
    a, b = operands()
    plan = planned()
    for _ in range(BEGIN + 1):
        first = plan(a, b)
    child = os.fork()
    if child == 0:
        right = all(torch.allclose(plan(a, b), first, atol=1e-5) for _ in range(SWITCH + 5))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_not_a_tenth_faster_does_not_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = library().choice.best.seconds
    monkeypatch.setattr(promotion, "looks_at", lambda seconds: 3)
    offer = tiers.Offer("specialised", 0.95 * seconds, 0.0, None)
    monkeypatch.setattr(promoting, "offered", lambda asked, serving: offer)
    a, b = operands()
    plan = planned()
    for _ in range(10):
        plan(a, b)
    assert "library: it needs no compiling; no specialised kernel would be faster by enough" in plan.explain()


def test_a_plan_that_is_warmed_has_its_kernel_at_once(soon: None) -> None:
    a, b = operands()
    plan = planned()
    assert plan.warm() is plan
    assert "specialised: it was warmed up" in plan.explain()
    assert torch.equal(plan(a, b), planned(specialize="now")(a, b))


@pytest.mark.keeps
def test_a_network_that_is_warmed_has_its_kernels_at_once(soon: None) -> None:
    tensors = [torch.randn(30, 30) for _ in range(5)]
    net = weft.network("ab,bc,cd,de,ef->af", *tensors)
    exact = torch.linalg.multi_dot([each.double() for each in tensors])
    assert net.warm(*tensors) is net
    assert torch.allclose(net(*tensors).double(), exact, atol=1e-2)
    calls = net.latest.calls.values()
    assert {call.variant.tier.name for call in calls} == {"specialised"}


@pytest.mark.parametrize("wins", [True, False], ids=["another", "the library"])
def test_a_tuned_schedule_takes_over_whatever_is_predicted(monkeypatch: pytest.MonkeyPatch, wins: bool) -> None:
    """As a later process does, which finds it stored; and where the library is the fastest nothing takes over."""
    a, b = operands()
    first = planned(specialize="library")._first().choice.best.schedule
    choice = planned(tune="model", specialize="now")._first().choice
    slowest = next(each for each in reversed(choice.ranked) if (each.schedule != first) is wins)
    choice = dataclasses.replace(choice, ranked=(slowest, *(each for each in choice.ranked if each is not slowest)))
    best = tuned_schedules.TunedSchedule(slowest.schedule, 1.0, slowest.schedule, 1.0, 1)
    assert tuned_schedules.remember(choice, None, best)
    monkeypatch.setattr(tiers, "SHORT", 0.0)
    plan = planned()
    assert tier(plan) == "library"
    assert plan._first().tier.look_at == 1
    plan(a, b)
    switch_at = plan._first().tier.switch_at
    for _ in range((switch_at or 3) + 1):
        found = plan(a, b)
    assert plan.schedule == slowest.schedule
    assert torch.allclose(found.double(), a.double() @ b.double(), atol=1e-5)
    assert tier(plan) == ("specialised" if wins else "library")


def test_compilers_are_started_once_and_awaited_in_predicted_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Target] = []

    class Compilers:
        def start(self) -> None:
            started.append(gpu)

    gpu = Target("cuda", 0, "a GPU that is not there", 90, 132)
    monkeypatch.setattr(arrival, "_pool", lambda target: Compilers())
    monkeypatch.setattr(arrival, "_started", {})
    assert arrival.starting(gpu) == arrival.STARTING
    for _ in range(3):
        arrival.start_compilers(gpu)
    arrival.start_compilers(Target("cpu"))
    assert arrival.starting(gpu) == arrival.STARTING
    arrival.pass_by(arrival.STARTING / 4)
    assert arrival.starting(gpu) == pytest.approx(0.75 * arrival.STARTING)
    arrival.pass_by(10 * arrival.STARTING)
    assert arrival.starting(gpu) == 0
    for _ in range(100):
        if started:
            break
        time.sleep(0.02)
    assert started == [gpu]


def test_steps_of_a_whole_take_over_after_fewer_calls() -> None:
    """Preparing takes a second: a hundred calls of 10 ms, or ten where the rest of the whole takes 90 ms more."""
    tier = promotion.Tier("library", "")
    alone, step = (
        promotion.taken_over(tier, 5, 1e-2, "specialised", 1e-3, 1.0, worth=0.0, period=period) for period in (0.0, 0.1)
    )
    assert (alone.early, step.early) == (5, 5)
    assert alone.switch_at - 5 == pytest.approx(10 * (step.switch_at - 5), abs=10)  # type: ignore[operator]


def test_long_calls_of_a_gpu_change_for_less() -> None:
    tier = promotion.Tier("library", "")
    for kind, seconds, changes in (("cuda", 1e-3, True), ("cuda", 1e-5, False), ("cpu", 1e-3, False)):
        found = promotion.taken_over(tier, 1, seconds, "specialised", 0.95 * seconds, 0.1, kind=kind)
        assert (found.switch_at is not None) is changes, (kind, seconds)

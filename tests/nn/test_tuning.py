"""`weft.nn.tune`: what a module computes is measured, forward and backward, and served afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tuning
import weft
from weft.machine.store import Store
from weft.tune import tuner


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tuning.begin(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return tuning.measured(monkeypatch)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    first, second = ("silu", (12, 20)), ("relu", (20, 6))  # `Linear` is torch's on a CPU
    layers = [weft.nn.Einsum("ab,bc->ac", shape, activation=name) for name, shape in (first, second)]
    return torch.nn.Sequential(*layers)


X = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


def test_forward_and_backward_are_measured_and_right_afterwards(measured: list[Any]) -> None:
    layers = model()
    before = layers(X)
    before.sum().backward()
    wanted = [parameter.grad.clone() for parameter in layers.parameters()]
    layers.zero_grad()
    report = weft.nn.tune(layers, X)
    assert report.measured == len(measured) == len(list(Store("schedules").directory.glob("*.json")))
    assert all(parameter.grad is None for parameter in layers.parameters()), "the gradients of tuning are dropped"
    after = layers(X)
    after.sum().backward()
    torch.testing.assert_close(after, before)
    torch.testing.assert_close([parameter.grad for parameter in layers.parameters()], wanted)
    with torch.no_grad():
        count = len(measured)
        assert weft.nn.tune(layers.eval(), X).measured == len(measured) - count <= 2


def test_without_gradients_the_forward_pass_alone_is_measured(measured: list[Any]) -> None:
    layers = model()
    with torch.no_grad():
        weft.nn.tune(layers, X)
    assert len(measured) == 2


def test_a_call_takes_the_fastest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate that the model likes least is made to win, so that it is told from the one that serves."""

    def decided(self: Any, model: Any, last: Any) -> Any:
        worst = next(each for each in reversed(self.candidates) if each.verdict == "measured")
        for each in (worst, model):
            each.samples = [1e-3]
        return worst, model

    monkeypatch.setattr(tuner._Session, "_decided", decided)
    a, b = torch.randn(16, 24), torch.randn(24, 8)
    report = weft.nn.tune(lambda x: weft.contract("ik,kj->ij", x, b), a)
    (step,) = report.steps
    assert step.changed
    plan = weft.plan("ik,kj->ij", a, b, specialize="auto")
    assert str(plan.schedule) == step.schedule
    assert "it was measured to be the fastest" in plan.explain()
    exact = a.double() @ b.double()
    assert ((plan(a, b).double() - exact).abs() <= weft.error_bound("ik,kj->ij", a, b)).all()


def test_networks_permutations_and_several_results_are_heard(measured: list[Any]) -> None:
    def both(x: torch.Tensor, *, y: torch.Tensor) -> dict[str, Any]:
        return {"product": weft.einsum("ab,bc,cd->ad", x, y, x), "moved": (weft.permute(x, "ab->ba", fn=torch.tanh),)}

    x = torch.randn(6, 7, requires_grad=True)
    report = weft.nn.tune(both, x, y=torch.randn(7, 6))
    assert report.measured == len(measured) >= 3
    assert report.title == "function"


def test_a_budget_of_nothing_measures_nothing(measured: list[Any]) -> None:
    layers = model()
    before = layers(X)
    report = weft.nn.tune(layers, X, budget=0)
    assert (report.measured, measured) == (0, [])
    torch.testing.assert_close(layers(X), before)


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = tuner.tune, []

    def interrupted(choice: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(choice)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(choice, *arguments, **options)

    monkeypatch.setattr(tuner, "tune", interrupted)
    layers = model()
    with pytest.raises(KeyboardInterrupt):
        weft.nn.tune(layers, X)
    report = weft.nn.tune(layers, X)
    assert report.measured == len(report.steps) - 1


def test_nonsense_is_refused() -> None:
    with pytest.raises(weft.ArgumentError, match=r"nn\.tune takes a module or a function, not Tensor"):
        weft.nn.tune(X)
    with pytest.raises(weft.ArgumentError, match="budget is a number of seconds, 0 or more, not -3"):
        weft.nn.tune(model(), X, budget=-3)
    with pytest.raises(weft.ArgumentError, match="workers is 0 at least"):
        weft.nn.tune(model(), X, workers=-1)
    with pytest.raises(weft.ShapeError):
        weft.nn.tune(model(), X.T)

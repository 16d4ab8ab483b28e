"""`net.tune` and ``weft.network(..., tune="measure")``: what is measured, stored, shared, and what serves then."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tuning
import weft
from nets import random_net
from weft.machine.store import Store
from weft.tune import tuner

EQUATION = "ab,bc,cd,de->ae"
SHAPES = ((12, 20), (20, 30), (30, 12), (12, 20))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tuning.begin(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return tuning.measured(monkeypatch)


def operands(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def is_right(net: weft.Network, tensors: list[torch.Tensor]) -> bool:
    exact = torch.linalg.multi_dot([tensor.double() for tensor in tensors])
    return bool(((net(*tensors).double() - exact).abs() <= net.error_bound(*tensors) + 1e-13 * exact.abs()).all())


def stored() -> int:
    directory = Store("schedules").directory
    return len(list(directory.glob("*.json"))) if directory.is_dir() else 0


def served(net: weft.Network) -> list[str]:
    return [str(call.variant.choice.best.schedule) for call, _ in net.latest.prepared_calls()]


@pytest.mark.parametrize("tiers", ["0", "1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_every_step_is_measured_stored_and_right_afterwards(
    monkeypatch: pytest.MonkeyPatch, measured: list[Any], tiers: str, dtype: torch.dtype
) -> None:
    monkeypatch.setenv("WEFT_TIERS", tiers)
    tensors = operands(dtype=dtype)
    net = weft.network(EQUATION, *tensors)
    before = net(*tensors)
    report = net.tune(*tensors, budget=60)
    assert report.measured == len(report.steps) == len(measured) == stored() > 0
    assert 0 < report.after <= 1.5 * report.before
    torch.testing.assert_close(net(*tensors), before, rtol=1e-3, atol=1e-3)
    assert set(served(net)) == {step.schedule for step in report.steps}
    again = net.tune(*tensors, budget=60)
    assert (again.measured, again.changed) == (0, 0)


def test_the_fastest_serves_the_calls_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate that the model likes least is made to win, so that it is told from the one that serves."""
    monkeypatch.setattr(tuner, "NEAR", (1e9, 1e9))

    def decided(self: Any, model: Any, last: Any) -> Any:
        worst = next(each for each in reversed(self.candidates) if each.verdict == "measured")
        for each in (worst, model):
            each.samples = [1e-3]
        return worst, model

    monkeypatch.setattr(tuner._Session, "_decided", decided)
    tensors = operands()
    net = weft.network(EQUATION, *tensors)
    net(*tensors)
    before = served(net)
    report = net.tune(*tensors)
    assert report.changed > 0
    assert is_right(net, tensors)
    assert served(net) != before
    assert is_right(net, operands(1))


def test_equal_steps_are_measured_once(measured: list[Any]) -> None:
    tensors = [torch.randn(16, 16) for _ in range(6)]
    report = weft.network("ab,bc,cd,de,ef,fg->ag", *tensors, optimize=[(0, 1)] * 5).tune(*tensors)
    assert len(report.steps) == len(measured) < 5
    assert sum(step.times for step in report.steps) == 5


def test_another_network_and_another_process_take_what_is_stored(measured: list[Any]) -> None:
    tensors = operands()
    path = [(0, 1), (0, 2), (0, 1)]
    weft.network(EQUATION, *tensors, optimize=path).tune(*tensors)
    count = len(measured)
    other = weft.network("xy,yz,zw->xw", *tensors[:3], optimize=[(0, 1), (0, 1)], tune="measure")
    other(*tensors[:3])
    assert len(measured) == count + 1, "the product of both first operands is known"
    program = (
        f"import torch, weft\ntorch.set_num_threads({torch.get_num_threads()})\n"
        f"tensors = [torch.randn(shape) for shape in {SHAPES}]\n"
        f"report = weft.network({EQUATION!r}, *tensors, optimize={path}).tune(*tensors, budget=0)\n"
        "print(report.measured, sum(step.after is not None for step in report.steps))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", str(count)], done.stderr


def test_a_budget_of_nothing_measures_nothing(measured: list[Any]) -> None:
    tensors = operands()
    net = weft.network(EQUATION, *tensors)
    before = net(*tensors)
    report = net.tune(*tensors, budget=0)
    assert (report.measured, report.changed, measured, stored()) == (0, 0, [], 0)
    assert {step.reason for step in report.steps} == {"the budget was over"}
    assert torch.equal(net(*tensors), before)


def test_the_longest_steps_come_first(measured: list[Any]) -> None:
    tensors = [torch.randn(4, 6), torch.randn(6, 90), torch.randn(90, 200), torch.randn(200, 5)]
    net = weft.network("ab,bc,cd,de->ae", *tensors, optimize=[(0, 1), (1, 2), (0, 1)])
    report = net.tune(*tensors)
    work = [each.m * each.n * each.k for each in measured]
    assert work[0] == max(work)
    assert len(report.steps) == 3


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, original = operands(), tuner.tune
    calls: list[Any] = []

    def interrupted(choice: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(choice)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(choice, *arguments, **options)

    monkeypatch.setattr(tuner, "tune", interrupted)
    net = weft.network(EQUATION, *tensors)
    with pytest.raises(KeyboardInterrupt):
        net.tune(*tensors)
    assert stored() == 1
    assert is_right(net, tensors)
    report = net.tune(*tensors)
    assert report.measured == len(report.steps) - 1
    assert is_right(net, tensors)


def test_threads_share_one_tuning(measured: list[Any]) -> None:
    tensors = operands()
    net = weft.network(EQUATION, *tensors)
    with ThreadPoolExecutor(3) as pool:
        tunings = [pool.submit(net.tune, *tensors) for _ in range(2)]
        calls = [pool.submit(is_right, net, operands(seed)) for seed in range(20)]
        assert all(call.result() for call in calls)
        reports = [each.result() for each in tunings]
    assert len(measured) == sum(report.measured for report in reports) == len(reports[0].steps)
    assert is_right(net, tensors)


def test_measure_tunes_at_the_first_call(measured: list[Any]) -> None:
    tensors = operands()
    net = weft.network(EQUATION, *tensors, tune="measure")
    assert measured == []
    assert is_right(net, tensors)
    count = len(measured)
    assert count == stored() > 0
    assert is_right(net, operands(1))
    assert weft.einsum(EQUATION, *tensors, tune="measure").shape == (12, 20)
    assert len(measured) == count


def test_the_first_call_of_a_network_that_measures_keeps_to_the_budget(
    monkeypatch: pytest.MonkeyPatch, measured: list[Any]
) -> None:
    from weft.networks import tuning as of_networks

    monkeypatch.setattr(of_networks, "BUDGET", 0.0)
    tensors = operands()
    net = weft.network(EQUATION, *tensors, tune="measure")
    assert is_right(net, tensors)
    assert measured == []
    assert net.tune(*tensors, budget=60).measured == len(measured) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"slices": "c"}, {"strip_exponent": True}, {"strip_exponent": True, "slices": "c"}, {"reuse": True},
        {"functions": {5: torch.tanh}}, {"check_finite": True}, {"algebra": "max_plus"}, {"specialize": "now"},
        {"memory_limit": "4 KiB"}, {"tune": "model"},
    ],
    ids=lambda options: "-".join(options),
)  # fmt: skip
def test_networks_of_every_kind_compute_what_they_did(options: dict[str, Any]) -> None:
    tensors = operands(dtype=torch.float64)
    net = weft.network(EQUATION, *tensors, optimize=[(0, 1), (0, 2), (0, 1)], **options)
    before = net(*tensors)
    report = net.tune(*tensors, budget=60)
    assert report.measured == len(report.steps) > 0
    after = net(*tensors)
    if isinstance(before, tuple):
        before, after = (mantissa * 10**exponent for mantissa, exponent in (before, after))
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_are_right_afterwards(seed: int) -> None:
    found = random_net(seed)
    net = weft.network(found.equation, *found.tensors)
    net.tune(*found.tensors, budget=20)
    torch.testing.assert_close(net(*found.tensors), found.expected)


def test_constants_gradients_and_other_layouts() -> None:
    a, b, c, d = operands(dtype=torch.float64)
    net = weft.network(EQUATION, a, b, c, d, constants=[1, 2])
    expected = torch.linalg.multi_dot([a, b, c, d])
    assert net.tune(a.requires_grad_(), d).measured > 0
    torch.testing.assert_close(net(a.detach(), d), expected)
    torch.testing.assert_close(net(a.detach().T.contiguous().T, d), expected)
    net(a, d).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones_like(expected) @ torch.linalg.multi_dot([b, c, d]).T)


def test_nothing_to_tune() -> None:
    x = torch.randn(3, 4)
    single = weft.network("ab->ba", x)
    assert single.tune(x).steps == []
    plain = weft.network("ab,bc,cd->ad", x, x.T, x, backend="reference")
    assert plain.tune(x, x.T, x).steps == []
    empty = weft.network("ab,bc,cd->ad", torch.ones(2, 0), torch.ones(0, 3), torch.ones(3, 2))
    report = empty.tune(torch.ones(2, 0), torch.ones(0, 3), torch.ones(3, 2))
    assert any(step.reason == "a mode is empty" for step in report.steps)


def test_a_step_that_cannot_be_measured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any, **options: Any) -> Any:
        raise weft.WorkspaceError("too little memory to measure candidates")

    monkeypatch.setattr(tuner, "tune", failing)
    tensors = operands()
    net = weft.network(EQUATION, *tensors)
    report = net.tune(*tensors)
    assert report.measured == 0
    assert all("too little memory" in step.reason for step in report.steps)
    assert "too little memory" in str(report)
    assert is_right(net, tensors)


def test_the_report_prints_and_is_a_dictionary() -> None:
    tensors = operands()
    report = weft.network(EQUATION, *tensors).tune(*tensors)
    text = str(report)
    assert f"{report.measured} of {len(report.steps)} distinct steps measured" in text
    assert "before" in text
    assert "12 x " in text
    assert report.to_dict()["measured"] == report.measured
    assert "<table" in report._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": -1}, "budget is a number of seconds, 0 or more, not -1"),
        ({"budget": float("nan")}, "budget is a number of seconds"),
        ({"budget": "soon"}, "budget is a real number"),
        ({"budget": None}, "budget is a real number"),
        ({"workers": -1}, "workers is 0 at least"),
        ({"workers": 1.5}, "workers is a whole number"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    tensors = operands()
    with pytest.raises(weft.ArgumentError, match=message):
        weft.network(EQUATION, *tensors).tune(*tensors, **options)


def test_tensors_that_do_not_fit_are_refused_as_in_a_call(measured: list[Any]) -> None:
    a, b, c, d = operands()
    net = weft.network(EQUATION, a, b, c, d)
    with pytest.raises(weft.ShapeError, match="the network takes 4 operands"):
        net.tune(a, b, c)
    with pytest.raises(weft.ShapeError, match="operand 0 has shape"):
        net.tune(b, b, c, d)
    with pytest.raises(weft.DTypeError, match="operand 3 is float64"):
        net.tune(a, b, c, d.double())
    with pytest.raises(weft.UnsupportedError, match="tune='fast' is none of None, 'model', 'measure'"):
        weft.network(EQUATION, a, b, c, d, tune="fast")
    assert measured == []


def test_a_bar_is_for_terminals_alone(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.tune.progress.PATIENCE", 0.0)
    tensors = operands()
    weft.network(EQUATION, *tensors).tune(*tensors)
    assert capfd.readouterr() == ("", "")

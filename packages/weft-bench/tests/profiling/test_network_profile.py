"""Profiles of networks on this machine: calls, slices and steps, each beside what was predicted and its floor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import weft
from bench.sides import READY
from weft.errors import ArgumentError, DTypeError
from weft.machine import ceilings
from weft_bench.profiling import network_measuring
from weft_bench.profiling.network_profile import NetworkProfile

CHAIN = "ab,bc,cd,de->ae"
TENSORS = [torch.randn(24, 24) for _ in range(4)]
FROM_LEFT = [(0, 1), (0, 2), (0, 1)]


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that stand ready."""
    monkeypatch.setattr(ceilings, "_known", {})
    monkeypatch.setattr("weft_bench.profiling.api.ceilings", lambda device, **how: READY)


def test_a_network_is_timed_whole_and_step_by_step() -> None:
    net = weft.network(CHAIN, *TENSORS, optimize=FROM_LEFT)
    found = weft.profile(net, *TENSORS, budget=0.02)
    assert isinstance(found, NetworkProfile)
    assert 0 < found.seconds.low <= found.seconds.value <= found.seconds.high
    assert found.slice_seconds is None
    assert [step.equation for step in found.steps] == [step["equation"] for step in net.report()["steps"]]
    assert all(step.times == 1 and 0 < step.low <= step.seconds <= step.high for step in found.steps)
    assert [step.predicted for step in found.steps] == [step["seconds"] for step in net.report()["steps"]]
    assert found.predicted == pytest.approx(sum(step.predicted for step in found.steps))
    assert found.flops == 3 * 2 * 24**3
    assert found.bytes == 5 * 24 * 24 * 4
    assert found.floor["memory"] == pytest.approx(found.bytes / 1e10)
    assert found.floor["compute"] == pytest.approx(found.flops / 1e11)
    assert found.floor["seconds"] == pytest.approx(found.bytes / 1e10 + 1e-6)
    assert [step.floor for step in found.steps] == pytest.approx([3 * 24 * 24 * 4 / 1e10 + 1e-6] * 3)
    assert found.share == found.floor["seconds"] / found.seconds.value


def test_a_profile_prints_itself_with_the_longest_step_first() -> None:
    tensors = [torch.randn(4, 4), torch.randn(4, 96), torch.randn(96, 96), torch.randn(96, 96)]
    found = weft.profile(weft.network(CHAIN, *tensors, optimize=[(2, 3), (1, 2), (0, 1)]), *tensors, budget=0.02)
    lines = str(found).split("\n")
    assert lines[0].startswith("Network(4 operands, 3 steps, 1 slice, ")
    head = next(at for at, line in enumerate(lines) if line.startswith("steps"))
    assert found.ranked[0].equation == "cd,de->ce"  # 96 x 96 x 96 against 4 x 96 x 96
    assert "cd,de->ce" in lines[head + 1]
    totals = [step.total for step in found.ranked]
    assert totals == sorted(totals, reverse=True)
    assert "a call, " in lines[1]
    assert f"so          {found.sentence}" in lines
    assert found.sentence.startswith("step ")
    page = found._repr_html_()
    assert page.count("<tr>") >= 3
    assert "cd,de-&gt;ce" in page


def test_slices_are_timed_one_and_all() -> None:
    net = weft.network(CHAIN, *TENSORS, optimize=FROM_LEFT, slices="c")
    found = weft.profile(net, *TENSORS, budget=0.02)
    assert (found.slices, found.sliced) == (24, ["c"])
    each = found.slice_seconds
    assert each is not None
    assert 0 < each.value < found.seconds.value
    assert {step.times for step in found.steps} == {24}
    assert found.flops == net.report()["flops"]
    assert "24 slices over c" in str(found)
    assert found.steps_seconds == pytest.approx(24 * sum(step.seconds for step in found.steps))


def test_steps_of_no_slice_run_once() -> None:
    net = weft.network(CHAIN, *TENSORS, optimize=FROM_LEFT, slices="d")
    found = weft.profile(net, *TENSORS, budget=0.02)
    assert [step.times for step in found.steps] == [1, 24, 24]
    assert found.flops == net.report()["flops"] == 2 * 24**3 + 2 * 2 * 24**3


def test_a_long_call_is_reckoned_from_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_measuring, "LONGEST", 0.0)
    net = weft.network(CHAIN, *TENSORS, optimize=FROM_LEFT, slices="d")
    found = weft.profile(net, *TENSORS, budget=0.02)
    assert found.samples == ()
    assert "24 slices" in found.missing["time of a call"]
    assert found.slice_seconds is not None
    assert found.seconds.value == pytest.approx(found.steps[0].seconds + 24 * found.slice_seconds.value)
    assert "reckoned from" in str(found)


@pytest.mark.parametrize(
    "keywords", [{"strip_exponent": True}, {"reuse": True}, {"constants": [1]}, {"algebra": "max_plus"},
                 {"check_finite": True}, {"functions": {4: torch.relu}}]
)  # fmt: skip
def test_networks_of_every_kind(keywords: dict[str, object]) -> None:
    net = weft.network(CHAIN, *TENSORS, optimize=FROM_LEFT, **keywords)
    given = [tensor for at, tensor in enumerate(TENSORS) if at != 1 or "constants" not in keywords]
    before = net(*given)
    found = weft.profile(net, *given, budget=0.01)
    assert found.samples
    assert len(found.steps) == 3
    assert ("scales" in found.missing) == ("strip_exponent" in keywords)
    torch.testing.assert_close(net(*given), before)  # nothing that the network keeps was spoilt


def test_one_operand_is_timed_without_steps() -> None:
    found = weft.profile(weft.network("ab->ba", TENSORS[0]), TENSORS[0], budget=0.01)
    assert found.samples
    assert found.steps == []
    assert "no steps" in str(found)


def test_out_is_written_and_gradients_are_left_alone() -> None:
    params = [tensor.clone().requires_grad_() for tensor in TENSORS]
    out = torch.full((24, 24), torch.nan)
    found = weft.profile(weft.network(CHAIN, *TENSORS), *params, out=out, budget=0.01)
    torch.testing.assert_close(out, torch.linalg.multi_dot(TENSORS), rtol=1e-4, atol=1e-3)
    assert found.samples
    assert all(param.grad is None for param in params)


def test_it_is_data(tmp_path: Path) -> None:
    found = weft.profile(weft.network(CHAIN, *TENSORS, slices="d"), *TENSORS, budget=0.01)
    page = found.save(tmp_path / "page")
    saved = json.loads((page.parent / "profile.json").read_text())["network"]
    again = NetworkProfile.from_dict(saved)
    assert (again.steps, again.samples, again.floor) == (found.steps, found.samples, found.floor)
    assert str(again) == str(found)
    assert "<h2>Steps</h2>" in page.read_text()
    with pytest.raises(weft.WeftError, match="format 99"):
        NetworkProfile.from_dict({**saved, "format": 99})


def test_what_cannot_be_profiled_is_said() -> None:
    net = weft.network(CHAIN, *TENSORS)
    with pytest.raises(ArgumentError, match="a network's call takes no c: only its tensors, and out"):
        weft.profile(net, *TENSORS, c=TENSORS[0])  # type: ignore[call-overload]
    with pytest.raises(weft.ShapeError, match="takes 4 operands, 3 are given"):
        weft.profile(net, *TENSORS[:3])
    with pytest.raises(DTypeError, match="operand 3 is float64"):
        weft.profile(net, *TENSORS[:3], TENSORS[3].double())
    with pytest.raises(weft.UnsupportedError):
        weft.energy(net, *TENSORS)
    assert "counters" in weft.profile(net, *TENSORS, energy=True, budget=0.01).missing

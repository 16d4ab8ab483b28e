"""Predictions of the library tier on a GPU: the device's time and the host's are told apart, and what follows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import weft
from weft.api.describe import find_target
from weft.library import family, model, permutations, scheme
from weft.planner.planner import Choice
from weft.planner.promotion import looks_at
from weft.planner.schedule import Ranked
from weft.plans.explain.report import explain
from weft.spec import Contraction

H100 = find_target("h100")


@pytest.fixture(autouse=True)
def passes_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme, "identity", lambda: "a compiler")


def described(
    equation: str, extents: dict[str, int], dtype: torch.dtype = torch.float32, **options: Any
) -> Contraction:
    terms = equation.partition("->")[0].split(",")
    operands = [torch.empty([extents[label] for label in term], dtype=dtype, device="meta") for term in terms]
    return weft.plan(equation, *operands, backend="reference", **options).contraction


def chosen(description: Any, target: Any = H100) -> Choice:
    room: Any = family if isinstance(description, Contraction) else permutations
    found = room.choice(description, "triton", target)
    assert isinstance(found, Choice)
    return found


def test_a_tiny_product_is_the_hosts_time_and_the_device_s_is_apart() -> None:
    best = chosen(described("mk,kn->mn", {"m": 16, "k": 16, "n": 16})).best
    assert best.seconds < 5e-6 < best.host == best.waited
    assert family.predict(described("mk,kn->mn", {"m": 16, "k": 16, "n": 16}), best.schedule, H100) == best.seconds


def test_a_large_product_is_near_the_rate_of_the_data_sheet() -> None:
    best = chosen(described("mk,kn->mn", dict.fromkeys("mkn", 8192), torch.float16)).best
    assert 1 < best.seconds / (2 * 8192**3 / 989e12) < 1.5
    assert best.waited == best.seconds > best.host


@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,kn->nm", "abk,kn->bna"])
def test_memory_bounds_it_as_on_the_device(equation: str) -> None:
    """An H200 has the same units and 1.4 times the bandwidth."""
    labels = dict.fromkeys("ab", 256) | {"m": 4096, "k": 64, "n": 64}
    ours, other = (chosen(described(equation, labels), find_target(name)).best.seconds for name in ("h100", "h200"))
    assert 1 < ours / other < 1.45


def test_passes_are_counted() -> None:
    extents = {"m": 4096, "k": 1024, "n": 4096}
    bare = chosen(described("mk,nk->mn", extents)).best
    fused = chosen(described("mk,nk->mn", extents, epilogue=torch.nn.functional.gelu)).best
    assert fused.host - bare.host == pytest.approx(model.LAUNCHED)
    moved = 2 * 4 * 4096**2 / (3.35e12 * model.MEMORY)
    assert fused.seconds - bare.seconds == pytest.approx(moved + model.KERNEL, rel=0.01)


def test_a_permutation_that_turns_elements_takes_longer() -> None:
    x = torch.empty(4096, 2, 2048, device="meta", dtype=torch.float16)
    straight, turned = (
        chosen(weft.plan_permute(x, equation, backend="reference").permutation).best
        for equation in ("abc->bac", "abc->cba")
    )
    assert turned.seconds > 1.5 * straight.seconds
    assert turned.host == straight.host


def test_explain_and_report_say_both() -> None:
    contraction = described("mk,kn->mn", {"m": 16, "k": 16, "n": 16})
    plan = weft.plan("mk,kn->mn", torch.ones(16, 16), torch.ones(16, 16), backend="cpu", specialize="library")
    text = explain(plan._request, contraction, chosen(contraction))
    assert "us on the device, 20.0 us on the host" in text
    report = plan.report()
    assert report.host_seconds is None  # a CPU has one time
    assert "on the host" not in plan.explain()
    assert json.loads(json.dumps(report.to_dict()))["host_seconds"] is None


def test_when_a_better_kernel_is_looked_for_follows_what_a_user_waits_for() -> None:
    best = chosen(described("mk,kn->mn", {"m": 16, "k": 16, "n": 16})).best
    assert looks_at(best.waited) == looks_at(best.host)
    measured = Ranked(best.schedule, best.seconds, best.family, measured=3e-5, host=best.host)
    assert measured.waited == 3e-5

"""NVTX ranges: asked for, every launch is in one that names it; else there is none."""

from __future__ import annotations

import pytest
import torch

import weft


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: said.append(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    return said


@pytest.mark.parametrize("asked", ["1", "0"])
def test_launches_stand_in_ranges_where_asked(asked: str, ranges: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NVTX", asked)
    rows = 6 + int(asked)  # plans are kept by what they were made for
    a, b = torch.randn(rows, 5), torch.randn(5, 7)
    plan = weft.plan("mk,kn->mn", a, b, epilogue=torch.relu)
    for _ in range(2):
        assert torch.allclose(plan(a, b), torch.relu(a @ b), atol=1e-5)
    assert plan.bind(a, b)().shape == (rows, 7)
    moved = weft.plan_permute(a, "mk->km")
    assert torch.equal(moved(a), a.t())
    if asked == "0":
        assert ranges == []
        return
    assert ranges[:2] == [f"weft mk,kn->mn: {plan.schedule}", "end"]
    assert ranges.count("end") == len(ranges) // 2 >= 4
    assert any(name.startswith("weft") and str(moved.schedule) in name for name in ranges)

"""Tunings on a GPU have schedules among their candidates that planning does not compare; they are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import tuned as tuned_schedules
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Target
from weft.planner.tuned import TunedSchedule, recalled, remember
from weft.tune.candidates import FEW, pick_candidates, with_others

pytest.importorskip("triton")

H100 = Target("cuda", 0, "NVIDIA H100 80GB HBM3", 90, 132, 232448)
CASES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("mk,kn->mn", ((512, 304), (304, 704)), {}),
    ("aebf,dfce->abcd", ((20, 24, 16, 30), (18, 30, 22, 24)), {}),
    ("bij,bjk->bik", ((100, 8, 8), (100, 8, 8)), {"dtype": torch.float64}),
    ("mk,nk->mn", ((256, 256), (256, 256)), {"dtype": torch.float16, "epilogue": torch.relu}),
]


@pytest.fixture(autouse=True)
def a_device_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuned_schedules, "here", lambda target: True)
    monkeypatch.setattr(tuned_schedules, "environment", lambda target: {"name": target.name})


def planned(equation: str, shapes: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Choice:
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    return choose(weft.plan(equation, *tensors, backend="reference", **options).contraction, "triton", H100)


@pytest.mark.parametrize("case", CASES, ids=[equation for equation, *_ in CASES])
def test_what_wins_is_found_again_whatever_its_family(case: Any) -> None:
    equation, shapes, options = case
    choice = planned(equation, shapes, **options)
    every = with_others(choice, None)
    beside = [rank for rank in every.ranked if rank not in choice.ranked]
    assert "weft.library.family" in [rank.family.__name__ for rank in beside]
    for rank in beside:
        found = TunedSchedule(rank.schedule, 1e-5, choice.best.schedule, 2e-5, 9)
        assert remember(every, None, found)
        again = recalled(choice, None)
        assert again is not None, rank.schedule
        assert (again.best.schedule, again.best.measured) == (rank.schedule, 1e-5)
        assert again.best.family.__name__ == rank.family.__name__
        needed = rank.schedule.workspace_bytes
        if needed:
            limited = recalled(choice, needed - 1)
            assert limited is None or limited.best.schedule != rank.schedule


@pytest.mark.parametrize("case", CASES, ids=[equation for equation, *_ in CASES])
def test_candidates_of_a_short_tuning_are_of_every_family(case: Any) -> None:
    equation, shapes, options = case
    choice = with_others(planned(equation, shapes, **options), None)
    serving = choice.ranked[-1]
    candidates = pick_candidates(choice.ranked, FEW, [serving])
    assert [candidates[0].rank, candidates[1].rank] == [choice.ranked[0], serving]
    assert {each.rank.family.__name__ for each in candidates} == {rank.family.__name__ for rank in choice.ranked}
    assert len({each.rank for each in candidates}) == len(candidates) <= 16

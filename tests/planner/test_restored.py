"""A schedule comes back from what is stored of it: the same value, of the same code, with the same predicted time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.planner.keys import serialize_schedule
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.planner.tuned import restored

pytest.importorskip("triton")

H100 = Target("cuda", 0, "NVIDIA H100 80GB HBM3", 90, 132, 232448)
CPU = Target("cpu", 0, "CPU", 0, 2, 0)
STEPS = {"ttgt", "complex", "counting", "logsumexp", "pre_reduce"}  # of contractions: planned anew

CASES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("mk,kn->mn", ((512, 300), (300, 700)), {}),
    ("mk,kn->mn", ((512, 304), (304, 704)), {"dtype": torch.float16}),
    ("aebf,dfce->abcd", ((20, 24, 16, 30), (18, 30, 22, 24)), {}),
    ("bij,bjk->bik", ((100, 8, 8), (100, 8, 8)), {"dtype": torch.float64}),
    ("ik,kj->ij", ((200, 200), (200, 200)), {"algebra": "max_plus"}),
    ("ik,kj->ij", ((200, 200), (200, 200)), {"dtype": torch.complex64}),
    ("mk,nk->mn", ((4096, 4096), (4096, 4096)), {"dtype": torch.bfloat16, "epilogue": torch.relu}),
]


def described(equation: str, shapes: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    return weft.plan(equation, *tensors, backend="reference", **options).contraction


@pytest.mark.parametrize("target", [H100, CPU], ids=["h100", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=[f"{at} {equation}" for at, (equation, *_) in enumerate(CASES)])
def test_schedules_come_back_as_they_were(case: Any, target: Target) -> None:
    equation, shapes, options = case
    description = described(equation, shapes, **options)
    choice = choose(description, "cpu" if target.kind == "cpu" else "triton", target)
    ranks = [rank for rank in choice.ranked if rank.schedule.family not in STEPS][:40]
    assert ranks or choice.best.schedule.family in STEPS
    for rank in ranks:
        serialized = serialize_schedule(rank.schedule, description)
        found = restored(serialized, rank.family.__name__, description, choice.backend, target)
        assert found is not None, rank.schedule
        assert found.schedule == rank.schedule
        assert str(found.schedule) == str(rank.schedule)
        assert found.seconds > 0


def damaged(value: dict[str, Any]) -> list[Any]:
    return [
        None, [], "gett", {**value, "is": "Path"}, {**value, "m": 3}, {**value, "warps": "four"},
        {**value, "stranger": 1}, {key: each for key, each in value.items() if key != "warps"},
        {**value, "m": [[[3, "m", [1, 2, 3, 4]], 5]]},
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(9))
def test_what_is_not_understood_is_absent(at: int) -> None:
    description = described("aebf,dfce->abcd", ((20, 24, 16, 30), (18, 30, 22, 24)))
    ranked = choose(description, "triton", H100).ranked
    rank = next(rank for rank in ranked if rank.schedule.family == "gett")
    value = damaged(serialize_schedule(rank.schedule, description))[at]
    assert restored(value, rank.family.__name__, description, "triton", H100) is None


def test_a_family_that_is_not_there_is_absent() -> None:
    description = described("mk,kn->mn", ((5, 4), (4, 3)))
    assert restored({"is": "GettSchedule"}, "weft.gpu.nowhere.family", description, "triton", H100) is None

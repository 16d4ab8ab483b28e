"""How often schedules are ranked for a plan: once for each description, whichever tier serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner import planner
from weft.planner.schedule import Target
from weft.planner.target import standing_for

pytest.importorskip("triton")

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
HALF, COMPLEX = torch.float16, torch.complex64
CASES = (
    ("mk,kn->mn", (4096, 4096), (4096, 4096), HALF),
    ("mk,kn->mn", (2048, 2048), (2048, 2048), torch.float32),
    ("ebad,ce->abcd", (40, 20, 20, 40), (20, 40), torch.float32),
    ("abcdef,fbdg->gace", (12, 3, 14, 5, 12, 3), (3, 3, 5, 6), torch.float32),
    ("mki,kn->mn", (40, 50, 6), (50, 30), torch.float32),
    ("bk,bkn->bn", (4, 2_000_000), (4, 2_000_000, 12), torch.float32),  # the library's, though asked for specialised
    ("mk,kn->mn", (300, 200), (200, 100), COMPLEX),
)


@pytest.fixture
def rankings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counter[Any]]:
    """How often each description was ranked among the same families; nothing is compiled."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    weft.planner.validity.outdate()
    real, seen = planner.choose_among, Counter[Any]()

    def counted(found: Any, description: Any, *rest: Any) -> Any:
        seen[description, tuple(family.__name__ for family in found)] += 1
        return real(found, description, *rest)

    monkeypatch.setattr(planner, "choose_among", counted)
    monkeypatch.setattr(planner.Choice, "built", lambda choice: (choice, lambda *_: None))
    yield seen
    weft.planner.validity.outdate()


@pytest.mark.parametrize("specialize", ["now", "auto", "never"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
def test_a_plan_for_a_gpu_ranks_once(case: Any, specialize: str, rankings: Counter[Any]) -> None:
    equation, left, right, dtype = case
    with standing_for(H200):
        a, b = (torch.empty(shape, dtype=dtype) for shape in (left, right))
        plan = weft.plan(equation, a, b, backend="triton", specialize=specialize)
        assert plan.schedule is not None
    assert bool(rankings) is (specialize != "never")  # the library's choice compares nothing
    assert max(rankings.values(), default=1) == 1, [key[0].text for key, count in rankings.items() if count > 1]


def test_a_permutation_for_a_gpu_ranks_once(rankings: Counter[Any]) -> None:
    with standing_for(H200):
        plan = weft.plan_permute(torch.empty(300, 200, 50), "abc->cba", backend="triton", specialize="now")
        assert plan.schedule is not None
    assert rankings
    assert max(rankings.values()) == 1


@pytest.mark.parametrize("call", ["plan", "contract", "einsum", "plan_permute"])
def test_on_the_cpu_too(call: str, rankings: Counter[Any]) -> None:
    a, b = torch.ones(17, 33), torch.ones(33, 19)
    if call == "plan_permute":
        assert weft.plan_permute(a, "ab->ba", backend="cpu").schedule is not None
    else:
        getattr(weft, call)("ik,kj->ij", a, b, backend="cpu")
    assert rankings
    assert max(rankings.values()) == 1

"""Kernels of many plans compiled ahead: which ones, when, and that a machine does so once."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.networks import steps
from weft.networks.steps import StepOptions
from weft.networks.tree import TreeStep
from weft.planner import validity
from weft.planner.options import Options
from weft.planner.schedule import Target
from weft.planner.target import standing_for
from weft.plans import side_by_side
from weft.plans.select import ServiceRequest
from weft.plans.side_by_side import compile_side_by_side, compiled
from weft.tune import compile_pool

H200 = Target("cuda", name="NVIDIA H200", capability=90, processors=132, shared_memory=232448, index=0)


class Pool:
    """In the place of the compilers: remembers what it is asked for."""

    asked: list[tuple[Any, Any]]

    def __init__(self, target: Target, backend: str) -> None:
        assert (target, backend) == (H200, "triton")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, description: Any, rank: Any) -> Future[str | None]:
        Pool.asked.append((description, rank))
        done: Future[str | None] = Future()
        done.set_result(None)
        return done


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> type[Pool]:
    Pool.asked = []
    monkeypatch.setattr(compile_pool, "Compiler", Pool)
    return Pool


def wanted(equation: str, *shapes: tuple[int, ...], **keywords: Any) -> ServiceRequest:
    """What a plan for contiguous float32 operands on an H200 would be built of."""
    left, right, result = (tuple(map(ord, term)) for term in equation.replace("->", ",").split(","))
    extents = dict(zip((*left, *right), (*shapes[0], *shapes[1]), strict=True))
    d = torch.empty([extents[label] for label in result])
    asked = StepOptions(replace(Options(backend="triton", specialize="auto"), **keywords))
    with standing_for(H200):
        orders, tensors = {0: left, 1: right, 2: result}, (torch.empty(shapes[0]), torch.empty(shapes[1]), None, d)
        found = steps.wanted(TreeStep(2, 0, 1), orders, tensors, asked)
    assert found is not None
    return found


SMALL = (
    ("abc,cbd->da", (4, 3, 5), (5, 3, 6)),
    ("abc,cbd->da", (5, 3, 4), (4, 3, 7)),
    ("abc,dcb->ad", (48, 24, 5), (24, 5, 24)),
    ("abcdef,fbdg->gace", (12, 3, 14, 5, 12, 3), (3, 3, 5, 6)),
    ("abcd,dbe->eac", (2, 30, 4, 50), (50, 30, 60)),
    ("abc,bd->dca", (12, 3, 40), (3, 60)),
)


def test_each_kernel_is_compiled_once(pool: type[Pool]) -> None:
    several = [wanted(equation, *shapes) for equation, *shapes in SMALL]
    count = compiled(H200, [*several, *several])
    assert count == len(pool.asked) >= 3
    served = {(each.description, side_by_side.chosen(each)) for each in several}  # type: ignore[union-attr]
    for description, rank in pool.asked:
        assert (description, rank) in {(of, choice.best) for of, choice in served if choice is not None}


def test_few_kernels_and_calls_of_the_library_start_no_compilers(pool: type[Pool]) -> None:
    large = [wanted("ab,bc->ac", (2048 + 8 * at, 2048), (2048, 2048)) for at in range(4)]
    assert compiled(H200, large) == 0
    assert compiled(H200, [wanted(SMALL[0][0], *SMALL[0][1:])]) == 0
    assert not pool.asked


def test_what_is_asked_to_be_made_to_measure_is(pool: type[Pool]) -> None:
    compiled(H200, [wanted(equation, *shapes, specialize="now") for equation, *shapes in SMALL])
    assert pool.asked
    assert not [rank for _, rank in pool.asked if rank.schedule.family == "library"]


def test_a_machine_does_so_once_for_a_name(pool: type[Pool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(validity, "here", lambda target: True)
    monkeypatch.setattr(side_by_side, "environment", lambda target: {"name": target.name})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    several = [wanted(equation, *shapes) for equation, *shapes in SMALL]
    assert compile_side_by_side("one", H200, lambda: several) == len(pool.asked) > 0
    assert compile_side_by_side("one", H200, lambda: pytest.fail("is known")) == 0
    assert compile_side_by_side("another", H200, lambda: [None, *several]) > 0


def test_nothing_is_compiled_for_a_device_that_is_not_here(pool: type[Pool]) -> None:
    assert compile_side_by_side("one", H200, lambda: pytest.fail("is asked")) == 0
    assert compile_side_by_side("one", Target("cpu"), lambda: pytest.fail("is asked")) == 0
    assert not pool.asked


def test_what_the_library_serves_is_not_compiled() -> None:
    """Nor is a sum over nearly all modes, which no specialised family shares out."""
    never = wanted(SMALL[0][0], *SMALL[0][1:], specialize="never")
    assert side_by_side.chosen(never) is None
    assert side_by_side.chosen(wanted("bk,bkn->bn", (4, 2_000_000), (4, 2_000_000, 12), specialize="now")) is None
    assert side_by_side.chosen(wanted("bk,bkn->bn", (4, 200), (4, 200, 12), specialize="now")) is not None

"""The kernels at hand that are compiled side by side at their first use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.fake_driver import cubin
from weft import plan
from weft.api import warm
from weft.api.describe import TARGETS
from weft.gpu.common import cubins
from weft.gpu.common.launch import collected
from weft.gpu.generic import family
from weft.planner.at_hand import at_hand
from weft.planner.planner import Choice
from weft.plans import handful

TARGET = TARGETS["sm_90"]


class Compilers:
    """Stands for a pool of compilers: takes note of what is submitted, and is done when told."""

    def __init__(self, *_: Any) -> None:
        self.submitted: list[tuple[Any, Future[Any]]] = []
        self.closed = False
        made.append(self)

    def submit(self, description: Any, rank: Any) -> Future[Any]:
        self.submitted.append((rank, Future()))
        return self.submitted[-1][1]

    def close(self) -> None:
        self.closed = True


made: list[Compilers] = []


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Compilers]]:
    """As on a machine with the GPU, whose caches are empty."""
    made.clear()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("weft.tune.compile_pool.Compiler", Compilers)
    monkeypatch.setattr(handful, "here", lambda target: True)
    monkeypatch.setattr(handful.verdicts, "known", lambda family, backend, target: {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    handful._begun.clear()
    yield made
    handful._begun.clear()


def chosen(equation: str, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Choice:
    operands = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    choice = at_hand(plan(equation, *operands, backend="reference").contraction, "triton", TARGET)
    assert isinstance(choice, Choice)
    assert choice.best.family is family
    return choice


SMALL = ("ckl,hcal->lahk", (2, 2, 3), (2, 2, 5, 3))


def finished(pool: Compilers, at: int) -> None:
    pool.submitted[at][1].set_result(None)


def settled(choice: Choice, pool: list[Compilers]) -> None:
    """`settle`, whose own kernel and those of the self-test are compiled at once."""
    from threading import Thread

    caller = Thread(target=handful.settle, args=(choice,))
    caller.start()
    while caller.is_alive() and not (pool and len(pool[0].submitted) >= 10):
        caller.join(0.01)
    for at in range(4):
        finished(pool[0], at)
    caller.join(60)
    assert not caller.is_alive()


def test_a_first_call_waits_for_its_own_kernel_alone(compilers: list[Compilers]) -> None:
    choice = chosen(*SMALL)
    settled(choice, compilers)
    (pool,) = compilers
    assert pool.submitted[0][0].schedule == choice.best.schedule
    assert not pool.submitted[-1][1].done()


def test_all_kernels_of_a_type_are_asked_for_once(compilers: list[Compilers]) -> None:
    settled(chosen(*SMALL), compilers)
    (pool,) = compilers
    for at in range(4, len(pool.submitted)):
        finished(pool, at)
    assert pool.closed
    assert len(pool.submitted) >= 10
    handful.settle(chosen("afeg,le->lgfa", (2, 16, 2, 16), (16, 2)))
    assert len(compilers) == 1


def test_what_is_stored_is_not_compiled_again_and_another_type_is(compilers: list[Compilers]) -> None:
    choice = chosen(*SMALL)
    *_, (description, rank) = handful._others(choice)
    with collected() as made:
        rank.build(description, TARGET)
    for launch in made:
        key = cubins.key_of(launch)
        assert key is not None
        cubins.keep(key, 90, cubin("kept", (8,)))
    handful.settle(choice)
    assert not compilers
    settled(chosen(*SMALL, dtype=torch.float64), compilers)
    assert len(compilers) == 1


@pytest.mark.parametrize("types", [(torch.float16, torch.int8), (torch.int8, torch.int8)])
def test_operands_of_any_types_have_a_handful(types: tuple[torch.dtype, torch.dtype]) -> None:
    a, b = (torch.empty(4, 4, dtype=dtype, device="meta") for dtype in types)
    like = plan("mk,nk->mn", a, b, promote=True, out_dtype=torch.float32, backend="reference").contraction
    found = list(handful.shapes_of(like))
    assert len(found) == len(handful.SHAPES)
    assert {(each.a.dtype, each.b.dtype) for each in found} == {types}


def test_nothing_is_compiled_where_the_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr("weft.tune.compile_pool.Compiler", Compilers)
    handful._begun.clear()
    handful.settle(chosen(*SMALL))
    assert not made
    handful._begun.clear()


def test_most_small_contractions_take_a_kernel_of_the_handful() -> None:
    """Nine of ten of the ones it was chosen by; here the first hundred of them."""
    like = chosen(*SMALL).description
    known = set()
    for description in handful.shapes_of(like):  # type: ignore[arg-type]
        best = at_hand(description, "triton", TARGET)
        assert isinstance(best, Choice)
        known.update(family.structures(description, best.best.schedule, TARGET))
    found = []
    for equation, extents in list(warm.sampled())[:100]:
        description = warm._description(equation, *warm._operands(equation, extents, torch.float32))
        best = at_hand(description, "triton", TARGET)
        if isinstance(best, Choice) and best.best.family is family:
            found.append(known.issuperset(family.structures(description, best.best.schedule, TARGET)))
    assert sum(found) >= 0.85 * len(found)

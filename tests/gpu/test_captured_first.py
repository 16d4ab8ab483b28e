"""Calls whose first run is captured in a CUDA graph: what comes after them is right, before and after a replay."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.base import kept
from weft.planner.planner import Choice
from weft.planner.target import target_of
from weft.planner.validity import outdate
from weft.selftest.cases import TRIALS, InPlaceCase, Trial
from weft.selftest.trials import in_place, problem, schedules

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """As in a new process that finds its verdicts on disk."""
    kept.forget()
    outdate()
    yield
    kept.forget()


def captured(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    gc.collect()  # a graph of an earlier test, freed within a capture, would end that
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph):
            work()
    except BaseException:
        torch.cuda.set_stream(stream)
        raise
    return graph


@pytest.mark.parametrize("within", [False, True], ids=["built before", "built within"])
@pytest.mark.parametrize("trial", [pytest.param(each, id=f"{each.family}-{each.name}") for each in TRIALS["triton"]])
def test_every_family(trial: Trial, within: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    made = problem(trial.case, device)
    launches: list[Any] = []
    if isinstance(trial.case, InPlaceCase):
        launches.append(in_place(import_module(trial.family), made.description))
    else:
        choice = schedules(trial, made.description, "triton", target_of("triton", device))
        if not isinstance(choice, Choice):
            pytest.skip(choice)
        if not within:
            launches.append(choice.built()[1])

    def first() -> None:
        if not launches:
            launches.append(choice.built()[1])
        made.launched(launches[0])

    try:
        graph = captured(first)
    except weft.UnsupportedError as error:
        assert isinstance(trial.case, InPlaceCase)
        pytest.skip(str(error))
    made.run(launches[0])
    assert made.fault() is None, "eager, before the replay"
    made.run(lambda *arguments: graph.replay())
    assert made.fault() is None, "replayed"
    made.run(launches[0])
    assert made.fault() is None, "eager, after the replay"


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape, device="cuda").to(dtype)


CALLS: dict[str, Callable[..., Any]] = {
    "contract": lambda a, b: weft.contract("mk,kn->mn", a, b),
    "contract, made to measure": lambda a, b: weft.contract("mk,kn->mn", a, b, specialize="now", epilogue=torch.relu),
    "sums first": lambda a, b: weft.plan("mk,kn->n", a, b)(a, b),
    "one operand": lambda a, b: torch.cat([weft.einsum("mk->m", a), weft.einsum("nk->n", b)]),
    "epilogue and C": lambda a, b: weft.contract("mk,kn->nm", a, b, c=a[:, :21].T, beta=2.0, epilogue=torch.relu),
    "max_plus": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="max_plus"),
    "log": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="log"),
    "complex factors": lambda a, b: torch.view_as_real(
        weft.contract("mk,kn->mn", a + 0j, b, c=a[:, :21] * 1j, alpha=1 + 2j, beta=2 - 1j)
    ),
    "permute": lambda a, b: weft.permute(a, "mk->km"),
    "grouped": lambda a, b: torch.cat([x.flatten() for x in weft.grouped("mk,kn->mn", [(a, b), (a[:7], b), (a, b)])]),
    "network": lambda a, b: weft.einsum("mk,kn,ml->ln", a, b, a),
    "network with a constant": lambda a, b: weft.network("mk,kn,nl->ml", a, b, b.T.contiguous(), constants=(1, 2))(a),
    "blocks": lambda a, b: weft.blocks.contract(
        "ab,bc->ac", weft.blocks.BlockTensor({(0, 0): a, (1, 0): a}), weft.blocks.BlockTensor({(0, 0): b})
    ).buffer,
    "chain": lambda a, b: weft.chain("pq,bqc,cr->bpr", a, b[None], b.T.contiguous()),
    "gradient": lambda a, b: torch.autograd.grad(
        weft.contract("mk,kn->mn", a.detach().requires_grad_(), b, epilogue=torch.relu).sum(), a
    )[0] if a.requires_grad else weft.contract("mk,kn->mn", a, b),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_call(name: str) -> None:
    call, found = CALLS[name], []
    a, b = values(33, 40), values(40, 21)
    graph = captured(lambda: found.append(call(a, b)))
    exact = torch.as_tensor(call(a.cpu(), b.cpu()))
    assert torch.allclose(call(a, b).cpu(), exact, atol=1e-3), "eager, before the replay"
    graph.replay()
    assert torch.allclose(found[0].cpu(), exact, atol=1e-3), "replayed"
    a.copy_(values(33, 40))
    exact = torch.as_tensor(call(a.cpu(), b.cpu()))
    graph.replay()
    assert torch.allclose(found[0].cpu(), exact, atol=1e-3), "replayed on other values"
    assert torch.allclose(call(a, b).cpu(), exact, atol=1e-3), "eager, after the replay"


def test_a_network_made_within() -> None:
    a, b = values(9, 8), values(8, 9)
    made: list[Any] = []

    def first() -> None:
        made.append(weft.network("mk,kn,nl->ml", a, b, a, constants=(1, 2), reuse=False))
        made.append(made[0](a))

    graph = captured(first)
    assert torch.equal(made[0](a), a @ b @ a)
    graph.replay()
    assert torch.equal(made[1], a @ b @ a)


def test_a_group_is_moved_and_a_graph_of_it_is_not() -> None:
    def pairs() -> list[Any]:
        return [(values(n, n + 1), values(n + 1, 3)) for n in (4, 9, 30)]

    first, second = pairs(), pairs()
    plan = weft.plan_grouped("mk,kn->mn", first)
    found: list[Any] = []
    graph = captured(lambda: found.extend(plan()))
    for results, (a, b) in zip(plan(second), second, strict=True):
        assert torch.equal(results, a @ b)
    graph.replay()
    for results, (a, b) in zip(found, first, strict=True):
        assert torch.equal(results, a @ b)
    graph = captured(lambda: plan(first))
    graph.replay()
    for results, (a, b) in zip(plan(second), second, strict=True):
        assert torch.equal(results, a @ b)


NEW_PROCESS = """
import torch, weft
a, b = (torch.randint(-3, 4, shape, device="cuda").float() for shape in ((40, 50, 6), (50, 30)))
out = torch.empty(40, 30, device="cuda")
plan = weft.plan("mki,kn->mn", a, b, out=out)
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    plan(a, b, out=out)
exact = a.sum(2) @ b
assert torch.equal(plan(a, b), exact), "eager, before the replay"
graph.replay()
assert torch.equal(out, exact), "replayed"
"""


def test_a_process_that_finds_its_verdicts_on_disk(tmp_path: Path) -> None:
    environment = {**os.environ, "WEFT_SELFTEST": "1", "WEFT_CACHE_DIR": str(tmp_path)}
    for _ in range(2):  # the first tests itself
        done = subprocess.run(
            [sys.executable, "-c", NEW_PROCESS], capture_output=True, text=True, timeout=300, env=environment
        )
        assert done.returncode == 0, done.stderr

"""Tuning on a device: real kernels compiled ahead, checked, timed, stored, used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import weft
from weft.cli.tuning import TuningRun, go
from weft.errors import UnsupportedError
from weft.planner import validity
from weft.planner.planner import choose
from weft.planner.target import target_of
from weft.tune.candidates import Effort
from weft.tune.compile_pool import Compiler
from weft.tune.tuner import tune
from weft_bench import cases
from weft_bench.tuning.jobs import of_suite

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))
    validity.outdate()
    return torch.device("cuda", torch.cuda.current_device())


def operands(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes]


def _kernels(cache: Path) -> set[str]:
    """What Triton has compiled for the device; the rest of its cache is for the host."""
    return {file.parent.name for file in cache.glob("*/*.cubin")}


def test_what_the_workers_compile_is_found_by_this_process(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Loading takes milliseconds, compiling hundreds of them: kernels lie in weft's store, or in Triton's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    a, b = operands((64, 48, 80), (80, 72))
    contraction = weft.plan("abk,kc->cab", a, b, backend="reference", epilogue=torch.tanh).contraction
    choice = choose(contraction, "triton", target_of("triton", device))
    ranks = [rank for rank in choice.ranked if rank.schedule.family == "gett"][:4]
    with Compiler(choice.target, "triton") as compiler:
        assert [compiler.submit(contraction, each).result(timeout=300) for each in ranks] == [None] * len(ranks)
    there = _kernels(tmp_path / "triton")
    assert len(there) >= len(ranks)
    from triton import knobs

    found: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda cache_hit, **_: found.append(cache_hit))
    for rank in ranks:
        rank.build(contraction, choice.target)
    assert all(found)
    assert _kernels(tmp_path / "triton") == there


def test_measuring_is_right_quick_and_stored() -> None:
    a, b = operands((24, 16, 24, 48, 24), (48, 64))
    began = time.perf_counter()
    plan = weft.plan("ecbfa,fd->abcde", a, b, b_fn=torch.nn.functional.elu, out_dtype=torch.float32, tune="measure")
    assert time.perf_counter() - began < 90
    assert plan._first().choice.origin.source == "tuned"
    expected = torch.einsum("ecbfa,fd->abcde", a.float(), torch.nn.functional.elu(b).float())
    assert torch.allclose(plan(a, b), expected, atol=0.05, rtol=1e-2)
    validity.outdate()
    stored = weft.plan("ecbfa,fd->abcde", a, b, b_fn=torch.nn.functional.elu, out_dtype=torch.float32)
    assert stored._first().choice.origin.source == "store"
    assert stored.schedule == plan.schedule


@pytest.mark.parametrize("number", [1, 4, 13, 20, 31])
def test_every_candidate_of_a_case_is_right(number: int, device: torch.device) -> None:
    """Everything that the model offers first, and a sample of the rest, computes the right thing."""
    jobs, _ = of_suite("tccg", ("fp16_fp32",), (str(number),), device=device)
    run = TuningRun.on(device, Effort(leaders=6, samples=6), "tccg")
    go(run, jobs)
    (case,) = run.cases
    assert "failed" not in case, case
    assert [each for each in case["trials"] if each["verdict"] == "wrong"] == []
    assert case["winner"]["seconds"] <= case["model"]["seconds"]


@pytest.mark.parametrize("name", ["double", "tf32", "batch"])
def test_other_kinds_of_contractions(name: str, device: torch.device) -> None:
    chosen = next(case for case in cases.beyond() if name in case.tags and case.work <= 1 << 34)
    jobs, _ = of_suite("beyond", (), (chosen.name,), device=device)
    run = TuningRun.on(device, Effort(leaders=4, samples=4), "beyond")
    go(run, jobs)
    assert "failed" not in run.cases[0], run.cases[0]
    assert [each for each in run.cases[0]["trials"] if each["verdict"] == "wrong"] == []


def test_permutations() -> None:
    (x,) = operands((96, 80, 112), dtype=torch.float32)
    plan = weft.plan_permute(x, "abc->cba", tune="measure")
    assert torch.equal(plan(x), x.permute(2, 1, 0))


def test_nothing_is_tuned_while_a_graph_is_captured() -> None:
    """Guards against tuning during graph capture: triton#10596, #10712."""
    a, b = operands((64, 64), (64, 64))
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(UnsupportedError, match="captured"), torch.cuda.graph(graph, stream=stream):
        weft.plan("ik,jk->ij", a, b, tune="measure", epilogue=torch.relu)
    torch.cuda.synchronize()


def test_a_call_that_captures_uses_the_winner() -> None:
    a, b = operands((128, 96), (80, 96))
    tuned = weft.plan("ik,jk->ij", a, b, epilogue=torch.relu, tune="measure")
    d = torch.empty(128, 80, dtype=torch.float16, device="cuda")
    plan = weft.plan("ik,jk->ij", a, b, epilogue=torch.relu, out=d)
    assert plan.schedule == tuned.schedule
    graph = torch.cuda.CUDAGraph()
    plan(a, b, out=d)
    d.zero_()
    with torch.cuda.graph(graph):
        plan(a, b, out=d)
    graph.replay()
    assert torch.allclose(d.float(), torch.relu(a.float() @ b.float().T), atol=0.1, rtol=1e-2)


def test_a_limit_on_workspace_holds_for_the_winner(device: torch.device) -> None:
    a, b = operands((64, 8192), (64, 8192))
    contraction = weft.plan("ik,jk->ij", a, b, epilogue=torch.relu, backend="reference").contraction
    choice = choose(contraction, "triton", target_of("triton", device), 0)
    outcome = tune(choice, 0, Effort(leaders=3, samples=3))
    assert outcome.fastest.schedule.workspace_bytes == 0
    assert weft.plan("ik,jk->ij", a, b, epilogue=torch.relu, workspace_limit=0).workspace_bytes == 0

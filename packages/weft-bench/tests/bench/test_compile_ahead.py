"""What is compiled ahead is what weft will launch: the same description, the schedule of the same choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
import weft_bench.cases
from weft.api.describe import TARGETS
from weft.planner.planner import choose
from weft_bench import compile_ahead
from weft_bench.cases import FUNCTIONS, from_letters
from weft_bench.compile_ahead import compiling_ahead, tasks
from weft_bench.entry import Entry
from weft_bench.problems import ContractionProblem, PermutationProblem
from weft_bench.suites import entries

CPU = torch.device("cpu")
H200 = TARGETS["sm_90"]


def _kernels(cache: Path) -> set[str]:
    """What Triton has compiled for the device; the rest of its cache is for the host."""
    return {file.parent.name for file in cache.glob("*/*.cubin")}


def real(entry: Entry) -> Any:
    """The description that a plan on real tensors is made of."""
    case = entry.case
    if not isinstance(case, weft_bench.cases.Case):
        moved = PermutationProblem(case).inputs(CPU)
        function = FUNCTIONS[case.fn] if case.fn else None
        return weft.plan_permute(moved.x, case.equation, fn=function, out=moved.d, out_dtype=case.out_dtype).permutation
    given = ContractionProblem(case).inputs(CPU)
    options = case.options()
    del options["alpha"], options["beta"]
    return weft.plan(case.equation, given.a, given.b, c=given.c, out=given.d, **options).contraction


@pytest.mark.parametrize(("suite", "types"), [("permute", ["fp32"]), ("beyond", []), ("tccg", ["fp16_fp32"])])
def test_descriptions_are_those_of_the_plans(suite: str, types: list[str]) -> None:
    chosen = entries(suite, types, work=4096)[:60]
    found = {(entry.group, entry.case.name): list(tasks([entry], H200, "model")) for entry in chosen}
    assert sum(map(len, found.values())) > 0.7 * len(chosen)
    for entry in chosen:
        for description, rank in found[entry.group, entry.case.name]:
            assert description == real(entry), entry
            assert rank == choose(description, "triton", H200).best


def test_what_is_not_planned_for_triton_is_left_out() -> None:
    added = from_letters("added", "mk,kn->mn", m=64, k=64, n=64, add=True)
    mixed = from_letters("max", "mk,kn->mn", m=64, k=64, n=64, algebra="gf2", dtypes=(torch.complex64,) * 3)
    found = tasks([Entry(case, "", case.name) for case in (added, mixed)], H200, "model")
    assert list(found) == []
    assert list(tasks(entries("transpose"), H200, "model")) == []


def test_on_a_cpu_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "Compiler", lambda *arguments: pytest.fail("a compiler was started"))
    with compiling_ahead(entries("permute", ["fp32"]), CPU):
        pass


def test_all_is_handed_over_before_the_first_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Compiler:
        def __init__(self, target: object, backend: str) -> None:
            assert (target, backend) == (H200, "triton")

        def __enter__(self) -> Compiler:
            return self

        def __exit__(self, *error: object) -> None:
            events.append("end")

        def submit(self, description: object, rank: Any) -> None:
            events.append(rank.schedule.family)

    monkeypatch.setattr(compile_ahead, "Compiler", Compiler)
    monkeypatch.setattr(compile_ahead, "target_of", lambda backend, device: H200)
    chosen = entries("permute", ["fp64"], ["permute-2*"])
    with compiling_ahead(chosen, torch.device("cuda"), "model"):
        events.append("measured")
    assert events == ["permute"] * len(chosen) + ["measured", "end"]


@pytest.mark.gpu
def test_a_suite_finds_its_kernels_in_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    chosen = entries("permute", ["fp16"], ["permute-5*"])
    device = torch.device("cuda")
    with compiling_ahead(chosen, device, "model") as compiled:
        assert [future.result(timeout=120) for future in compiled] == [None] * len(chosen)
    there = _kernels(tmp_path)
    assert there
    for entry in chosen:
        moved = PermutationProblem(entry.case).inputs(device)
        planned = weft.plan_permute(moved.x, entry.case.equation, out=moved.d)
        assert torch.equal(planned(moved.x, out=moved.d), moved.x.permute(entry.case.dims))
    assert _kernels(tmp_path) == there

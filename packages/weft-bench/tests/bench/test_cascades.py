"""The suite `cascade`: every task at a size of milliseconds, computed by everybody who can, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft_bench.cascades import CascadeProblem, by_rows, joined, parted
from weft_bench.cases.cascades import CascadeCase, cascades
from weft_bench.peers.cascades import BlocksCascade, TorchAttention, TorchCascade, WeftCascade
from weft_bench.records import PEAK, CaseRecord, Result, Run
from weft_bench.report.figures import figures, in_words
from weft_bench.suites import entries

CPU = torch.device("cpu")
CASES = {case.name: case for case in (replace(case.shrunk(1 << 16), name=case.name) for case in cascades())}
TRIED = (
    "attention-4096-full-both", "attention-4096-causal", "window-8192-both", "decode-8192", "gauss-3-ieee",
    "sinkhorn-64-ieee", "loss-128000",
)  # fmt: skip


@pytest.mark.parametrize("name", TRIED)
def test_everybody_is_right_on_the_sets_of_the_check_and_of_the_timing(name: str) -> None:
    case = CASES[name]
    problem = CascadeProblem(case)
    timed, check = problem.inputs(CPU, 0), problem.check(problem.inputs(CPU, 1))
    able = set()
    for contender in (WeftCascade(), TorchCascade(), TorchAttention(), BlocksCascade()):
        prepared = contender.prepare(case, timed) if contender.name != "blocks" else "it compiles"
        if not isinstance(prepared, str):
            able.add(contender.name)
            assert check.error(prepared.ways[0].run, prepared.stored) <= 1
    assert able == {"weft", "torch"} | ({"sdpa"} if case.task in ("attention", "causal") else set())
    assert problem.memory > 0


@pytest.mark.parametrize("name", ["attention-4096-full-both", "sinkhorn-3-ieee"])
def test_a_wrong_result_is_seen(name: str) -> None:
    case = CASES[name]
    problem = CascadeProblem(case)
    check = problem.check(problem.inputs(CPU, 1))
    prepared = WeftCascade().prepare(case, problem.inputs(CPU, 0))
    assert not isinstance(prepared, str)

    def off(*tensors: torch.Tensor) -> object:
        found = prepared.ways[0].run(*tensors)
        last = found[-1] if isinstance(found, tuple) else found
        last[-1] *= 1.1
        return found

    with pytest.raises(AssertionError, match=f"of {name}"):
        check.error(off)


@pytest.mark.parametrize("name", ["attention-4096-causal", "gauss-3-ieee", "loss-128000"])
def test_blocks_of_rows_are_the_whole(name: str) -> None:
    case = CASES[name]
    parts = parted(case, CascadeProblem(case).inputs(CPU))
    plain = TorchCascade().forwards(case, parts)[""]
    from weft_bench.cascades import TASKS

    blocks = by_rows(case, parts, TASKS[case.task].plain, case.elements // 3)
    assert len(blocks) >= 3
    torch.testing.assert_close(joined(case, blocks), plain(parts), rtol=2e-3, atol=2e-3)


def test_cases_shrink_to_the_work_that_a_processor_has() -> None:
    for entry in entries("cascade", work=1 << 20):
        assert entry.scaled
        assert entry.case.work <= 1.1 * 2**20
        assert min(min(shape) for shape in entry.case.shapes) >= 1
    decoding = next(entry.case for entry in entries("cascade", only=["decode-65536"], work=1 << 24))
    assert dict(decoding.extents)["q"] == 8
    assert isinstance(decoding, CascadeCase)
    with pytest.raises(Exception, match="number types of their own"):
        entries("cascade", ["fp32"])


def test_figures_are_of_each_case_and_memory_stands_beside_time() -> None:
    results = {
        "weft": Result(samples=(2e-3,), about={PEAK: 10}),
        "sdpa": Result(samples=(1e-3,), about={PEAK: 40}),
        "flex": Result(cannot="it has no way for it"),
    }
    case = CaseRecord(
        "decode-8192", "decode", "decode-8192", "id,jd->ij", [], ("float16",), "", {}, (), False, {}, {}, {}, results
    )
    found = figures(Run("cascade", "a GPU", ["weft", "sdpa", "flex"], {}, [case], ended="finished"))
    assert {name: value.value for name, value in found.items()} == {
        "cascade.decode-8192.vs_sdpa": 0.5, "cascade.decode-8192.bytes_over_sdpa": 0.25
    }  # fmt: skip
    assert all(in_words(name) for name in found)

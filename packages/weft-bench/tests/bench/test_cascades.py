"""The suites `cascade` and `small`: every task at a size of milliseconds, computed by everybody who can."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft_bench.cascades import CascadeProblem, by_rows, joined, parted
from weft_bench.cases.cascades import CascadeCase, cascades
from weft_bench.cases.small import SmallCase, small
from weft_bench.peers.cascades import BlocksCascade, TorchAttention, TorchCascade, WeftCascade
from weft_bench.peers.small import MadeOperator, TorchBatched, TorchLoop, WeftSmall
from weft_bench.records import PEAK, CaseRecord, Result, Run
from weft_bench.report.figures import figures, in_words
from weft_bench.small import SmallCheck, SmallProblem
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


SMALL = (
    SmallCase("equal", "grouped", "mk,kn->mn", ((3, 4, 5),) * 6),
    SmallCase("mixed", "grouped", "mk,kn->mn", ((3, 4, 5), (1, 1, 1), (7, 2, 9))),
    SmallCase("two-site", "two-site", "pq,bqc,cr->bpr", ((2, 3, 4, 5, 6),)),
    SmallCase("operators", "operator-sum", "tLl,tSs,tRr,lsr->LSR", ((5, 3, 2, 4),)),
    SmallCase("blocks", "blocks", "mk,kn->mn", ((2,), (5,), (1,), (3,))),
    SmallCase("sweep", "dmrg", "sweep", ((6, 8),)),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_everybody_is_right_in_small_tasks(case: SmallCase) -> None:
    problem = SmallProblem(case)
    timed, checked = problem.inputs(CPU, 0), problem.inputs(CPU, 1)
    check = problem.check(checked)
    able = 0
    for contender in (WeftSmall(), TorchLoop(), TorchBatched(), MadeOperator()):
        prepared = contender.prepare(case, timed)
        if isinstance(prepared, str):
            assert contender.name in ("bmm", "operator")
            continue
        able += 1
        assert check.error(prepared.ways[0].run) <= 1
    assert able >= 2
    assert problem.memory > 0


def test_a_wrong_result_of_a_small_task_is_seen() -> None:
    case = SMALL[1]
    tensors = SmallProblem(case).inputs(CPU, 1)
    with pytest.raises(AssertionError, match="further from the one"):
        SmallCheck(case, tensors).error(lambda a, b, c, x, d: torch.zeros_like(d))


def test_the_suites_have_the_tasks() -> None:
    tasks = {"grouped", "two-site", "operator-sum", "blocks"}
    assert {entry.group for entry in entries("small")} == tasks
    assert {entry.group for entry in entries("small-call")} == tasks | {"dmrg"}
    assert len({case.name for case in small(host=True)}) == len(small(host=True))

"""The suite `small`: every task at a size of seconds, computed by everybody who can."""

from __future__ import annotations

import pytest
import torch

from weft_bench.cases.small import SmallCase, small
from weft_bench.peers.small import MadeOperator, TorchBatched, TorchLoop, WeftSmall
from weft_bench.small import SmallCheck, SmallProblem
from weft_bench.suites import entries

CASES = (
    SmallCase("equal", "grouped", "mk,kn->mn", ((3, 4, 5),) * 6),
    SmallCase("mixed", "grouped", "mk,kn->mn", ((3, 4, 5), (1, 1, 1), (7, 2, 9))),
    SmallCase("two-site", "two-site", "pq,bqc,cr->bpr", ((2, 3, 4, 5, 6),)),
    SmallCase("operators", "operator-sum", "tLl,tSs,tRr,lsr->LSR", ((5, 3, 2, 4),)),
    SmallCase("blocks", "blocks", "mk,kn->mn", ((2,), (5,), (1,), (3,))),
    SmallCase("sweep", "dmrg", "sweep", ((6, 8),)),
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_everybody_is_right_on_the_sets_of_the_check_and_of_the_timing(case: SmallCase) -> None:
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


def test_a_wrong_result_is_seen() -> None:
    case = CASES[1]
    tensors = SmallProblem(case).inputs(CPU, 1)
    with pytest.raises(AssertionError, match="further from the one"):
        SmallCheck(case, tensors).error(lambda a, b, c, x, d: torch.zeros_like(d))


def test_the_suites_have_the_tasks() -> None:
    tasks = {"grouped", "two-site", "operator-sum", "blocks"}
    assert {entry.group for entry in entries("small")} == tasks
    assert {entry.group for entry in entries("small-call")} == tasks | {"dmrg"}
    assert len({case.name for case in small(host=True)}) == len(small(host=True))

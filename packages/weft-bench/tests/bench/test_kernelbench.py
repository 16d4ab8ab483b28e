"""The suite `kernelbench`: every task is right at a size of milliseconds, in a few lines, and counted as published."""

from __future__ import annotations

import inspect

import pytest
import torch

from weft_bench.cases.kernelbench import kernelbench
from weft_bench.cases.programs import ProgramCase
from weft_bench.checking import WrongResult
from weft_bench.peers.programs import TorchProgram, WeftProgram
from weft_bench.programs import ProgramProblem
from weft_bench.records import CaseRecord, Result, Run
from weft_bench.report.figures import figures, in_words
from weft_bench.suites import entries

CPU = torch.device("cpu")
CASES = {case.name: case.shrunk(1 << 18) for case in kernelbench()}
HELPERS = 2  # lines of `_layer` or `_rows`, which some call


def test_there_are_eighteen_tasks_and_thirty_seven() -> None:
    groups = [case.group for case in kernelbench()]
    assert (groups.count("level 1"), groups.count("level 2"), len(CASES)) == (18, 37, 55)
    numbers = [int(name.partition("-")[0]) for name, case in CASES.items() if case.group == "level 1"]
    assert numbers == list(range(1, 19))


@pytest.mark.parametrize("name", CASES)
def test_every_task_is_right(name: str) -> None:
    problem = ProgramProblem(CASES[name])
    assert problem.check(problem.inputs(CPU, 1)).error(CASES[name].weft) <= 1
    assert problem.memory > 0


@pytest.mark.parametrize("name", ["14-upper", "12-multiply-leaky-relu", "88-group-norm-swish-multiply-swish"])
def test_everybody_is_prepared_on_other_tensors_than_those_of_the_check(name: str) -> None:
    case = CASES[name]
    problem = ProgramProblem(case)
    timed, check = problem.inputs(CPU, 0), problem.check(problem.inputs(CPU, 1))
    for contender, labels in ((WeftProgram(), ["as called", "now"]), (TorchProgram(), [""])):
        with contender.settings(case):
            prepared = contender.prepare(case, timed)
        assert not isinstance(prepared, str)
        assert [way.label for way in prepared.ways] == labels
        assert all(check.error(way.run) <= 1 for way in prepared.ways)


def test_a_wrong_result_is_seen() -> None:
    case = CASES["56-sigmoid-sum"]
    problem = ProgramProblem(case)
    check = problem.check(problem.inputs(CPU, 1))
    with pytest.raises(WrongResult, match="of 56-sigmoid-sum"):
        check.error(lambda *tensors: 1.001 * case.weft(*tensors))
    with pytest.raises(WrongResult, match="the shape is"):
        check.error(lambda *tensors: case.weft(*tensors)[:, 0])


def test_each_has_at_most_six_lines() -> None:
    for name, case in CASES.items():
        lines = [line for line in inspect.getsource(case.weft).splitlines() if line.strip()]
        assert len(lines) - 1 + HELPERS <= 6 or "lambda" in lines[0], name


def test_a_task_shrinks_to_the_work_that_a_processor_has() -> None:
    for entry in entries("kernelbench", work=1 << 20):
        assert entry.case.work <= 1 << 20
        assert entry.scaled == (entry.case.extents != next(
            case.extents for case in kernelbench() if case.name == entry.case.name))  # fmt: skip


def test_shares_are_of_all_tasks() -> None:
    """One is wrong, one slower, one faster, and one more than twice as fast."""

    def case(name: str, mine: float | None, group: str = "level 2") -> CaseRecord:
        results = {"torch": Result((10.0, 10.0, 10.0))}
        results["weft"] = Result((mine,) * 3) if mine else Result(wrong="of it")
        return CaseRecord(name, group, name, "mk,nk->mn", [], (), "", {}, (), False, {}, {}, {}, results)

    cases = [case("a", None), case("b", 12.0), case("c", 8.0), case("d", 2.0), case("e", 4.0, "level 1")]
    found = figures(Run("kernelbench", "a GPU", ["weft", "torch"], {}, cases, ended="finished"))
    level = {name: found[f"kernelbench.level_2.{name}_vs_torch"].value for name in ("fast_0", "fast_1", "fast_2")}
    assert level == {"fast_0": 0.75, "fast_1": 0.5, "fast_2": 0.25}
    assert found["kernelbench.fast_2_vs_torch"].value == 0.4
    assert found["kernelbench.level_2.gm1_torch"].value == pytest.approx((10 / 12 * 10 / 8 * 5) ** (1 / 3))
    said = in_words("kernelbench.fast_2_vs_torch")
    assert said == "share of tasks that are right and more than 2 times as fast as torch"
    assert isinstance(kernelbench()[0], ProgramCase)

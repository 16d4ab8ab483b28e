"""Runs of many tunings: the record, its figure, going on after an interruption, and the sampling study."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from commands import told
from support import own_cache
from tune_problems import CPU, choice_of, contraction_of
from weft.cli import tuning as running
from weft.cli.tuning import Job, TuningRun, figures, go, load, of_equation, save
from weft.errors import UnsupportedError, WeftError
from weft.planner import tuned as tuned_schedules
from weft.tune import tuner
from weft.tune.candidates import Effort
from weft_bench import cases
from weft_bench.profiling import ncu
from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.hits import add_hits
from weft_bench.profiling.replay import TURN
from weft_bench.suites import entries
from weft_bench.tuning import study
from weft_bench.tuning.jobs import described, of_suite
from weft_bench.tuning.study import expected_draws

QUICK = Effort(leaders=2, samples=0)


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    own_cache(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def jobs() -> list[Job]:
    found, skipped = of_suite("tccg", ("fp32",), ("1", "4"), work=1 << 14, device=CPU)
    assert skipped == {}
    return found


@pytest.mark.parametrize("case", [case for case in cases.general() if not case.c_as], ids=str)
def test_descriptions_without_tensors_are_those_that_tensors_give(case: cases.Case) -> None:
    assert described(case) == contraction_of(case)


def test_suites_name_what_they_leave_out() -> None:
    found, skipped = of_suite("epilogue", device=CPU, work=1 << 14)
    assert any(reason == "its C is an operand of the epilogue" for reason in skipped.values())
    assert len(found) + len(skipped) == len(entries("epilogue"))
    moved, left = of_suite("permute", device=CPU, work=1 << 10)
    assert len(moved) > 10
    assert all(job.description.modes for job in moved)
    assert not left
    with pytest.raises(UnsupportedError, match="nothing to tune"):
        of_suite("tccg", device=CPU, backend="reference")
    with pytest.raises(UnsupportedError, match="nothing to tune"):
        of_equation("ik,kj->ij", {"i": 2, "j": 3, "k": 4}, backend="reference")


def test_a_run_is_recorded_and_read_again(jobs: list[Job], tmp_path: Path) -> None:
    run = TuningRun.on(CPU, QUICK, "tccg")
    seen: list[str] = []
    go(run, jobs, begun=lambda job: seen.append(job.label), kept=lambda run: save(run, tmp_path / "run.json"))
    assert seen == ["fp32 tccg-01", "fp32 tccg-04"]
    document = load(tmp_path / "run.json")
    assert document == json.loads(json.dumps(run.document()))
    assert (document["ended"], len(document["cases"])) == ("finished", 2)
    for case in document["cases"]:
        assert case["winner"]["seconds"] <= case["model"]["seconds"]
        assert case["winner"]["samples"]
        assert case["ratio"] <= 1
        assert {each["verdict"] for each in case["trials"]} <= {"measured", "slow", "waiting"}
    found = figures(document)
    assert list(found) == ["tccg.fp32.untuned_vs_tuned"]
    assert found["tccg.fp32.untuned_vs_tuned"].value == pytest.approx(
        (document["cases"][0]["ratio"] * document["cases"][1]["ratio"]) ** 0.5,
        rel=1e-4,  # seconds are written with six digits
    )


def test_a_stored_winner_is_not_measured_again_unless_asked(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    first = TuningRun.on(CPU, QUICK, "tccg")
    go(first, jobs[:1])
    tuned: list[Any] = []
    original = running.tune
    monkeypatch.setattr(running, "tune", lambda *a, **o: tuned.append(a) or original(*a, **o))
    second = TuningRun.on(CPU, QUICK, "tccg")
    go(second, jobs[:1])
    assert tuned == []
    assert second.cases[0]["stored"]
    assert second.cases[0]["winner"]["schedule"] == first.cases[0]["winner"]["schedule"]
    assert second.cases[0]["ratio"] == pytest.approx(first.cases[0]["ratio"])
    assert figures(second.document())["tccg.fp32.untuned_vs_tuned"].value == pytest.approx(first.cases[0]["ratio"])
    third = TuningRun.on(CPU, QUICK, "tccg")
    go(third, jobs[:1], again=True)
    assert len(tuned) == 1


def test_ctrl_c_ends_a_run_that_goes_on_later(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    run = TuningRun.on(CPU, QUICK, "tccg")

    def interrupt(job: Job) -> None:
        if job is jobs[1]:
            raise KeyboardInterrupt

    go(run, jobs, begun=interrupt)
    assert (run.ended, len(run.cases)) == ("interrupted", 1)
    before = dict(run.cases[0])
    go(run, jobs)
    assert (run.ended, len(run.cases)) == ("finished", 2)
    assert run.cases[0] == before


def test_a_case_that_cannot_be_tuned_says_why(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise UnsupportedError("no candidate can be measured\n  in tune()")

    monkeypatch.setattr(running, "tune", refuse)
    run = TuningRun.on(CPU, QUICK, "tccg")
    go(run, jobs)
    assert [case["failed"] for case in run.cases] == ["no candidate can be measured"] * 2
    assert figures(run.document()) == {}


def test_a_lost_device_ends_a_run_that_goes_on_later(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    original = running.tune

    def lost(choice: Any, *arguments: Any, **options: Any) -> Any:
        if choice.description == jobs[1].description:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return original(choice, *arguments, **options)

    monkeypatch.setattr(running, "tune", lost)
    run = TuningRun.on(CPU, QUICK, "tccg")
    go(run, jobs)
    assert run.ended == "the device was lost: CUDA error: an illegal memory access was encountered"
    assert len(run.cases) == 1
    monkeypatch.setattr(running, "tune", original)
    go(run, jobs)
    assert (run.ended, len(run.cases)) == ("finished", 2)


@pytest.mark.parametrize("content", ["", "[]", '{"what": "weft bench"}', '{"what": "weft tune", "format": 99}'])
def test_other_files_are_no_records(content: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(WeftError, match="no record of weft tune"):
        load(tmp_path / "file.json")


def test_the_figure_is_a_geometric_mean_by_group_with_an_interval() -> None:
    def case(group: str, model: list[float], fastest: list[float]) -> dict[str, Any]:
        parts = {
            name: {"schedule": name, "seconds": None, "samples": samples}
            for name, samples in (("model", model), ("winner", fastest))
        }
        return {"group": group, "name": "", **parts}

    record = {
        "suite": "tccg",
        "cases": [
            case("fp16_fp32", [10.0, 10.2, 9.8], [5.0, 5.1, 4.9]),
            case("fp16_fp32", [4.0, 4.2, 3.8], [4.0, 4.2, 3.8]),  # the model was right
            case("fp16_fp16", [8.0], [6.0]),
            {"group": "fp16_fp16", "name": "", "failed": "no"},
        ],
    }
    found = figures(record)
    assert found["tccg.fp16_fp32.untuned_vs_tuned"].value == pytest.approx(0.5**0.5)
    assert found["tccg.fp16_fp32.untuned_vs_tuned"].low < 0.5**0.5 < found["tccg.fp16_fp32.untuned_vs_tuned"].high
    assert found["tccg.fp16_fp16.untuned_vs_tuned"].value == pytest.approx(0.75)


def studied(jobs: list[Job], samples: int = 5, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"device": "a CPU", "cases": {}}
    study.go(found, jobs, samples, **options)
    return found


def test_a_study_measures_in_pieces_without_storing(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "PIECE", 2)
    found = studied(jobs, deadline=0.0)
    assert found["ended"].startswith("out of time")
    assert [len(case["trials"]) for case in found["cases"].values()] == [2]
    first = list(found["cases"]["fp32 tccg-01"]["trials"])
    study.go(found, jobs, 5)
    assert found["ended"] == "finished"
    assert found["cases"]["fp32 tccg-01"]["trials"][:2] == first
    for job, case in zip(jobs, found["cases"].values(), strict=True):
        names = [trial["schedule"] for trial in case["trials"]]
        assert len(names) == len(set(names)) >= min(5, case["legal"])
        assert names[0] == str(choice_of(job.description).best.schedule)
        assert len(study.draws(case)) == min(5, case["legal"])
        assert max(trial["at"] for trial in case["trials"]) <= case["spent"]
        assert tuned_schedules.recalled(choice_of(job.description), None) is None
    assert str(json.loads(json.dumps(found))) == str(found)
    drawn = study.drawn(found)
    assert drawn is not None
    assert drawn.startswith(b"\x89PNG")


def test_the_studys_figures_are_those_of_the_draws() -> None:
    times = [(20e-6, False, "measured"), (10e-6, True, "measured"), (40e-6, True, "measured"), (100e-6, True, "slow")]
    trials = [
        {"schedule": str(at), "seconds": seconds, "drawn": drawn, "verdict": verdict, "at": at}
        for at, (seconds, drawn, verdict) in enumerate([*times, (None, True, "wrong")])
    ]
    case: dict[str, Any] = {"legal": 30, "spent": 2.0, "trials": trials, "peer": {"seconds": 50e-6}}
    case["orders"] = {"seconds": {"8": 3.0, "-4": 2.0}}
    (row,) = study.table({"cases": {"one": case}}).rows
    shown = [cell.text for cell in row[1:]]
    expected = 31 / (30 * 2 / 3 + 1)  # two of three beat the peer
    assert shown[:6] == ["30", "4", "25%", "1.5", "67%", f"{expected:.1f}"]
    assert shown[6:] == ["1.0", "33%", "0.20", "0.50", "10.0 us"]
    among = {**case, "trials": [{**trials[1], "at": 0}, *trials[2:]]}  # the model's choice is one of the draws
    assert study.table({"cases": {"one": among}}).rows[0][7].text == "2.0"
    alone = {**case, "trials": [{**trials[1], "at": 0}, *trials[3:]]}
    assert study.table({"cases": {"one": alone}}).rows[0][7].text == "-"
    orders = study.orders_table({"cases": {"one": case}})
    assert list(orders.heads) == ["case", "-4", "8"]
    assert [cell.text for cell in orders.rows[0]] == ["one", "1.00", "1.50"]
    assert study.drawn({"cases": {}}) is None
    assert study.hits_table({"cases": {"one": case}}).rows == []
    case["orders"]["hits"] = {"8": 61.5, "-4": 94.0}
    assert [cell.text for cell in study.hits_table({"cases": {"one": case}}).rows[0]] == ["one", "94", "62"]
    case["orders"]["hits"] = {"8": 102.1, "-4": 94.0}  # such a rate cannot be
    assert study.hits_table({"cases": {"one": case}}).rows == []


def test_l2_hits_are_those_of_the_longest_launch_in_each_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def count(file: Path, **how: Any) -> ncu.Counted:
        recipe = pickle.loads(file.read_bytes())
        asked[recipe.schedule] = how["environment"][TURN]
        if recipe.schedule == "none":
            return ncu.Counted(missing="no counters for you")
        hits = 40.0 if recipe.schedule == "by rows" else 90.0
        short, long = ({"seconds": 1.0, "l2_hits": 1.0}, {"seconds": 2.0, "l2_hits": hits})
        return ncu.Counted((CounterSet("pack", short), CounterSet("gett", long)))

    monkeypatch.setattr(ncu, "count", count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(multi_processor_count=132))
    orders: dict[str, Any] = {"seconds": {"1": 1.0, "8": 1.0, "-8": 1.0},
                              "schedules": {"1": "by rows", "8": "grouped", "-8": "none"}}  # fmt: skip
    add_hits(orders, cases.example(), torch.device("cuda", 0))
    assert orders["hits"] == {"1": 40.0, "8": 90.0}
    assert orders["no hits"] == "no counters for you"
    assert len(set(asked.values())) == 1


def test_counters_of_a_study_need_a_gpu(tmp_path: Path) -> None:
    said = told("bench", "tuning", "--device", "cpu", "--counters", "--out", tmp_path, code=2)
    assert "--counters reads hardware counters of a GPU" in said


def test_expected_draws_are_those_of_the_paper() -> None:
    """Its example: F(100 %) = 0.38 of 331 000 configurations takes 1.61 draws."""
    relative = [0.5] * 38 + [2.0] * 62
    assert expected_draws(relative, 1.0, 331_000) == pytest.approx(1.61, abs=0.005)
    assert expected_draws([1.0], 1.0, 99) == 100


def test_an_interrupted_study_keeps_what_it_has(jobs: list[Job]) -> None:
    def interrupt(name: str) -> None:
        if name == jobs[1].label:
            raise KeyboardInterrupt

    found = studied(jobs, 1, begun=interrupt)
    assert (list(found["cases"]), found["ended"]) == ([jobs[0].label], "interrupted")


def test_a_schedule_that_takes_the_device_along_is_left_out_later(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(session: Any, candidate: Any, launch: Any) -> bool:
        candidate.verdict, candidate.reason = "wrong", "an illegal access"
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tuner._Session, "_right", lost)
    found = studied(jobs[:1])
    assert found["ended"].startswith("the device was lost: CUDA error: an illegal memory access")
    assert [trial["verdict"] for trial in found["cases"][jobs[0].label]["trials"]] == ["wrong"]
    monkeypatch.undo()
    study.go(found, jobs[:1], 5)
    assert found["ended"] == "finished"


def test_the_command_studies_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("bench", "tuning", "--device", "cpu", "--cases", "1", "--work", "1e4", "--out", tmp_path / "out")
    told(*asked, "--samples", "1")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["study.json", "study.png"]
    (before,) = json.loads((tmp_path / "out" / "study.json").read_text())["cases"].values()
    assert before["peer"]["name"] == "torch"
    assert before["peer"]["seconds"] > 0
    told(*asked, "--samples", "4", "--resume")
    (after,) = json.loads((tmp_path / "out" / "study.json").read_text())["cases"].values()
    assert len(after["trials"]) > len(before["trials"])
    assert sum(trial["drawn"] for trial in after["trials"]) == min(4, after["legal"])
    assert after["peer"] == before["peer"]

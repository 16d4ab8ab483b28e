"""The suite `regret`: fresh processes with small workloads and few calls, their record and their tables."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest

from commands import told
from weft.errors import WeftError
from weft_bench.regret import process, tables
from weft_bench.regret.measuring import Asked, Regret
from weft_bench.regret.record import EMPTY, KEPT, RegretRun, Row, continued, load, save
from weft_bench.regret.workloads import CALLS, NETWORK, SHAPES, Workload, chosen, small_shapes, workloads

MARKS = (1, 5, 40)
ASKED = Asked("cpu", seconds=0.05, threads=1, marks=MARKS, count=3, work=1 << 12)


def row(name: str, caches: str, totals: tuple[float, ...], each: float = 1e-3) -> Row:
    side = {"totals": list(totals), "each": each, "reached": 40, "first": totals[0]}
    return Row(name, CALLS, caches, {"weft": side, "torch": side | {"each": 1e-3}, "wrong": "", "marks": list(MARKS)})


def test_calls_are_counted_from_the_first_and_reckoned_where_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(process, "perf_counter", lambda: float(next(ticks)))
    found = process.course(lambda: None, lambda: None, seconds=1e9, marks=[1, 10, 20])
    assert found["reached"] == 20
    assert found["totals"][0] < found["totals"][1] < found["totals"][2]
    cut = process.course(lambda: None, lambda: None, seconds=3.0, marks=[1, 1000])
    assert cut["reached"] < 10
    assert cut["totals"][1] == pytest.approx(1000 * cut["each"], rel=0.1)


@pytest.fixture(autouse=True)
def library_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: first calls are served at once."""
    monkeypatch.setenv("WEFT_TIERS", "1")


def test_two_workloads_in_processes_with_empty_and_with_kept_caches() -> None:
    rows: list[Row] = []
    products, shapes = Workload("1000 products 8x8, fp32", CALLS), Workload("3 small shapes", SHAPES)
    suite = Regret(RegretRun("a CPU", {}), ASKED, kept=rows.append)
    suite.go([products])
    suite.caches = (EMPTY,)
    suite.go([products, shapes])
    assert suite.run.ended == "finished"
    assert [(each.kind, each.caches) for each in rows] == [(CALLS, EMPTY), (CALLS, KEPT), (SHAPES, EMPTY)]
    assert not suite.run.failures()
    assert rows[0].figures["weft"]["first"] <= rows[0].figures["weft"]["totals"][0]
    assert rows[0].regret(0) > 0
    assert rows[2].figures["first"] >= rows[2].figures["again"] > 0
    assert "3 small shapes" in tables.line(rows[2])
    suite.go([shapes])
    assert len(rows) == 3  # it is there already


def test_a_network_is_planned_and_contracted() -> None:
    suite = Regret(RegretRun("a CPU", {}), ASKED, caches=(EMPTY,))
    suite.go([Workload("peps_cluster_r2_D10", NETWORK)])
    (found,) = suite.run.rows
    assert not found.failure
    assert found.figures["first"] > 0


def test_a_process_that_breaks_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to("/bin/false")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python3"))
    suite = Regret(RegretRun("a CPU", {}), ASKED)
    suite.go([Workload("1000 products 8x8, fp32", CALLS)])
    (found,) = suite.run.rows
    assert found.failure == "it ended without a word"
    assert suite.run.failures()
    assert not suite.run.has("1000 products 8x8, fp32", (EMPTY,))


def test_what_the_time_does_not_allow_is_left_out() -> None:
    suite = Regret(RegretRun("a CPU", {}), ASKED, deadline=0.0)
    suite.go([Workload("1000 products 8x8, fp32", CALLS)])
    assert not suite.run.rows
    assert list(suite.run.skipped.values()) == ["the time was up"]


def test_a_process_is_cut_off_where_the_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.regret.measuring.START", 0.0)
    suite = Regret(RegretRun("a CPU", {}), ASKED, deadline=time.monotonic() + 0.5)
    suite.go([Workload("1000 products 8x8, fp32", CALLS)])
    assert not suite.run.rows
    assert list(suite.run.skipped.values()) == ["cut off: the time was up"]


def test_the_tables_have_means_and_worst_ones() -> None:
    run = RegretRun("a CPU", {}, [
        row("a", EMPTY, (4e-3, 5e-3, 40e-3)), row("b", EMPTY, (1e-3, 5e-3, 160e-3)),
        row("a", KEPT, (2e-3, 5e-3, 40e-3)),
    ])  # fmt: skip
    found = [[cell.text for cell in line] for line in tables.calls(run).rows]
    assert [EMPTY, tables.MEAN, "2.00", "1.00", "2.00", "1.00", "", ""] in found
    assert [EMPTY, tables.WORST, "4.00", "1.00", "4.00", "1.00", "", ""] in found
    assert [KEPT, tables.MEAN, "2.00", "1.00", "1.00", "1.00", "", ""] in found


def test_a_run_is_kept_and_goes_on(tmp_path: Path) -> None:
    stamp = {"artifacts": {"commit": "abc"}}
    run = RegretRun("a CPU", stamp, [row("a", EMPTY, (1e-3, 2e-3, 3e-3)), Row("b", CALLS, EMPTY, failed="broken")])
    save(run, tmp_path)
    assert load(tmp_path) == run
    assert [each.workload for each in continued(RegretRun("a CPU", stamp), load(tmp_path)).rows] == ["a"]
    with pytest.raises(WeftError, match="has device a CPU, not a GPU"):
        continued(RegretRun("a GPU", stamp), load(tmp_path))
    (tmp_path / "regret.json").write_text("{}")
    with pytest.raises(WeftError, match="is no run of weft bench regret"):
        load(tmp_path)


def test_workloads_are_chosen_by_words_and_everyday_cases_by_name() -> None:
    assert len([each for each in workloads() if each.kind == CALLS]) == 14
    assert [each.name for each in chosen(["randreg"])] == ["randreg_200_3"]
    assert chosen(["trace"]) == [Workload("trace", CALLS)]
    assert small_shapes(5) == small_shapes(5)


def test_the_command_says_what_it_left_out(tmp_path: Path) -> None:
    said = told("bench", "regret", "--device", "cpu", "--only", "shapes", "--budget", "1", "--out", tmp_path)
    assert "left out, as the time was up: 150 small shapes, caches empty" in said
    assert json.loads((tmp_path / "regret.json").read_text())["environment"]["artifacts"]["command"]


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--caches", "warm"], "--caches is empty, kept"), (["--only", "nothing"], "no workload of regret")],
)
def test_what_the_command_refuses(given: list[str], said: str) -> None:
    assert said in told("bench", "regret", "--device", "cpu", *given, code=2)

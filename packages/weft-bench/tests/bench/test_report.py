"""Runs side by side: a difference only where intervals part; the summary holds every figure with where it is from."""

import json
import sys
from pathlib import Path

import pytest

from runs import case, result, run
from weft.errors import WeftError
from weft.machine.statistics import Interval
from weft_bench.records import Result, load, save
from weft_bench.report.summary import (
    SAME,
    Line,
    compare,
    comparison_page,
    comparison_table,
    summary,
    write,
    write_summary,
)


def line(*values: tuple[float, float, float] | None) -> Line:
    return Line("g", "c", "weft", tuple(Interval(*value) if value else None for value in values))


def test_a_difference_is_called_only_where_the_intervals_part() -> None:
    first = (10.0, 9.0, 11.0)
    assert line(first, (10.9, 10.5, 12.0)).verdicts() == [SAME]
    assert line(first, (12.0, 11.0, 13.0)).verdicts() == [SAME]  # they touch
    assert line(first, (12.0, 11.1, 13.0)).verdicts() == ["slower"]
    assert line(first, (8.0, 7.0, 8.9), None, (5.0, 4.0, 20.0)).verdicts() == ["faster", "", SAME]
    assert line(None, first).verdicts() == [""]


def test_runs_are_held_against_the_first_case_by_case() -> None:
    before = run(case("tccg-01", weft=10, torch=30), case("tccg-02", weft=10, torch=30))
    after = run(case("tccg-01", weft=8, torch=30), case("tccg-02", weft=10, torch=30), commit="def456")
    compared = compare([before, after], ["before", "after"])
    verdicts = {(line.contender, line.name): line.verdicts() for line in compared.cases}
    assert verdicts == {
        ("weft", "tccg-01"): ["faster"],
        ("weft", "tccg-02"): [SAME],
        ("torch", "tccg-01"): [SAME],
        ("torch", "tccg-02"): [SAME],
    }
    means = {line.contender: line for line in compared.means}
    assert means["weft"].verdicts() == ["faster"]
    assert means["weft"].values[0].value == pytest.approx(10e-6)
    assert means["weft"].values[1].value == pytest.approx(80**0.5 * 1e-6)
    assert means["torch"].verdicts() == [SAME]


def test_means_are_over_the_cases_that_all_runs_measured() -> None:
    before = run(case("tccg-01", weft=10), case("tccg-02", weft=1000))
    after = run(case("tccg-01", weft=10), case("tccg-03", weft=1), commit="def456")
    after.cases[1].results["torch"] = Result(cannot="no")
    compared = compare([before, after], ["before", "after"])
    assert [line.values[0].value for line in compared.means] == pytest.approx([10e-6])
    assert {line.name: [value is None for value in line.values] for line in compared.cases} == {
        "tccg-01": [False, False],
        "tccg-02": [False, True],
        "tccg-03": [True, False],
    }


def test_wide_intervals_hide_a_difference_of_medians() -> None:
    before, after = run(case("tccg-01")), run(case("tccg-01"))
    before.cases[0].results["weft"] = result(10, spread=0.9)
    after.cases[0].results["weft"] = result(11, spread=0.9)
    assert [line.verdicts() for line in compare([before, after], "ab").cases] == [[SAME]]


def test_the_table_shows_times_intervals_and_speedup() -> None:
    compared = compare([run(case("tccg-01", weft=10)), run(case("tccg-01", weft=5))], ["a", "b"])
    table = comparison_table(compared.cases, compared.names)
    assert list(table.heads)[3:] == ["a us", "interval us", "b us", "interval us", "speedup", "verdict"]
    (row,) = table.rows
    assert [cell.text for cell in row][:4] == ["fp16_fp32", "tccg-01", "weft", "10"]
    assert row[7].text == "2"
    assert (row[8].text, row[8].tone) == ("faster", "better")
    assert "geometric mean" in comparison_page(compared)


def test_suites_do_not_mix() -> None:
    with pytest.raises(WeftError, match="different suites cannot be compared: beyond, tccg"):
        compare([run(case("a", weft=1)), run(case("a", weft=1), suite="beyond")], ["a", "b"])


def test_the_summary_says_where_each_figure_is_from() -> None:
    entry = summary([run(case("tccg-01", weft=10, cutensor=25))])["tccg.fp16_fp32.gm1_cutensor"]
    assert entry == {
        "value": 2.5,
        "low": pytest.approx(2.5, rel=0.01),
        "high": pytest.approx(2.5, rel=0.01),
        "unit": "ratio",
        "commit": "abc123",
        "date": "2026-11-20T12:00:00+00:00",
        "command": "weft bench tccg",
    }


def test_the_later_run_of_two_stands() -> None:
    early = run(case("tccg-01", weft=10, torch=20), date="2026-11-20T12:00:00+00:00")
    late = run(case("tccg-01", weft=10, torch=30), date="2026-11-21T12:00:00+00:00")
    for order in ([early, late], [late, early]):
        assert summary(order)["tccg.fp16_fp32.gm1_torch"]["value"] == 3


def test_a_summary_marks_what_is_not_the_suite_itself() -> None:
    known = run(case("tccg-01", weft=10, torch=20), selected=True, mode="hot")
    assert summary([known])["tccg.fp16_fp32.gm1_torch"]["unit"] == "ratio (selected cases, operands in the cache)"


def test_no_summary_of_unfinished_wrong_or_mixed_runs() -> None:
    with pytest.raises(WeftError, match="not finished: interrupted"):
        summary([run(case("tccg-01", weft=10), ended="interrupted")])
    wrong = run(case("tccg-01", weft=10))
    wrong.cases[0].results["weft"] = Result(wrong="off")
    with pytest.raises(WeftError, match="wrong results: fp16_fp32 tccg-01"):
        summary([wrong])
    with pytest.raises(WeftError, match="of one device"):
        summary([run(case("tccg-01", weft=10)), run(case("tccg-01", weft=10), device="NVIDIA A100")])


def test_the_summary_file_lies_under_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(run(case("tccg-01", weft=10, torch=20)), tmp_path / "a")
    save(run(case("hadamard", "batch", weft=10, torch=20), suite="beyond"), tmp_path / "b")
    assert write_summary([tmp_path / "a", tmp_path / "b"]) == Path("results/h200/summary.json")
    content = json.loads(Path("results/h200/summary.json").read_text())
    assert {"tccg.fp16_fp32.gm1_torch", "beyond.geomean_vs_best_peer"} <= content.keys()
    assert list(content) == sorted(content)


def test_everything_of_a_run_is_written(tmp_path: Path) -> None:
    known = run(case("tccg-01", weft=10, torch=20))
    write(known, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        *("run.json", "run.csv", "index.html", "swarm.png", "roofline.png", "cumulative.png")
    }
    assert load(tmp_path) == known


def test_without_matplotlib_everything_but_the_plots_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "weft_bench.report.plots", None)
    with pytest.warns(RuntimeWarning, match="no plots"):
        write(run(case("tccg-01", weft=10, torch=20)), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"run.json", "run.csv", "index.html"}

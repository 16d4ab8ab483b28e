"""What a run leaves on disk, runs side by side, and the summary: read again, and never half there."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from runs import case, result, run
from weft.errors import WeftError
from weft.machine.statistics import Interval
from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.record import Record
from weft_bench.profiling.why import correlations, why
from weft_bench.records import (
    COLUMNS,
    CSV_FILE,
    RUN_FILE,
    CaseRecord,
    Result,
    Run,
    continued,
    csv_text,
    device_slug,
    load,
    save,
    whole_groups,
    write_whole,
)
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
from weft_bench.report.threats import threats
from weft_bench.suites import entries


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


def test_without_matplotlib_everything_but_the_plots_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "weft_bench.report.plots", None)
    with pytest.warns(RuntimeWarning, match="no plots"):
        write(run(case("tccg-01", weft=10, torch=20)), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"run.json", "run.csv", "index.html"}


def test_a_run_survives_the_disk(tmp_path: Path) -> None:
    known = run(case("tccg-01", functions={"a_fn": "relu"}, weft=10, cutensor=20), case("tccg-02", weft=10))
    known.cases[1].results["cutensor"] = Result(cannot="not today", ways={"gett": "CUTENSOR_STATUS_NOT_SUPPORTED"})
    known.skipped["fp16_fp32 tccg-03"] = "too large"
    save(known, tmp_path / "deep" / "folder")
    assert load(tmp_path / "deep" / "folder") == known
    assert load(tmp_path / "deep" / "folder" / RUN_FILE) == known


def test_one_line_for_each_case(tmp_path: Path) -> None:
    save(run(case("tccg-01", weft=10), case("tccg-02", weft=10)), tmp_path)
    lines = (tmp_path / RUN_FILE).read_text().splitlines()
    assert sum('"name": "tccg-0' in line for line in lines) == 2
    assert json.loads((tmp_path / RUN_FILE).read_text())["suite"] == "tccg"


def test_csv(tmp_path: Path) -> None:
    known = run(case("tccg-01", weft=10, torch=25))
    known.cases[0].results["cutensor"] = Result(cannot="no library, no figure")
    save(known, tmp_path)
    rows = list(csv.DictReader((tmp_path / CSV_FILE).read_text().splitlines()))
    assert [row["contender"] for row in rows] == ["weft", "torch", "cutensor"]
    assert tuple(rows[0]) == COLUMNS
    assert float(rows[1]["median_us"]) == pytest.approx(25)
    assert float(rows[0]["tflops"]) == pytest.approx(1.2)
    assert float(rows[0]["floor_share"]) == pytest.approx(0.5)
    assert rows[2]["median_us"] == ""
    assert rows[2]["remark"] == "no library, no figure"


def test_csv_has_joules_where_energy_was_measured() -> None:
    found = run(case("tccg-01", weft=10, torch=20))
    found.cases[0].results["weft"].about["energy"] = {"joules": 0.02512345}
    ours, theirs = csv.DictReader(csv_text(found).splitlines())
    assert tuple(ours) == (*COLUMNS, "joules")
    assert (ours["joules"], theirs["joules"]) == ("0.02512", "")


def test_csv_of_a_run_without_cases() -> None:
    assert csv_text(run()) == ",".join(COLUMNS) + "\n"


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="is no run"):
        load(tmp_path)
    (tmp_path / RUN_FILE).write_text('{"format": 1, "cases": [')
    with pytest.raises(WeftError, match="is no run"):
        load(tmp_path)
    (tmp_path / RUN_FILE).write_text('{"format": 99}')
    with pytest.raises(WeftError, match="format 99"):
        load(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    write_whole(file, "old")
    monkeypatch.setattr("os.replace", lambda *paths, **folders: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("AMD EPYC 9V74 80-Core Processor", "epyc-9v74-80-core"),
        ("Intel(R) Xeon(R) CPU E5-2637 v2 @ 3.50GHz", "xeon-e5-2637-v2"),
        ("CPU", "cpu"),
    ],
)
def test_devices_as_folders(name: str, slug: str) -> None:
    assert device_slug(name) == slug


def test_caveats_and_failures() -> None:
    known = run(case("tccg-01", weft=10), mode="hot", selected=True, ended="interrupted")
    known.cases[0].scaled = True
    assert known.caveat == "scaled cases, selected cases, operands in the cache, interrupted"
    assert run(case("tccg-01", weft=10)).caveat == ""
    known.cases[0].results["torch"] = Result(wrong="a peer's fault")
    assert list(known.failures()) == []
    known.cases[0].results["weft"] = Result(wrong="ours")
    assert [said for _, said in known.failures()] == ["ours"]


def test_a_run_goes_on_where_it_was_cut_off() -> None:
    before = run(case("tccg-01", weft=10, torch=20), case("tccg-02", weft=10), ended="interrupted")
    before.seconds = 12.5
    fresh = run(case("tccg-03", weft=1, torch=1))
    fresh.cases.clear()
    found = continued(fresh, before)
    assert [each.name for each in found.cases] == ["tccg-01"]  # the second lacks a contender
    assert found.seconds == 12.5
    assert found.environment["continues"] == [
        {"date": before.date, "command": "weft bench tccg", "ended": "interrupted"}
    ]


def test_whole_groups_of_a_run_that_was_cut_off_are_a_run() -> None:
    asked = entries("tccg", ("bf16_fp32",))
    whole = [case(entry.case.name, weft=10, torch=20) for entry in asked]
    for each in whole:
        each.group = "bf16_fp32"
    later = case("tccg-01", weft=10, torch=20)
    later.group = "tf32"
    before = run(*whole, later, ended="running")
    found = whole_groups(before, ("bf16_fp32",), asked)
    assert found.ended == "finished"
    assert found.cases == whole
    assert before.ended == "running"
    assert found.environment["continues"][-1]["ended"] == "cut off, these groups were whole"
    with pytest.raises(WeftError, match="was cut off before tf32 tccg-02"):
        whole_groups(before, ("bf16_fp32", "tf32"), entries("tccg", ("bf16_fp32", "tf32")))


@pytest.mark.parametrize(
    "change",
    [{"suite": "beyond"}, {"device": "NVIDIA A100"}, {"commit": "other"}, {"mode": "hot"}, {"contenders": ["weft"]}],
)
def test_another_run_is_not_gone_on_with(change: dict) -> None:
    with pytest.raises(WeftError, match=f"the run to continue has {next(iter(change))}"):
        continued(run(), run(**change))


def test_medians_come_with_intervals() -> None:
    seconds = result(10, spread=0.1).seconds
    assert seconds.low < seconds.value < seconds.high
    assert seconds.value == pytest.approx(10e-6)


SUMS = (20, 30, 50, 80, 130, 210, 340)


def grown(k: int, power: float = 0.5) -> CaseRecord:
    """A case whose lead over torch grows as a power of K."""
    found = case(f"tccg-{k}", weft=10, torch=10 * k**power)
    found.modes = {**found.modes, "k": k}
    found.work = {**found.work, "bytes": k}
    return found


def known() -> Run:
    return run(*map(grown, SUMS))


def test_a_lead_that_is_a_power_of_k_goes_with_k_and_with_nothing_that_is_constant() -> None:
    rows = {row[0].text: [cell.key for cell in row] for row in why(known(), "torch", "fp16_fp32").rows}
    assert rows["K"][1] == len(SUMS)
    assert rows["K"][2] == pytest.approx(1)
    assert rows["K"][4] == pytest.approx(1)
    assert "M" not in rows


def test_counters_are_those_of_profiles_of_the_same_types() -> None:
    profiles = {f"tccg-{k}": Record("weft", "", "", bytes=k, counters=[CounterSet("", {"K1": 1 / k})]) for k in SUMS}
    rows = {row[0].text: row[2].key for row in why(known(), "torch", "fp16_fp32", profiles).rows}
    assert rows["counter: SM throughput"] == pytest.approx(-1)
    for each in profiles.values():
        each.bytes += 1
    assert not any("counter" in row[0].text for row in why(known(), "torch", "fp16_fp32", profiles).rows)


def test_few_cases_are_refused() -> None:
    with pytest.raises(WeftError, match="3 cases of fp16_fp32 have times of torch: correlations need 5"):
        why(run(*map(grown, SUMS[:3])), "torch", "fp16_fp32")


def test_equal_values_share_a_rank() -> None:
    # Ranks 0, 1.5, 1.5, 3, 4 against 0, 1, 3, 2, 4: covariance 8, variances 9.5 and 10.
    rank, line = correlations(np.array([1.0, 2, 2, 3, 4]), np.array([1.0, 2, 4, 3, 5]))
    assert rank.value == pytest.approx(8 / (9.5 * 10) ** 0.5)
    assert rank.low <= rank.value <= rank.high
    assert line.value == pytest.approx(np.corrcoef(np.log([1, 2, 2, 3, 4]), np.log([1, 2, 4, 3, 5]))[0, 1])


def test_threats_are_what_the_record_says() -> None:
    plain = " ".join(threats(known()).values())
    assert "slowed itself down" not in plain
    assert "operands out of the cache" in plain
    assert "modes to choose from" not in plain
    assert "the host's work may be longer" in threats(run(case("tccg-01", weft=10), host=True))["What is measured"]
    quick = run(case("tccg-01", weft=10, cutensor=20), contenders=["weft", "cutensor"])
    quick.environment["artifacts"]["command"] = "weft bench tccg --quick"
    assert "cuTENSOR had fewer of its modes to choose from." in threats(quick)["What is measured"]
    quick.contenders[1] = "torch"
    assert "modes to choose from" not in threats(quick)["What is measured"]
    risky = run(case("tccg-01", weft=10, torch=20), commit="abc+changes", selected=True)
    risky.cases[0].results["weft"].timing["clocks"] = {"throttled": ["power cap"], "sm_mhz": 1710}
    risky.cases[0].results["cutensor"] = Result(cannot="no")
    said = threats(risky)
    assert "slowed itself down in 1 of 2 timings" in said["Causes"]
    assert "not those of a commit" in said["Other places"]
    assert "selected cases" in said["Other places"]
    risky.cases[0].floor = {"seconds": 1.5 * risky.cases[0].results["weft"].summary.median}
    assert "1 of 2 times are below the floor, down to 0.67 of it" in threats(risky)["What is measured"]
    risky.environment["artifacts"]["joined by hand"] = "case 1 is of another card"
    assert "joined by hand of several devices or commits: case 1 is of" in threats(risky)["Other places"]
    assert "Missing from means: 1 of 3 results" in said["What is measured"]

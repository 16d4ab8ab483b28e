"""What a run leaves on disk can be read again, is never half there, and names devices as folders."""

import csv
import json
from pathlib import Path

import pytest

from runs import case, result, run
from weft.errors import WeftError
from weft_bench.records import (
    COLUMNS,
    CSV_FILE,
    RUN_FILE,
    Result,
    continued,
    csv_text,
    device_slug,
    load,
    save,
    whole_groups,
    write_whole,
)
from weft_bench.suites import entries


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

"""tools/schedule_times.py: times of the first schedules of each kind."""

import json
import sys

import pytest

import schedule_times


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        ("blas mm", "blas"),
        ("ttgt A as k·m; semiring 64x64x8 m[m:64] n[n:64] k[k:8] threads of 8x8 warps=2 stages=3", "ttgt, semiring"),
    ],
)
def test_a_kind_is_the_families_of_a_schedule(schedule, kind):
    assert schedule_times.kind_of(schedule) == kind


def test_a_row_is_a_schedule_with_what_was_expected_and_measured(tmp_path, monkeypatch, capsys):
    asked, out = tmp_path / "problems.json", tmp_path / "out.json"
    asked.write_text(json.dumps([{"equation": "mk,kn->mn", "extents": {"m": 8, "k": 3, "n": 5}, "dtype": "float64"}]))
    monkeypatch.setattr(sys, "argv", ["schedule_times.py", str(asked), str(out), "--each", "1"])
    schedule_times.main()
    record = json.loads(out.read_text())
    kinds = [schedule_times.kind_of(row["schedule"]) for row in record["rows"]]
    assert record["ended"] == "finished"
    assert len(kinds) == len(set(kinds)) > 0
    for row in record["rows"]:
        assert row["extents"] == {"m": 8, "k": 3, "n": 5}
        assert row["predicted"] > 0
        assert row["verdict"] != "measured" or row["seconds"] > 0
    assert "mk,kn->mn {'m': 8, 'k': 3, 'n': 5}: the first takes" in capsys.readouterr().out

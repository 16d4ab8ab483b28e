"""tools/replay_times.py: networks launched, replayed, as weft chooses, and by torch."""

import json
import sys

import pytest

import replay_times


def test_a_row_has_the_times_of_each_form(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    arguments = ["--cases", "rtree_100", "--budget", "0.01"]
    monkeypatch.setattr(sys, "argv", ["replay_times.py", str(out), *arguments])
    replay_times.main()
    record = json.loads(out.read_text())
    (row,) = record["rows"]
    assert record["ended"] == "finished"
    assert (row["network"], row["steps"]) == ("rtree_100", 99)
    assert all(row[form] > 0 for form in ("expected", "launched", "replayed", "chosen", "torch"))
    assert "network=rtree_100 steps=99" in capsys.readouterr().out


def test_a_network_that_is_not_there_is_named(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["replay_times.py", str(out), "--cases", "rtree_101"])
    with pytest.raises(SystemExit, match="no network is called rtree_101: there are "):
        replay_times.main()
    assert not out.exists()

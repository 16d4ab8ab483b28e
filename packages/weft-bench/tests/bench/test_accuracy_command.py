"""The table of errors by precision and K: what it holds, and that its figures are errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from weft.cli.main import app
from weft_bench.accuracy import PRECISIONS, AccuracyRow, measured, page

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows() -> list[AccuracyRow]:
    return measured(CPU, (64, 1024), 32)


def test_has_every_precision_of_a_cpu(rows: list[AccuracyRow]) -> None:
    names = [precision.name for precision in PRECISIONS if precision.on_cpu]
    assert len(names) == 5
    assert [row.precision for row in rows] == names * 4
    assert {(row.values, row.k) for row in rows} == {(v, k) for v in ("normal", "uniform") for k in (64, 1024)}


def test_no_error_is_past_its_bound(rows: list[AccuracyRow]) -> None:
    assert all(row.over_bound is not None and 0 <= row.over_bound <= 1 for row in rows)
    assert all(row.over_bound for row in rows if row.precision == "float32 ieee")


def test_errors_are_of_the_size_of_their_types(rows: list[AccuracyRow]) -> None:
    """Sums are float32 everywhere; what storage loses is half a unit in the last place, about a third on average."""
    digits = {"float32 ieee": 24, "float16": 11, "bfloat16": 8, "e4m3": 4, "e5m2": 3}
    for row in rows:
        assert row.computed is not None
        assert row.computed < 2**-20
        assert row.with_storage is not None
        if row.precision == "float32 ieee":
            assert row.with_storage < 2**-20
        elif row.values == "normal":
            assert 2.0 ** -(digits[row.precision] + 2) < row.with_storage < 2.0 ** -(digits[row.precision] - 1)


def test_the_page_says_what_is_not_there() -> None:
    rows = [
        AccuracyRow("one", "normal", 64, 1e-7, 2e-7, 0.1),
        AccuracyRow("two", "normal", 64, None, None, None, "no such unit"),
    ]
    text = page(rows, "here")
    assert "| one | 1.0e-07 |" in text
    assert "| two | not here |" in text
    assert "* two: no such unit" in text


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["accuracy", "--device", "cpu", "--most", "64", "--side", "16", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "accuracy.json").read_text())
    assert len(record["rows"]) == 10
    assert record["device"]["kind"] == "cpu"
    assert "| e4m3 |" in (tmp_path / "README.md").read_text()

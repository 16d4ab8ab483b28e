"""The disclosure that every result carries, and the table of errors by precision and K."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from commands import told
from weft.machine import stamp
from weft.machine.ceilings import from_datasheet
from weft.machine.stamp import command, commit
from weft.machine.timing import REST
from weft_bench import environment
from weft_bench.accuracy import PRECISIONS, AccuracyRow, measured, page
from weft_bench.environment import ITEMS, disclose, missing

WORKLOADS = {"suite": "tccg", "dtypes": ["float16"], "inputs": "normal, seed 0"}
CORRECTNESS = {"reference": "weft.reference in float64", "tolerance": "stated with each case"}


@pytest.fixture(scope="module")
def disclosed() -> dict:
    return disclose("cpu", workloads=WORKLOADS, correctness=CORRECTNESS, rrs=0.05, budget=0.25)


def test_every_item_of_the_checklist_is_there(disclosed: dict) -> None:
    assert len(ITEMS) == 9  # as many rows as table 3.6 has
    assert missing(disclosed) == []
    assert set(ITEMS) | {"date"} == disclosed.keys()


def test_it_survives_json(disclosed: dict) -> None:
    assert json.loads(json.dumps(disclosed, allow_nan=False)) == disclosed


def test_what_is_left_out_is_named(disclosed: dict) -> None:
    assert missing({**disclosed, "workloads": {}, "correctness": None}) == ["workloads", "correctness"]
    assert missing({}) == list(ITEMS)


def test_it_describes_this_process(disclosed: dict) -> None:
    assert disclosed["workloads"] == WORKLOADS
    assert disclosed["correctness"] == CORRECTNESS
    assert disclosed["software"]["python"] == platform.python_version()
    assert disclosed["software"]["packages"]["torch"] == torch.__version__
    assert disclosed["build"]["threads of torch"] == torch.get_num_threads()
    assert disclosed["platform"]["host memory bytes"] > 1 << 28
    assert disclosed["artifacts"]["weft"] == weft.__version__
    assert disclosed["artifacts"]["command"] == command()


def test_it_states_the_protocol_that_was_asked_for(disclosed: dict) -> None:
    repetitions = disclosed["timing"]["repetitions"]
    assert "RRS <= 0.05" in repetitions
    assert "until 0.25 s" in repetitions
    assert "1000 resamples" in disclosed["statistics"]["interval"]


def test_rests_of_a_gpu_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.rotation, "cache_bytes", lambda device: 50 << 20)
    stated = environment.protocol(torch.device("cuda"), rrs=0.05, budget=0.25)
    assert f"{REST} times" in stated["rest"]
    assert "and rests" in stated["warm-up"]


def test_no_name_of_machine_or_user_is_disclosed(disclosed: dict) -> None:
    text = json.dumps(disclosed)
    assert str(Path.home()) not in text.replace(json.dumps(disclosed["artifacts"]["command"]), "")
    assert platform.node() not in text or len(platform.node()) < 5


def test_ceilings_and_a_profile_go_in_when_given() -> None:
    roof = from_datasheet("NVIDIA H200")
    with_both = disclose("cpu", workloads=1, correctness=1, ceilings=roof, profiling={"tool": "ncu"})
    assert with_both["platform"]["ceilings"]["source"] == "datasheet"
    assert with_both["profiling"] == {"tool": "ncu"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/somewhere/bin/weft", "bench", "tccg", "--out", "a b"], "weft bench tccg --out 'a b'"),
        (["/somewhere/src/weft/__main__.py", "demo"], "python -m weft demo"),
    ],
)
def test_command(monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert command() == text


class TestCommit:
    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A repository of its own that holds a package named weft, standing in for the real one."""
        monkeypatch.delenv("WEFT_COMMIT", raising=False)
        package = tmp_path / "weft"
        package.mkdir()
        (package / "__init__.py").write_text("")
        monkeypatch.setattr(stamp, "__file__", str(package / "stamp.py"))
        self._git(tmp_path, "init", "--quiet")
        return tmp_path

    def _git(self, place: Path, *arguments: str) -> str:
        identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=place, capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        return done.stdout.strip()

    def test_of_clean_and_of_changed_sources(self, repository: Path) -> None:
        assert commit() is None  # no commit yet
        self._git(repository, "add", "weft")
        self._git(repository, "commit", "--quiet", "-m", "one")
        head = self._git(repository, "rev-parse", "HEAD")
        assert commit() == head
        (repository / "untracked").touch()
        assert commit() == head
        (repository / "weft" / "__init__.py").write_text("changed = True\n")
        assert commit() == head + "+changes"

    def test_of_someone_elses_repository_is_not_claimed(self, repository: Path) -> None:
        (repository / "other").touch()
        self._git(repository, "add", "other")
        self._git(repository, "commit", "--quiet", "-m", "theirs")
        assert commit() is None

    def test_can_be_said_from_outside(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_COMMIT", "abc123")
        assert commit() == "abc123"


def test_a_program_that_is_absent_or_fails_says_nothing() -> None:
    assert stamp.output_of("no-such-program-anywhere") is None
    assert stamp.output_of(sys.executable, "-c", "raise SystemExit(3)") is None
    assert stamp.output_of(sys.executable, "-c", "print('  \\x1b[4myes\\x1b[0m ')") == "yes"


@pytest.mark.gpu
def test_a_gpu_is_described() -> None:
    about = disclose("cuda", workloads=WORKLOADS, correctness=CORRECTNESS)
    assert missing(about) == []
    assert about["platform"]["device"]["processors"] > 0
    assert about["platform"]["gpus visible"] >= 1
    assert about["software"]["toolkit"]
    json.dumps(about, allow_nan=False)


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
    told("accuracy", "--device", "cpu", "--most", "64", "--side", "16", "--out", tmp_path)
    record = json.loads((tmp_path / "accuracy.json").read_text())
    assert len(record["rows"]) == 10
    assert record["device"]["kind"] == "cpu"
    assert "| e4m3 |" in (tmp_path / "README.md").read_text()

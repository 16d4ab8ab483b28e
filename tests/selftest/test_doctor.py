"""`weft doctor` and what `weft info` says of the self-test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import weft
from support import own_cache
from weft.cli.main import app
from weft.cpu.machine_code import pack_state
from weft.machine.stamp import components, runs, together
from weft.planner import registry, verdicts
from weft.planner.target import target_of
from weft.selftest.cases import TRIALS


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    own_cache(monkeypatch, tmp_path)
    verdicts.forget()
    yield
    verdicts.forget()
    registry.imported.cache_clear()


def doctor(*options: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--backend", "cpu", *options])


def permutations_go_wrong(patch: pytest.MonkeyPatch) -> None:
    for family in ("weft.cpu.permute.family", "weft.library.permutations"):
        patch.setattr(import_module(family), "build", lambda *_: lambda x, c, d, alpha, beta: d.fill_(7))


def test_all_is_well() -> None:
    done = doctor()
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line.startswith("cpu ")]
    verdict = {" ".join(row[1:-4]): row[-1] for row in rows if row[-1] == "passed"}
    assert verdict.keys() == {
        "library", "cpu gett", "cpu stream", "exponentials", "pre_reduce", "cpu permute",
        "permutations",
        "cpu transpose",
    }  # fmt: skip
    assert f"torch {torch.__version__}" in done.output
    assert pack_state() in done.output


def test_a_family_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    permutations_go_wrong(monkeypatch)
    done = doctor()
    assert done.exit_code == 1
    [row] = [line for line in done.output.splitlines() if line.startswith("cpu      cpu permute")]
    assert "failed: squares: " in row


def test_what_it_finds_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        permutations_go_wrong(patch)
        doctor()
    with pytest.raises(weft.UnsupportedError, match="excluded on this machine"):
        weft.permute(torch.zeros(2, 3), "ab->ba", backend="cpu")
    assert doctor().exit_code == 0
    assert weft.permute(torch.zeros(2, 3), "ab->ba", backend="cpu").shape == (3, 2)


def test_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    permutations_go_wrong(monkeypatch)
    done = doctor("--json")
    assert done.exit_code == 1
    found: dict[str, Any] = json.loads(done.stdout)
    by_name = {each["family"]: each for each in found["families"]}
    assert {name: each["verdict"] for name, each in by_name.items()} == {
        "library": "passed", "cpu gett": "passed", "cpu stream": "passed",
        "exponentials": "passed", "pre_reduce": "passed",
        "cpu permute": "failed", "permutations": "failed", "cpu transpose": "passed",
    }  # fmt: skip
    assert "elements wrong" in by_name["cpu permute"]["reason"]
    assert found["backends"]["cpu"]["versions"]["torch"] == torch.__version__


def test_a_family_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.selftest import cases

    lost = [cases.Trial("weft.cpu.lost", trial.case) for trial in cases.TRIALS["cpu"][:1]]
    monkeypatch.setitem(cases.TRIALS, "cpu", (*cases.TRIALS["cpu"], *lost))
    done = doctor()
    assert done.exit_code == 1
    assert "broken: it cannot be imported" in " ".join(done.output.split())


def test_a_backend_that_is_none() -> None:
    done = CliRunner().invoke(app, ["doctor", "--backend", "fortran"])
    assert done.exit_code == 2
    assert "none of auto, triton, cpu" in done.output


def info_line() -> str:
    done = CliRunner().invoke(app, ["info", "--device", "cpu", "--no-measure"])
    [line] = [line for line in done.output.splitlines() if line.startswith("self-test")]
    return line


def test_info_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cpu: no family yet" in info_line()
    weft.permute(torch.zeros(2, 3), "ab->ba", backend="cpu")
    assert f"cpu: 1 of {len({trial.family for trial in TRIALS['cpu']})} families, " in info_line()
    assert info_line().endswith("all passed")
    permutations_go_wrong(monkeypatch)
    doctor()
    assert "; permute excluded on this machine, its self-test failed under torch" in info_line()
    monkeypatch.setenv("WEFT_SELFTEST", "0")
    assert info_line().endswith("cpu: off (WEFT_SELFTEST)")


class TestVersions:
    def test_every_run_agrees_with_itself(self) -> None:
        for run in runs():
            assert together(run["backend"], run)
            assert all(each.known for each in components(run["backend"], run))

    def test_what_differs_is_named(self) -> None:
        run = next(run for run in runs() if run["backend"] == "triton")
        here = {**run, "triton": "99.1.0", "torch": run["torch"].partition("+")[0] + "+other"}
        assert not together("triton", here)
        [other] = [each for each in components("triton", here) if not each.known]
        assert (other.name, other.version) == ("triton", "99.1.0")
        assert run["triton"] in other.tested

    def test_a_patch_release_is_no_other_version(self) -> None:
        run = next(run for run in runs() if run["backend"] == "triton")
        major, minor, *_ = run["triton"].split(".")
        assert together("triton", {**run, "triton": f"{major}.{minor}.77"})
        assert not together("triton", {**run, "triton": f"{major}.{minor}7.0"})


def test_the_target_of_a_record_is_the_device_not_its_number() -> None:
    target = target_of("cpu", torch.device("cpu"))
    assert verdicts.key("weft.library.family", "cpu", target)["environment"]["torch"] == torch.__version__


def test_the_phases_of_a_first_call_are_those_of_a_fresh_process() -> None:
    found = CliRunner().invoke(app, ["doctor", "--first-call", "--device", "cpu", "--json"])
    assert found.exit_code == 0, found.output
    phases = {name: (seconds, who) for name, seconds, who in json.loads(found.output)["phases"]}
    assert phases["import torch"][0] > 0.1  # nothing was imported before the clock ran
    assert {"first weft.contract", "first with a function", "first torch.einsum"} <= set(phases)
    assert {who for _, who in phases.values()} == {"torch", "weft", "alongside"}


def test_a_first_call_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cli.first_call.__file__", "/nowhere/first_call.py")
    found = CliRunner().invoke(app, ["doctor", "--first-call", "--device", "cpu"])
    assert found.exit_code != 0
    assert "a first call on cpu fails" in found.output

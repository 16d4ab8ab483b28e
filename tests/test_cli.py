"""The command line: what it prints, and that errors are one line and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import weft
from weft.cli import main, terminal
from weft.machine import ceilings
from weft.machine.ceilings import Probe

EXAMPLE = ["explain", "ecbfa,fd->abcde", "--extents", "a=16,b=16,c=16,d=64,e=16,f=64"]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ceilings, "_known", {})
    monkeypatch.setattr(ceilings, "STEADY", float("inf"))  # one sample of a tiny product is never repeatable
    monkeypatch.setattr(Probe, "of", classmethod(lambda cls, _: cls(1 << 16, (32,), 0.0)))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, arguments)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_module_is_the_command_and_says_its_version() -> None:
    done = python("-m", "weft", "--version")
    assert (done.returncode, done.stdout.strip()) == (0, weft.__version__)


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["explain", "--help"], ["info", "--help"]])
def test_help(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 0


def test_importing_the_command_brings_neither_triton_nor_matplotlib() -> None:
    done = python("-c", "import sys, weft.cli.main; print([m for m in ('triton', 'matplotlib') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_explains_for_a_gpu_that_is_not_here() -> None:
    done = run(*EXAMPLE, "--dtype", "float16", "--out-dtype", "float32", "--b-fn", "elu", "--target", "sm_90")
    assert done.exit_code == 0, done.output
    assert "by the triton backend on NVIDIA H200" in done.output
    assert "stored A float16, B float16, D float32; products float16 (ieee), summed in float32" in done.output
    assert "b_fn = elu" in done.output


def test_explains_for_this_machine() -> None:
    done = run(
        *EXAMPLE, "--dtype", "complex64", "--precision", "ieee", "--accumulate", "complex128", "--backend", "cpu"
    )
    assert done.exit_code == 0, done.output
    assert "products complex64 (ieee), summed in complex128" in done.output


def test_explain_allocates_no_operands() -> None:
    """Operands of 32 TiB, and a plan for them."""
    done = run(
        "explain", "mk,kn->mn", "--extents", "m=4194304,k=4194304,n=64", "--dtype", "float16", "--target", "sm_90"
    )
    assert done.exit_code == 0, done.output
    assert "M = 4194304, N = 64, K = 4194304" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "mk,kn->mx", "--extents", "m=2,k=3,n=4"], "output label 'x' stands in no input"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3"], "no extent is given for 'n'"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4,m=5"], "gives 'm' twice: 2 and 5"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=three,n=4"], "'k=three' in --extents is not of the form a=16"),
        (
            ["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4", "--dtype", "half_float"],
            "'half_float' names no number type",
        ),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4", "--dtype", "int8"], "out_dtype"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4", "--a-fn", "no_such"], "a function 'no_such'"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4", "--epilogue", "sum"], "sum cannot be fused"),
        (["explain", "mk,kn->mn", "--extents", "m=2,k=3,n=4", "--target", "gfx942"], "target 'gfx942' is none of"),
        (["demo", "--cases", "77"], "case '77' is none of"),
        (["demo", "--device", "cuda:99"], "device 'cuda:99' is not there"),
        (["demo", "--backend", "fast"], "backend 'fast' is none of"),
        (["demo", "--json", "no/such/folder/x.json"], "no/such/folder is no directory"),
        (["info", "--device", "abacus"], "'abacus' is no device"),
    ],
)
def test_errors_are_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("weft: ")
    assert said in line


def test_errors_leave_no_traceback_in_a_shell() -> None:
    done = python("-m", "weft", "explain", "mk,kn->mn", "--extents", "m=2")
    assert done.returncode == 2
    assert done.stderr.strip() == "weft: no extent is given for 'k', 'n'"


def test_info_measures_ceilings_once_and_keeps_them(empty_cache: Path) -> None:
    assert "not known" in run("info", "--device", "cpu", "--no-measure").output
    first = run("info", "--device", "cpu")
    assert first.exit_code == 0, first.output
    assert "ceilings    measured 20" in first.output
    (kept,) = empty_cache.rglob("*.json")
    measured = json.loads(kept.read_text())["value"]
    assert f"torch {torch.__version__}" in first.output
    assert f"weft {weft.__version__}" in first.output
    assert f"{empty_cache}: 1 file, {kept.stat().st_size} B" in first.output
    assert measured["date"] in first.output
    assert measured["date"] in run("info", "--device", "cpu", "--no-measure").output


def test_info_measures_anew_when_asked(empty_cache: Path) -> None:
    run("info", "--device", "cpu")
    (kept,) = empty_cache.rglob("*.json")
    before = kept.read_text()
    assert run("info", "--device", "cpu", "--refresh").exit_code == 0
    assert kept.read_text() != before


@pytest.mark.parametrize("extents", ["i=\u00b2,j=64,k=64", "i=4611686018427387904,j=64,k=64", f"i={'9' * 20},j=1,k=1"])
def test_extents_that_cannot_be_are_refused_in_a_line(extents: str) -> None:
    done = run("explain", "ij,jk->ik", "--extents", extents)
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_long_step_is_said_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps that are over at once are not."""
    monkeypatch.setattr(terminal, "PATIENCE", 0.05)
    with terminal.progress("profile", 3) as step:
        step("plan and check")
        step("time")
        time.sleep(0.3)
    said = capsys.readouterr()
    assert said.err.endswith("profile: time\n")
    assert said.out == ""
    monkeypatch.setattr(terminal, "PATIENCE", 60.0)
    with terminal.progress("profile", None) as step:
        step("over at once")
    assert capsys.readouterr().err == ""

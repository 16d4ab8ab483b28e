"""Processes that compile: none where this one is no Python, none that outlives its parent, and no module of others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import weft
import weft_bench
from tune_problems import described
from weft.api.describe import TARGETS
from weft.base import interpreter
from weft.cli import first_call
from weft.gpu.warp_specialized import family as warp_specialized
from weft.planner.planner import choose
from weft.plans.arrival import close_compilers, planned_elsewhere
from weft.tune.compile_pool import Compiler

H100 = TARGETS["sm_90"]

PROGRAMS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "frozen": lambda changing: changing.setattr(sys, "frozen", True, raising=False),
    "embedded": lambda changing: changing.setattr(sys, "executable", "/opt/a program"),
    "without a name": lambda changing: changing.setattr(sys, "executable", ""),
    "with none": lambda changing: changing.setattr(sys, "executable", None),
}


def submitted() -> None:
    contraction = described("ik,jk->ij", (64, 64), (64, 64), dtype=torch.float16)
    with Compiler(H100, "triton", jobs=1) as compiler:
        future = compiler.submit(contraction, choose(contraction, "triton", H100).best)
        assert future.result(timeout=5) is None


def planned() -> None:
    assert planned_elsewhere(described("ik,jk->ij", (64, 64), (64, 64)), H100, None) is None
    close_compilers()


def probed() -> None:
    assert warp_specialized.asked(90)["passing"]


def timed() -> None:
    with pytest.raises(OSError, match="no Python interpreter"):
        first_call.measured("cpu")


@pytest.mark.parametrize("door", [submitted, planned, probed, timed])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_python_in_it_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, program: str, door: Callable[[], None]
) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError("it is started")

    PROGRAMS[program](monkeypatch)
    monkeypatch.setattr(subprocess, "Popen", never)
    monkeypatch.setattr(subprocess, "run", never)
    door()


@pytest.mark.parametrize("name", ["python", "python3", "python3.13t", "Python", "python.exe", "pypy3"])
def test_names_of_pythons(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "executable", f"/opt/bin/{name}")
    assert interpreter.command("-c", "pass") == [f"/opt/bin/{name}", "-P", "-c", "pass"]


def test_pythons_are_started_by_one_room() -> None:
    folders = Path(weft.__file__).parent, Path(weft_bench.__file__).parent
    sources = [file for folder in folders for file in folder.rglob("*.py")]
    found = {file.name for file in sources if re.search(r"sys\.executable", file.read_text())}
    assert found == {"interpreter.py"}


#: Starts compilers, forks a child that holds their pipe as a DataLoader's worker does, and ends without any farewell.
_PARENT = """
import os, time, torch, weft
from weft.api.describe import TARGETS
from weft.planner.planner import choose
from weft.tune.compile_pool import Compiler

a = torch.empty(64, 64, dtype=torch.half, device="meta")
contraction = weft.plan("ik,jk->ij", a, a, backend="reference").contraction
rank = next(r for r in choose(contraction, "triton", TARGETS["sm_90"]).ranked if r.schedule.family == "simt")
compiler = Compiler(TARGETS["sm_90"], "triton", jobs=1)
future = compiler.submit(contraction, rank)
future.result()
if (child := os.fork()) == 0:
    time.sleep(60)
    os._exit(0)
print(compiler._process.pid, child, flush=True)
os._exit(0)
"""


def test_compilers_end_with_their_parent_and_run_nothing_of_the_working_folder(tmp_path: Path) -> None:
    for module in ("base64", "pickle", "zlib", "weft"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('it ran')\n")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "WEFT_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"), "TRITON_INTERPRET": "0",
    }  # fmt: skip
    with open(tmp_path / "stderr", "w") as stderr, subprocess.Popen(
        [sys.executable, "-P", "-c", _PARENT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=stderr
    ) as parent:
        assert parent.stdout is not None
        compilers, child = map(int, parent.stdout.readline().split())
        try:
            assert parent.wait(20) == 0
            until = time.monotonic() + 20
            while _runs(compilers) and time.monotonic() < until:
                time.sleep(0.05)
            assert not _runs(compilers)
        finally:
            os.kill(child, 9)
    assert (tmp_path / "stderr").read_text() == ""
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "cache" / "cubins").iterdir())


def _runs(process: int) -> bool:
    """Whether a process is there and has not ended, whoever is to take leave of it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The types that type checkers see, on a sample: what is right passes, each line marked as an error is one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weft

SAMPLE = Path(__file__).with_name("typed_sample.py")
MARKED = {at for at, line in enumerate(SAMPLE.read_text().splitlines(), 1) if "# error: " in line}
ROOT = SAMPLE.parents[2]
LINTED = ROOT / ".mypy_cache" / f"{sys.version_info.major}.{sys.version_info.minor}"  # what `make lint` has read
SOURCES = Path(weft.__file__).parents[1]


@pytest.mark.slow  # pyright reads the same sample
def test_mypy() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    # With the options of `make lint` what it has read is not read again; alone the sample needs a part of the modules.
    alone = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={LINTED.parent / 'typed_sample'}"]
    options = [] if LINTED.exists() else alone
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *options, str(SAMPLE)],
        capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, env={"MYPYPATH": str(SOURCES), "PATH": ""},
    )  # fmt: skip
    found = {int(line) for line in re.findall(rf"{SAMPLE.name}:(\d+): error", done.stdout)}
    assert found == MARKED, done.stdout + done.stderr


def test_pyright() -> None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("pyright", path=beside)
    if program is None or shutil.which("node") is None:
        pytest.skip("pyright, which the extra `dev` brings, or the node that it runs in is not installed")
    command = [program, "--outputjson", "--pythonpath", sys.executable, str(SAMPLE)]
    here = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, env=here)
    errors = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert {each["range"]["start"]["line"] + 1 for each in errors} == MARKED, done.stdout

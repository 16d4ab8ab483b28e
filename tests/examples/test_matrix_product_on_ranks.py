"""The example of `docs/distributed.md` under torchrun, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import DOCS, ROOT

pytestmark = pytest.mark.early
EXAMPLE = ROOT / "examples" / "matrix_product_on_ranks.py"


def test_the_example_runs_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=around, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "mk,kn->mn over 2 ranks" in run.stdout
    assert "\nranks share out '" in run.stdout
    assert "rank 1    compute" in run.stdout


@pytest.mark.slow
def test_the_command_runs_under_torchrun(tmp_path: Path) -> None:
    words = ["profile", "mk,kn->mn", "--extents", "m=30,n=20,k=64", "--dtype", "float32", "--functions",
             "epilogue=relu", "--placements", "a=k,b=k,d=m",
             "--device", "cpu", "--budget", "0.01", "--out", str(tmp_path)]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "weft"]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, env=around, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.count("mk,kn->mn over 2 ranks, mesh 2") == 1
    assert "rank 1    compute" in run.stdout
    assert len(json.loads((tmp_path / "timelines.json").read_text())["measured"]) == 2


def test_the_page_names_the_example() -> None:
    assert f"examples/{EXAMPLE.name}" in (DOCS / "distributed.md").read_text()

"""The example of `docs/distributed.md` under torchrun, on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys

from pages import DOCS, ROOT

EXAMPLE = ROOT / "examples" / "matrix_product_on_ranks.py"


def test_the_example_runs_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=around, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "mk,kn->mn over 2 ranks" in run.stdout
    assert "\nranks share out '" in run.stdout
    assert "measured: " in run.stdout


def test_the_page_names_the_example() -> None:
    assert f"examples/{EXAMPLE.name}" in (DOCS / "distributed.md").read_text()

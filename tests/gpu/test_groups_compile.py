"""What the kernels for groups and chains compile to on GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.early


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, object]]:
    script = Path(__file__).with_name("groups_report.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_kernel_compiles_everywhere_and_spills_nothing(report: dict[str, dict[str, object]]) -> None:
    assert len(report) == 4 * (9 + 2) + 8 + 2
    assert not [name for name, found in report.items() if found["local"]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_products_run_on_matrix_units(report: dict[str, dict[str, object]], dtype: str) -> None:
    for case in ("small", "mixed", "chain 1", "chain 256"):
        found = report[f"{case} {dtype} sm_90"]
        assert found["mma"] or found["wgmma"], case


def test_complex_products_run_on_matrix_units(report: dict[str, dict[str, object]]) -> None:
    assert report["mixed complex128 sm_90"]["mma"]

"""What kernels at hand compile to on GPUs that are not here: wide accesses where runs are stated, matrix units."""

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
    script = Path(__file__).with_name("at_hand_report.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_kernel_compiles_everywhere_and_spills_nothing(report: dict[str, dict[str, object]]) -> None:
    assert len(report) == 4 * 8 + 1
    for name, found in report.items():
        assert name == "keys" or found["local"] == 0, name


def test_extents_are_no_part_of_what_triton_compiles(report: dict[str, dict[str, object]]) -> None:
    """Left alone it compiles integers in that are 1, and takes note of those that are multiples of 16."""
    assert report["keys"] == {"kernels": 1}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_stated_runs_are_accessed_16_bytes_at_once(report: dict[str, dict[str, object]], architecture: str) -> None:
    for name in ("large", "strips"):
        found = report[f"{name} {architecture}"]
        assert found["cp.async"] or found["ld.global"], name
        assert found["cp.async"] == found["cp.async.16"], name
        assert found["st.global"] == found["st.global.16"], name
    for name in ("transposed", "rows"):
        found = report[f"{name} {architecture}"]
        assert found["ld.global"] == found["ld.global.16"], name
        assert found["st.global"] == found["st.global.16"], name


def test_large_products_run_on_matrix_units(report: dict[str, dict[str, object]]) -> None:
    for architecture, unit in (("sm_80", "mma"), ("sm_90", "wgmma"), ("gfx942", "mfma"), ("sm_100", "tcgen05")):
        assert report[f"large {architecture}"][unit], architecture
    assert report["double sm_90"]["mma"]


def test_small_kernels_stay_small(report: dict[str, dict[str, object]]) -> None:
    """A kernel that runs two microseconds must not spend them on fetching its own code."""
    assert int(str(report["small sm_90"]["lines"])) < 3000
    assert int(str(report["modes sm_90"]["lines"])) < 4500

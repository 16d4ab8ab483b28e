"""Shape-generic kernels as GPUs that are not here get them: wide accesses where runs are stated, matrix units."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early
FEW = ("keys", "* sm_90", "large gfx942")


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("generic_report.py", FEW, request.param)


def test_every_kernel_compiles_everywhere_and_spills_nothing(report: Report) -> None:
    assert report
    for name, found in report.items():
        assert found["local"] == found.get("unread", 0) == 0, name


def test_extents_are_no_part_of_what_triton_compiles(report: Report) -> None:
    """Left alone it compiles integers in that are 1, and takes note of those that are multiples of 16."""
    assert report["keys"]["kernels"] == 1


@pytest.mark.parametrize("architecture", ["sm_90", slow("sm_80"), slow("sm_100")])
def test_stated_runs_are_accessed_16_bytes_at_once(report: Report, architecture: str) -> None:
    for name in ("large", "strips"):
        found = report[f"{name} {architecture}"]
        assert found["cp.async"] or found["ld.global"], name
        assert found["cp.async"] == found["cp.async.16"], name
        assert found["st.global"] == found["st.global.16"], name
    for name in ("transposed", "rows"):
        found = report[f"{name} {architecture}"]
        assert found["ld.global"] == found["ld.global.16"], name
        assert found["st.global"] == found["st.global.16"], name


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("large sm_90", "wgmma"),
        ("double sm_90", "mma"),
        ("large gfx942", "mfma"),
        slow("large sm_80", "mma"),
        slow("large sm_100", "tcgen05"),
    ],
)
def test_large_products_run_on_matrix_units(report: Report, name: str, unit: str) -> None:
    assert report[name][unit]


def test_small_kernels_stay_small(report: Report) -> None:
    """A kernel that runs two microseconds must not spend them on fetching its own code."""
    assert report["small sm_90"]["lines"] < 3000
    assert report["modes sm_90"]["lines"] < 4500

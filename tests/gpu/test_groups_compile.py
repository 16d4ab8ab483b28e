"""What the kernels for groups compile to on GPUs that are not here."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early
FEW = ("* float16 sm_90", "mixed complex128 sm_90", "mixed float32 gfx942", "modes sm_90")


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("groups_report.py", FEW, request.param)


def test_every_kernel_compiles_everywhere_and_spills_nothing(report: Report) -> None:
    assert report
    assert not [name for name, found in report.items() if found["local"] or found["unread"]]


@pytest.mark.parametrize("dtype", ["float16", slow("bfloat16"), slow("float64")])
def test_products_run_on_matrix_units(report: Report, dtype: str) -> None:
    for case in ("small", "mixed"):
        found = report[f"{case} {dtype} sm_90"]
        assert found["mma"] or found["wgmma"], case


def test_complex_products_run_on_matrix_units(report: Report) -> None:
    assert report["mixed complex128 sm_90"]["mma"]


@pytest.mark.parametrize("dtype", ["float16", slow("bfloat16"), slow("float32"), slow("float64")])
def test_groups_of_whole_vectors_move_nothing_less(report: Report, dtype: str) -> None:
    found = report[f"large {dtype} sm_90"]
    assert found["cp.async"] == found["cp.async.16"] > 0
    assert found["st.global"] == found["st.global.16"] > 0
    assert found["wgmma"] or dtype not in ("float16", "bfloat16")

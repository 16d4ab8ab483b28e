"""What complex contractions compile to besides real kernels: whole 16-byte accesses, and no spills."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early

KINDS = ("along_k", "across_k", "plain", "scatter D", "combine D")
FEW = (
    "complex64 sm_90", "complex128 gfx942", "functions sm_90", "direct gate complex64 *", "direct thin tf32 *",
    "aux complex128 *", "fused complex64 *",
)  # fmt: skip


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("complex_report.py", FEW, request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["complex64 sm_90", slow("complex128 sm_90"), slow("conjugates sm_90")])
def test_accesses_are_of_16_bytes(name: str, kind: str, report: Report) -> None:
    found = report[name][kind]
    assert found["ld.global"] == found["ld.global.16"] > 0
    assert found["st.global"] == found["st.global.16"] > 0
    assert not found["local"]
    assert not found["unread"]


def test_products_where_operands_lie(report: Report) -> None:
    """D is written by whole words, large operands are read so, and no accumulator leaves its registers."""
    direct = {name: found for name, found in report.items() if name.startswith("direct")}
    assert len(direct) == 2
    for name, found in direct.items():
        assert found["st.global"] == found["st.global.16"] > 0
        assert found["ld.global.16"] + found["cp.async.16"] > 0
        assert not found["local"]
        assert not found["unread"]
        assert "tf32" not in name or found["wgmma"] + found["mma"] > 0


@pytest.mark.parametrize("name", [slow("complex64"), "complex128"])
def test_operands_of_functions(name: str, report: Report) -> None:
    """Full operands and further results move in whole 16-byte accesses too, of whatever type."""
    steps = report[f"aux {name} sm_90"]
    for kind in ("A along_k", "A across_k", "A plain", "B", "D"):
        assert not steps[kind]["local"]
    assert steps["D"]["st.global"] == steps["D"]["st.global.16"] > 0
    packed = steps["A across_k"]
    assert packed["st.global"] == packed["st.global.16"] > 0
    assert packed["ld.global.16"] > 0


@pytest.mark.parametrize("name", ["complex64", slow("complex128")])
def test_results_of_functions(name: str, report: Report) -> None:
    fused = report[f"fused {name} sm_90"]
    assert fused["st.global"] == fused["st.global.16"] > 0
    assert not fused["local"]


def test_everywhere_and_with_functions(report: Report) -> None:
    assert set(KINDS) <= set(report["complex128 gfx942"])
    stored = report["functions sm_90"]["scatter D"]
    assert stored["st.global"] == stored["st.global.16"] > 0


@pytest.mark.slow
def test_reduced_precision_on_an_earlier_device(report: Report) -> None:
    assert report["complex64 tf32 sm_80"]["along_k"]["st.global.16"]

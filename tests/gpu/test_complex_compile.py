"""What complex contractions compile to besides real kernels: whole 16-byte accesses, and no spills."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from gpu.reporting import reported

pytestmark = pytest.mark.early

KINDS = ("along_k", "across_k", "plain", "scatter D", "combine D")


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, int]]:
    return reported("complex_report.py")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["complex64 sm_90", "complex128 sm_90", "conjugates sm_90"])
def test_accesses_are_of_16_bytes(name: str, kind: str, report: dict[str, dict[str, int]]) -> None:
    found = report[f"{name} {kind}"]
    assert found["ld.global"] == found["ld.global.16"] > 0
    assert found["st.global"] == found["st.global.16"] > 0
    assert not found["local"]
    assert not found["unread"]


@pytest.mark.parametrize("name", ["gate complex64", "gate complex128", "thin tf32", "thin complex128"])
def test_products_where_operands_lie(name: str, report: dict[str, dict[str, int]]) -> None:
    """D is written by whole words, large operands are read so, and no accumulator leaves its registers."""
    found = report[f"direct {name} sm_90"]
    assert found["st.global"] == found["st.global.16"] > 0
    assert found["ld.global.16"] + found["cp.async.16"] > 0
    assert not found["local"]
    assert not found["unread"]
    if name == "thin tf32":
        assert found["wgmma"] + found["mma"] > 0


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_operands_of_functions(name: str, report: dict[str, dict[str, int]]) -> None:
    """Full operands and further results move in whole 16-byte accesses too, of whatever type."""
    for kind in ("A along_k", "A across_k", "A plain", "B", "D"):
        assert not report[f"aux {name} sm_90 {kind}"]["local"]
    finished = report[f"aux {name} sm_90 D"]
    assert finished["st.global"] == finished["st.global.16"] > 0
    fused = report[f"fused {name} sm_90"]
    assert fused["st.global"] == fused["st.global.16"] > 0
    assert not fused["local"]
    packed = report[f"aux {name} sm_90 A across_k"]
    assert packed["st.global"] == packed["st.global.16"] > 0
    assert packed["ld.global.16"] > 0


def test_everywhere_and_with_functions(report: dict[str, dict[str, int]]) -> None:
    assert {f"complex128 gfx942 {kind}" for kind in KINDS} <= set(report)
    assert report["complex64 tf32 sm_80 along_k"]["st.global.16"]
    stored = report["functions sm_90 scatter D"]
    assert stored["st.global"] == stored["st.global.16"] > 0

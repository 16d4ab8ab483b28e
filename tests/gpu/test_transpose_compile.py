"""What the kernels of transposition in place, and a permutation, compile to on GPUs that are not here."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from gpu.reporting import reported

pytestmark = pytest.mark.early

TABLES = {"save": 16, "move": 16}  # most accesses to the tables: two for each slot of a thread


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, int]]:
    return reported("transpose_report.py")


def test_elements_move_by_accesses_of_16_bytes(report: dict[str, dict[str, int]]) -> None:
    """But where slots are no multiple of 16 bytes long."""
    for name, found in report.items():
        if " 301 " not in name:
            assert found["of 16 bytes"] >= 4, name
            assert found["accesses"] - found["of 16 bytes"] <= TABLES.get(name.split()[0], 0), name


def test_nothing_spills(report: dict[str, dict[str, int]]) -> None:
    assert len(report) == 20
    for name, found in report.items():
        assert found["spills"] == 0, name


def test_complex_numbers_are_permuted_whole(report: dict[str, dict[str, int]]) -> None:
    """Read along the source and written along the result, 16 bytes at a time, and between the two in shared memory."""
    found = report["permute complex128 sm_90"]
    assert found["stored in shared memory"] == found["accesses"] / 2 == found["of 16 bytes"] / 2 > 0

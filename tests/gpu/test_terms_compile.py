"""Products of terms in one kernel: what the kernels compile to for Hopper."""

import pytest

pytest.importorskip("triton")
from gpu.reporting import Report, slow

pytestmark = pytest.mark.early

FEW = ("bf16x6",)


@pytest.mark.parametrize("name", [*FEW, slow("fp16x3 split_k"), slow("bf16x6 turned"), slow("fp16x3")])
def test_what_is_compiled(name: str) -> None:
    found = Report("terms_report.py", FEW, name not in FEW)[name]
    assert found["spilled"] == 0
    assert found["passes"] == 8  # of zeros, of peaks, of terms by two schemes, and the verdict
    assert not found["serialized"]
    assert found["local"] == found["unfenced"] == found["unmet"] == found["unawaited"] == found["unread"] == 0
    # Of the first step of a run and of all others, by two consumers.
    assert found["wgmma"] == 4 * found["products"] * found["depth"] // 16
    assert found["unwritten"] == []

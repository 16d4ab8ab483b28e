"""Every family's kernels compile for every device that it serves, and use that device's own instructions.

The report is made by the Triton that is installed. `make test-tritons` puts others in its place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from gpu.devices import DEVICES, TASKS, page
from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early

EVERYWHERE = {
    "gett_kernel", "permute_pair_kernel", "permute_kernel", "semiring_kernel", "reduce_splits_kernel", "simt_kernel",
    "complex_direct_kernel", "interleaved_kernel", "square_kernel",
}  # fmt: skip
FEW = ("sm_90", "gfx942")
EACH = [name if name in FEW else slow(name) for name in DEVICES]
MATRIX_INSTRUCTIONS = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("devices_report.py", FEW, request.param)


def test_the_page_of_devices_says_what_the_families_say() -> None:
    """Made anew by ``PYTHONPATH=src:tests python -m gpu.devices > docs/devices.md``."""
    written = Path(__file__).parents[2] / "docs" / "devices.md"
    assert written.read_text() == page()


@pytest.mark.parametrize("device", EACH)
def test_all_kernels_compile(device: str, report: Report) -> None:
    found = report[device]
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    assert found.keys() >= EVERYWHERE
    families = {each["family"] for each in found.values()}
    served = TASKS["warp_specialized"].room.supports(TASKS["warp_specialized"].describe(), DEVICES[device]) is None
    assert ("warp_specialized" in families) == served


@pytest.mark.parametrize("device", EACH)
def test_products_run_on_the_matrix_units_of_the_device(device: str, report: Report) -> None:
    own = MATRIX_INSTRUCTIONS[device]
    kernel = report[device]["gett_kernel"]
    assert kernel[own]
    assert not any(kernel[other] for other in MATRIX_INSTRUCTIONS.values() if other != own)


def test_the_tensor_memory_accelerator_loads_on_hopper(report: Report) -> None:
    assert report["sm_90"]["ws_kernel"]["cp.async.bulk"]
    assert not report["sm_90"]["ws_kernel"]["ld.global"]


def test_nothing_spills_and_nothing_comes_too_early(report: Report) -> None:
    """Only programs of a device that can let them follow one another wait for the launch before, and then first."""
    for device, kernels in report.items():
        for name, found in kernels.items():
            assert found["local"] == found["unawaited"] == found["unfenced"] == found["unmet"] == 0, (device, name)
            assert found["unread"] == 0, (device, name)
            assert found["waits"] == (device in ("sm_90", "sm_100")), (device, name)

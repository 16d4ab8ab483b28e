"""What the kernels compile to on GPUs that are not here: the instructions that decide their speed, and no spills."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import triton

from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early

STORES_FIRST = triton.__version__.startswith("3.9.")  # both operands are in shared memory before the threads meet
FENCED_LATE = ("masked 24 sm_90", "step sm_90")
# One of each thing that is looked at below.
FEW = (
    "tccg-01 sm_90", "tccg-01 gfx942", "fused sm_90", "tf32 sm_90", "ieee sm_90", "double sm_90", "masked ?? sm_90",
    "step sm_90", "int8 weights sm_90", "e4m3 in gett sm_90", "e4m3 as half sm_90",
)  # fmt: skip


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("compile_report.py", FEW, request.param)


def test_half_precision_runs_on_the_tensor_cores_of_hopper(report: Report) -> None:
    suite = {name: found for name, found in report.items() if name.startswith("tccg") and name.endswith("sm_90")}
    assert suite
    for name, found in suite.items():
        rows = int(str(found["schedule"]).split()[1].partition("x")[0])
        kind, other = ("wgmma", "mma") if rows >= 64 else ("mma", "wgmma")  # a group of warps multiplies 64 rows
        assert found[kind], name
        assert not found[other], name


def test_operands_come_by_accesses_of_16_bytes(report: Report) -> None:
    """Every TCCG operand is contiguous along some mode in runs of 8: nothing narrower may be issued, but for tiles of
    the smaller operand that have no 8 elements for each thread."""
    for name, found in report.items():
        if name.startswith("tccg") and not name.endswith("gfx942"):
            assert found["cp.async"] <= 1.5 * found["cp.async.16"], name
            assert found["ld.global"] <= (2 if _has_few(found["schedule"]) else 1) * found["ld.global.16"], name
            assert found["cp.async"] or found["ld.global"], name


def _has_few(schedule: str) -> bool:
    """Whether the smaller tile of a schedule, "gett 32x256x32 ... warps=8", has no 8 elements for each thread."""
    rows, columns, depth = map(int, schedule.split()[1].split("x"))
    (warps,) = (int(word.removeprefix("warps=")) for word in schedule.split() if word.startswith("warps="))
    return min(rows, columns) * depth < 8 * 32 * warps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf32 tccg-01 sm_90", "tf32 tccg-11 sm_90"])
def test_operands_against_the_sum_of_a_tf32_product_are_not_turned_while_copied(report: Report, name: str) -> None:
    found = report[name]
    assert found["cp.async"] <= 1.5 * found["cp.async.16"]
    assert found["wgmma"] or found["mma"]


@pytest.mark.parametrize(
    "name",
    [
        "tccg-01 sm_90",
        slow("tccg-13 sm_90"),
        slow("tccg-21 sm_90"),
        slow("tccg-01 sm_80"),
        "tf32 sm_90",
        "ieee sm_90",
        "double sm_90",
    ],
)
def test_long_sums_are_loaded_asynchronously(report: Report, name: str) -> None:
    assert report[name]["cp.async"]


def test_results_leave_by_accesses_of_16_bytes(report: Report) -> None:
    for name, found in report.items():
        if not name.endswith("gfx942") and not name.startswith("simt"):
            assert found["st.global"] == found["st.global.16"], name


def test_nothing_spills(report: Report) -> None:
    for name, found in report.items():
        assert found["local"] == 0, name


def test_matrix_units_read_what_threads_stored_only_after_their_fences(report: Report) -> None:
    for name, found in report.items():
        assert found["unfenced"] == 0 or (STORES_FIRST and name in FENCED_LATE), name


@pytest.mark.xfail(
    STORES_FIRST, strict=True,
    reason="Triton 3.9 stores A before the threads meet: each thread fences behind the barrier, before its own product",
)  # fmt: skip
@pytest.mark.parametrize("name", ["masked 24 sm_90", "step sm_90"])
def test_operands_that_are_computed_are_fenced_before_the_threads_meet(report: Report, name: str) -> None:
    assert report[name]["unfenced"] == 0


def test_no_uniform_register_is_read_that_nothing_wrote(report: Report) -> None:
    for name, found in report.items():
        assert found["unwritten"] == [], name


def test_a_single_step_asks_for_both_operands_before_the_threads_meet(report: Report) -> None:
    for name in ("step sm_90", "masked 24 sm_90"):
        assert report[name]["wgmma"]
        assert report[name]["late"] == 0, name


def test_masks_behind_functions_leave_loads_to_run_ahead(report: Report) -> None:
    assert report["masked 72 sm_90"]["cp.async"]


def test_nothing_is_read_before_the_launches_before_have_ended(report: Report) -> None:
    for name, found in report.items():
        if not name.endswith("sm_90"):
            assert found["waits"] == 0, name  # their launches do not follow so
        else:
            assert found["waits"] == 1, name
        assert found["unawaited"] == found["unread"] == 0, name


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("tccg-01 gfx942", "mfma"),
        slow("tccg-01 sm_80", "mma"),
        slow("fused gfx942", "mfma"),
    ],
)
def test_other_architectures_use_their_own_matrix_instructions(report: Report, name: str, instruction: str) -> None:
    assert report[name][instruction]


def test_weights_of_a_byte_become_halves_without_a_conversion_each(report: Report) -> None:
    found = report["int8 weights sm_90"]
    assert found["converted integers"] == 0
    assert found["prmt"] >= 32
    assert found["cp.async"]


def test_fused_functions_keep_the_fast_path(report: Report) -> None:
    assert report["fused sm_90"]["wgmma"]
    assert report["fused sm_90"]["cp.async"] == report["fused sm_90"]["cp.async.16"]


def test_single_precision_is_never_shortened_silently(report: Report) -> None:
    """FIELD-BUGS 21: fp32 `tl.dot` silently in TF32."""
    assert report["ieee sm_90"]["wgmma"] == report["ieee sm_90"]["mma"] == 0
    assert report["tf32 sm_90"]["wgmma"]
    assert report["double sm_90"]["mma"]


@pytest.mark.parametrize(
    ("name", "room", "types"),
    [
        slow("int8", "ws", "s32.s8.s8"),
        ("e4m3", "gett", "f32.e4m3.e4m3"),
        slow("int8", "gett", "s32.s8.s8"),
        slow("e5m2", "gett", "f32.e5m2.e5m2"),
    ],
)
def test_products_of_bytes_run_on_the_tensor_cores(report: Report, name: str, room: str, types: str) -> None:
    found = report[f"{name} in {room} sm_90"]
    assert found["types"] == [types]
    assert not found["local"]
    assert (found["cp.async.bulk"] > 0) == (room == "ws")


def test_fp8_is_multiplied_as_half_unless_asked_otherwise(report: Report) -> None:
    assert report["e4m3 as half sm_90"]["types"] == ["f32.f16.f16"]

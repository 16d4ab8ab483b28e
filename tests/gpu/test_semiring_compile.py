"""What kernels of algebras and of functions with operands compile to on GPUs that are not here."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")
from gpu.reporting import PARTS, Report, slow

pytestmark = pytest.mark.early

FEW = ("max_plus float32 sm_90", "split *", "log *", "counting sm_90", "fused gett *", "vector log *")
ADD, FMA, MAX = r"add\.f32", r"fma\.rn\.f32", r"max\.NaN\.f32"
PAIRS, COMPARED = r"s32\.s8\.s8", r"setp\.ne"


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("semiring_report.py", FEW, request.param)


def depth_of(kernel: dict[str, Any]) -> int:
    """Of a step along k."""
    tile = re.match(r"semiring \d+x\d+x(\d+) ", kernel["schedule"])
    assert tile, kernel["schedule"]
    return int(tile[1])


def test_nothing_spills(report: Report) -> None:
    for name, kernels in report.items():
        assert all(kernel["local"] == 0 for kernel in kernels), name


@pytest.mark.parametrize("architecture", ["sm_90", slow("sm_80")])
def test_a_step_is_one_sum_and_one_maximum_for_each_product(architecture: str, report: Report) -> None:
    """8 x 8 elements of D in each thread: nothing is computed twice, and loads run ahead."""
    (kernel,) = report[f"max_plus float32 {architecture}"]
    assert "threads of 8x8" in kernel["schedule"]
    assert kernel[ADD] == kernel[MAX] == 8 * 8 * depth_of(kernel)
    assert kernel["cp.async"] == kernel["cp.async.16"] > 0
    assert kernel["st.global"] == kernel["st.global.16"]


@pytest.mark.slow
def test_products_are_one_instruction_each(report: Report) -> None:
    """Also in the step that overhangs the end of k, which is like the others."""
    (kernel,) = report["products mk,kn->mn sm_90"]
    tile = re.match(r"semiring (\d+)x72x(\d+) .*warps=(\d+)", kernel["schedule"])
    assert tile, kernel["schedule"]
    m, depth, warps = map(int, tile.groups())
    assert kernel[FMA] == m * 72 * depth // (32 * warps)
    assert not kernel[ADD]


@pytest.mark.parametrize(("architecture", "instruction"), [("sm_90", "wgmma"), slow("sm_80", "mma")])
def test_pairs_are_counted_by_integer_matrix_instructions(architecture: str, instruction: str, report: Report) -> None:
    """Of bytes that were each compared with zero where they were packed."""
    packing, product = report[f"counting {architecture}"]
    assert product["schedule"].startswith("counting pairs; ttgt ")
    assert product[PAIRS] == product[instruction] > 0
    assert packing[COMPARED] >= 16 * packing["ld.global.16"] > 0


def test_threads_hold_squares_whatever_is_loaded(report: Report) -> None:
    """Were the layout of a load spread over the products, a thread would read all of a column from shared memory."""
    for name, kernels in report.items():
        if name.startswith("max_plus") and not name.endswith("gfx942"):
            assert kernels[0][r"ld\.shared\.v4"] <= 6 * depth_of(kernels[0]), name


@pytest.mark.slow
def test_sides_in_pieces_compute_no_more_than_they_hold(report: Report) -> None:
    """24 columns in pieces: a thread's products are those of its elements, loads of A and stores stay wide."""
    (kernel,) = report["pieces sm_90"]
    tile = re.match(r"semiring (\d+)x24x(\d+)", kernel["schedule"])
    assert tile, kernel["schedule"]
    assert kernel[ADD] == kernel[MAX] == int(tile[1]) * 24 * int(tile[2]) // 128
    assert kernel["cp.async.16"] >= 2 * (kernel["cp.async"] - kernel["cp.async.16"]) >= 0  # of B, 2 elements a thread
    assert kernel["st.global"] == kernel["st.global.16"] > 0


@pytest.mark.slow
def test_sums_of_exponentials_take_one_for_each_product(report: Report) -> None:
    """And one more for each element of D in each step of 8."""
    (kernel,) = report["exponentials sm_90"]
    assert kernel[MAX] * 9 == kernel[r"ex2\.approx"] * 8


def test_split_reductions_are_combined_by_the_algebra(report: Report) -> None:
    multiply, combine = report["split sm_90"]
    assert multiply[MAX]
    assert combine[MAX]
    assert not combine[ADD]


def test_log_runs_on_matrix_units_and_repairs_by_the_direct_form(report: Report) -> None:
    *_, product, direct = report["log sm_90"]
    assert product["wgmma"]
    assert not direct["wgmma"]
    assert direct[MAX]


def test_functions_with_operands_keep_the_fast_path(report: Report) -> None:
    (kernel,) = report["fused gett sm_90"]
    assert kernel["wgmma"]
    assert kernel["cp.async"] == kernel["cp.async.16"]
    assert kernel["st.global"] == kernel["st.global.16"]


@pytest.mark.slow
def test_functions_with_operands_run_on_the_matrix_units_of_amd(report: Report) -> None:
    assert report["fused matrix gfx942"][0]["mfma"]

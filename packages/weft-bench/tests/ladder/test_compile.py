"""What rungs in Triton and Gluon compile to for Hopper: the instructions that their pages speak of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from forked import printed

pytestmark = pytest.mark.early

REPORT = Path(__file__).with_name("hopper_report.py")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """In a process of its own, as Triton compiles only where it was not told to interpret."""
    names = ("multiply.warp_mma", "multiply.tensor_maps", "multiply.warp_specialization", "tensor.stated_runs")
    return reported(names)


def reported(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return dict(json.loads(printed(REPORT, *names).splitlines()[-1]))


def test_no_kernel_spills_or_runs_matrix_instructions_one_by_one(found: dict[str, dict[str, Any]]) -> None:
    assert len(found) == 4
    for name, each in found.items():
        assert each["spilled"] == 0, name
        assert not each["serialized"], name
        assert each["shared"] <= 232448, name


def test_warps_multiply_by_themselves_and_groups_together(found: dict[str, dict[str, Any]]) -> None:
    assert found["multiply.warp_mma"]["mma.sync"] > 0
    assert found["multiply.warp_mma"]["wgmma.mma_async"] == 0
    for name in ("tensor_maps", "warp_specialization"):
        assert found[f"multiply.{name}"]["wgmma.mma_async"] > 0
        assert found[f"multiply.{name}"]["mma.sync"] == 0


def test_tiles_come_by_threads_or_by_tma(found: dict[str, dict[str, Any]]) -> None:
    by_threads, by_tma = found["multiply.warp_mma"], found["multiply.tensor_maps"]
    assert by_threads["cp.async.cg"] > 0
    assert by_threads["cp.async.bulk.tensor"] == 0
    assert by_tma["cp.async.cg"] == 0
    assert by_tma["cp.async.bulk.tensor"] > 0


def test_roles_trade_registers(found: dict[str, dict[str, Any]]) -> None:
    assert found["multiply.warp_specialization"]["setmaxnreg"] > 0
    assert found["multiply.tensor_maps"]["setmaxnreg"] == 0


def test_consumers_free_the_stage_before(found: dict[str, dict[str, Any]]) -> None:
    """Its number is carried round their loops: frozen at the first one, they would wait for the producer forever."""
    consumers = [loop for loop in found["multiply.warp_specialization"]["carried"] if "sums" in loop]
    assert len(consumers) == 2
    assert all("before" in loop for loop in consumers)


def test_stated_runs_bring_back_copies_of_16_bytes(found: dict[str, dict[str, Any]]) -> None:
    assert found["tensor.stated_runs"]["cp.async.cg"] > 0


@pytest.mark.slow
def test_the_other_kernels(found: dict[str, dict[str, Any]]) -> None:
    """What takes longer to compile, or is there to be slow."""
    names = ("multiply.tf32", "multiply.warpgroup_mma", "tensor.gett")
    others = reported(names)
    assert all(each["spilled"] == 0 and each["wgmma.mma_async"] > 0 for each in others.values())
    assert others["multiply.warpgroup_mma"]["cp.async.cg"] > 0
    assert others["tensor.gett"]["cp.async.cg"] == 0  # elements one by one

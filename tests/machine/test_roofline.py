"""The roofline against the thesis's ridge points, and the floor at its corners."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.machine.datasheets import A100_40GB, A100_80GB, H100, H200, Datasheet, datasheet
from weft.machine.roofline import Floor, floor_time, ridge_point

POSITIVE = st.floats(1e-3, 1e15)


@pytest.mark.parametrize(
    ("bandwidth", "peaks", "ridges"),
    [
        (1.555e12, (9.7e12, 19.5e12, 156e12), (6.2, 12.5, 100.3)),  # A100-SXM4-40GB
        (2.039e12, (9.7e12, 19.5e12, 156e12), (4.8, 9.6, 76.5)),  # A100-SXM4-80GB
        (3.35e12, (33.5e12, 67.0e12, 494.0e12), (10.0, 20.0, 147.5)),  # H100-SXM5-80GB
    ],
)
def test_ridge_points_of_section_3_3_3(bandwidth: float, peaks: tuple[float, ...], ridges: tuple[float, ...]) -> None:
    assert tuple(round(ridge_point(peak, bandwidth), 1) for peak in peaks) == ridges


@pytest.mark.parametrize(
    ("sheet", "ridges"),
    [(A100_40GB, (6.2, 12.5, 100.3)), (A100_80GB, (4.8, 9.6, 76.5)), (H100, (10.0, 20.0, 147.5))],
)
def test_datasheets_have_those_ridge_points(sheet: Datasheet, ridges: tuple[float, ...]) -> None:
    peaks = (sheet.vector["float64"], sheet.vector["float32"], sheet.matrix["tf32"])
    for peak, ridge in zip(peaks, ridges, strict=True):
        assert ridge_point(peak, sheet.bandwidth) == pytest.approx(ridge, rel=0.01)  # printed with one digit


def test_bandwidth_of_two_a100_differs_by_the_ratio_of_section_2_3_5() -> None:
    assert round(A100_80GB.bandwidth / A100_40GB.bandwidth, 2) == 1.31


def test_a_sheet_is_found_by_torchs_name_only() -> None:
    assert datasheet("NVIDIA H200") is H200
    assert datasheet("NVIDIA H200 NVL") is None


@pytest.mark.parametrize(
    ("name", "processors", "gigahertz", "lanes"),
    [
        ("NVIDIA GeForce RTX 4070", 46, 2.475, 128), ("NVIDIA GeForce RTX 4080", 76, 2.505, 128),
        ("NVIDIA GeForce RTX 4090", 128, 2.520, 128), ("NVIDIA RTX 6000 Ada Generation", 142, 2.505, 128),
        ("NVIDIA GeForce RTX 3090", 82, 1.695, 128), ("NVIDIA RTX A6000", 84, 1.800, 128),
        ("NVIDIA L40S", 142, 2.520, 128), ("NVIDIA GeForce RTX 5090", 170, 2.407, 128),
        ("NVIDIA GeForce RTX 2080 Ti", 68, 1.545, 64), ("Tesla V100-SXM2-32GB", 80, 1.530, 64),
    ],
)  # fmt: skip
def test_rates_are_those_of_lanes_and_clocks(name: str, processors: int, gigahertz: float, lanes: int) -> None:
    """Each lane makes a product and a sum in a cycle of the boost clock."""
    sheet = datasheet(name)
    assert sheet is not None
    assert sheet.vector["float32"] == pytest.approx(2e9 * processors * gigahertz * lanes, rel=0.01)


def test_the_roof_bends_at_the_ridge() -> None:
    for intensity, rate in ((10.0, 50.0), (20.0, 100.0), (40.0, 100.0)):
        floor = floor_time(intensity, 1.0, 0.0, peak=100.0, read=5.0, write=5.0)
        assert intensity / floor.seconds == rate
        assert (floor.intensity, floor.ridge) == (intensity, 20.0)


def test_a_floor_worked_by_hand() -> None:
    floor = floor_time(flops=4e12, reads=3e9, writes=1e9, peak=100e12, read=3e12, write=2e12, launch=1e-6)
    assert floor.compute == pytest.approx(40e-3)
    assert floor.memory == pytest.approx(1.5e-3)
    assert floor.seconds == pytest.approx(40.001e-3)
    assert floor.binds == "compute"
    assert floor.intensity == 1000.0
    assert floor.ridge == pytest.approx(100e12 / (4e9 / 1.5e-3))
    assert floor.efficiency(80.002e-3) == pytest.approx(0.5)
    assert "compute binds" in str(floor)


@pytest.mark.parametrize(
    ("floor", "binds"),
    [
        (Floor(compute=1.0, memory=2.0, launch=0.5, intensity=1, ridge=2), "memory"),
        (Floor(compute=2.0, memory=1.0, launch=0.5, intensity=2, ridge=1), "compute"),
        (Floor(compute=1.0, memory=2.0, launch=3.0, intensity=1, ridge=2), "launch"),
        (Floor(compute=1.0, memory=1.0, launch=0.0, intensity=1, ridge=1), "compute"),
    ],
)
def test_what_binds(floor: Floor, binds: str) -> None:
    assert floor.binds == binds


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_floor_and_roof_are_one_model(
    flops: float, traffic: float, seconds: float, peak: float, bandwidth: float
) -> None:
    floor = floor_time(flops, traffic, 0.0, peak=peak, read=bandwidth, write=bandwidth)
    roof = min(peak, bandwidth * flops / traffic)  # FLOP/s
    assert flops / floor.seconds == pytest.approx(roof)
    assert floor.efficiency(seconds) == pytest.approx(flops / seconds / roof)
    if not math.isclose(floor.intensity, floor.ridge):
        assert (floor.binds == "compute") == (floor.intensity > floor.ridge)


def test_nothing_to_do_takes_a_launch() -> None:
    floor = floor_time(0, 0, 0, peak=1e12, read=1e12, write=1e12, launch=2e-6)
    assert (floor.seconds, floor.binds, floor.intensity) == (2e-6, "launch", 0.0)


def test_without_a_known_rate_memory_binds() -> None:
    floor = floor_time(1e9, 1e6, 1e6, peak=None, read=1e12, write=1e12)
    assert (floor.compute, floor.binds, floor.ridge) == (0.0, "memory", math.inf)

"""Energy with a made-up card at the seam: its counter ticks, its clock is the test's."""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import weft
from weft.errors import UnsupportedError
from weft_bench.cases import from_letters
from weft_bench.machine.energy import Energy, call_energy, sensor_of
from weft_bench.machine.sensors import NvmlSensor, Reading, idle_watts, read_while, trapezoid, update_period
from weft_bench.profiling.energy import Point, fit, loads
from weft_bench.profiling.text import trade_lines
from weft_bench.profiling.tradeoff import Trade, digits, picture, trade


class Card:
    """Draws `idle` watts, and `busy` watts while it works; its counter changes every `period` seconds alone."""

    def __init__(self, idle: float = 80.0, busy: float = 500.0, period: float = 0.05, counts: bool = True) -> None:
        self.now = 0.0
        self._idle, self._busy, self._period, self._counts = idle, busy, period, counts
        self._times, self._drawn = [0.0], [0.0]  # and joules until then
        self._working = False

    def clock(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        power = self._busy if self._working else self._idle
        self.now += seconds
        self._times.append(self.now)
        self._drawn.append(self._drawn[-1] + power * seconds)

    def work(self, seconds: float) -> None:
        self._working = True
        self.pass_time(seconds)

    def joules(self) -> float | None:
        if not self._counts:
            return None
        seen = math.floor(self.now / self._period + 1e-9) * self._period
        at = min(max(bisect.bisect_left(self._times, seen), 1), len(self._times) - 1)
        return float(np.interp(seen, self._times[at - 1 : at + 1], self._drawn[at - 1 : at + 1]))

    def watts(self) -> float:
        return self._busy if self._working else self._idle


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle power is looked at without waiting for the real clock."""
    monkeypatch.setattr("weft_bench.machine.energy.idle_watts", lambda sensor: sensor.watts())


def drawn(card: Card, **options: float) -> Energy:
    return call_energy(
        "made", lambda: card.work(0.002), lambda: None, card, flops=2e9, moved=1e8, clock=card.clock, **options
    )  # type: ignore[arg-type]


def test_joules_of_a_call_by_the_counter(quick: None) -> None:
    found = drawn(Card(), seconds=2.0, repetitions=3)
    assert found.source == "energy counter"
    assert found.joules == pytest.approx(500 * 0.002, rel=0.03)
    assert found.seconds == pytest.approx(0.002)
    assert found.watts == pytest.approx(500, rel=0.03)
    assert found.idle_watts == 80
    assert found.calls * found.seconds == pytest.approx(2.0, rel=0.05)
    assert found.flops_per_joule == pytest.approx(2e9, rel=0.03)
    assert found.bytes_per_joule == pytest.approx(1e8, rel=0.03)
    assert found.edp == pytest.approx(found.joules * found.seconds)
    assert found.ed2p == pytest.approx(found.joules * found.seconds**2)
    assert found.low <= found.joules <= found.high
    assert found.agreement == pytest.approx(1, rel=0.05)
    assert found.to_dict()["edp"] == found.edp
    assert "FLOP/J" in str(found)


def test_without_a_counter_power_is_integrated(quick: None) -> None:
    found = drawn(Card(counts=False), seconds=0.5, repetitions=3)
    assert found.source == "power samples"
    assert found.joules == pytest.approx(500 * 0.002, rel=0.01)


def test_a_slow_sensor_makes_repetitions_longer(quick: None) -> None:
    """Twenty updates at least: with one each 0.5 s no repetition is shorter than 10 s."""
    found = drawn(Card(period=0.4), seconds=0.1, repetitions=1)
    assert found.update_seconds == pytest.approx(0.4, rel=0.02)
    assert found.calls * found.seconds >= 20 * 0.4 * 0.99


def test_the_update_period_is_measured() -> None:
    card = Card(period=0.1)
    assert update_period(card, 2.0, card.clock, card.work) == pytest.approx(0.1, rel=0.05)
    still = Card(counts=False)
    assert update_period(still, 1.0, still.clock, still.pass_time) == 1.0


def test_trapezoids() -> None:
    assert trapezoid([0, 1, 3], [100, 200, 100]) == 150 + 300
    assert trapezoid([1.0], [5.0]) == 0


def test_a_reading_says_where_it_comes_from() -> None:
    card = Card()
    found = read_while(lambda: card.work(1.0), card, card.clock)
    assert found.counted == pytest.approx(500)
    assert found.seconds == 1.0
    assert Reading(1.0, None, 3.0, 2).joules == 3.0
    assert found.samples >= 2


class NvmlError(Exception):
    pass


class Nvml:
    """The library as `NvmlSensor` calls it."""

    NVMLError = NvmlError
    NVML_FI_DEV_POWER_INSTANT = 186

    def __init__(self, counts: bool = True, instant: int = 0) -> None:
        self._counts, self._return = counts, instant

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self._counts:
            raise NvmlError("Not Supported")
        return 12_345

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_000

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=self._return, value=SimpleNamespace(uiVal=310_500))]


@pytest.mark.parametrize(
    ("library", "joules", "watts"),
    [(Nvml(), 12.345, 310.5), (Nvml(counts=False), None, 310.5), (Nvml(instant=3), 12.345, 250.0)],
)
def test_nvml_is_asked_in_its_units(
    library: Nvml, joules: float | None, watts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millijoules and milliwatts; power at the moment where the driver tells it, else on average."""
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr("weft_bench.machine.sensors.nvml_handle", lambda device: "handle")
    sensor = NvmlSensor(torch.device("cuda"))
    assert sensor.joules() == joules
    assert sensor.watts() == watts


def test_without_nvml_there_is_no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.machine.sensors.nvml_handle", lambda device: None)
    with pytest.raises(UnsupportedError, match="no sensor tells the energy of cuda"):
        NvmlSensor(torch.device("cuda"))


def test_idle_power_is_waited_for() -> None:
    """A card that has worked draws less and less, until it rests."""

    class Cooling(Card):
        def watts(self) -> float:
            return 80 + 300 * 0.2**self.now

    card = Cooling()
    assert idle_watts(card, 0.5, card.pass_time) == pytest.approx(80, rel=0.05)
    assert card.now < 5


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"at least one repetition of some time, not 0 of 2.0 s"):
        drawn(Card(), repetitions=0)
    with pytest.raises(UnsupportedError, match="no sensor tells the energy of 'cpu'"):
        sensor_of(torch.device("cpu"))
    a = torch.ones(4, 4)
    with pytest.raises(UnsupportedError, match="no sensor tells the energy of 'cpu'"):
        weft.energy(weft.plan("ij,jk->ik", a, a), a, a)


LOADS = [  # seconds, flops, bytes of loads that differ
    (1.0, 0.0, 0.0), (1.0, 6e14, 1e11), (1.0, 1e12, 4e12), (1.2, 3e14, 2e12), (0.5, 1e14, 1e12),
]  # fmt: skip


def test_the_model_is_found_again() -> None:
    points = [Point("load", t, f, q, 90 * t + 0.6e-12 * f + 60e-12 * q) for t, f, q in LOADS]
    found = fit(points)
    assert found.base_watts == pytest.approx(90)
    assert found.joules_per_flop == pytest.approx(0.6e-12)
    assert found.joules_per_byte == pytest.approx(60e-12)
    assert found.worst < 1e-9
    assert found.predict(2.0, 1e12, 1e12) == pytest.approx(180 + 0.6 + 60)
    assert "pJ/flop" in str(found)


def test_no_coefficient_is_negative() -> None:
    """What least squares would make negative is left out, and the others are fitted without it."""
    points = [Point("load", t, f, q, 200 * t - 5e-12 * q * (q > 1e12) + 0.1e-12 * f) for t, f, q in LOADS]
    found = fit(points)
    assert min(found.base_watts, found.joules_per_flop, found.joules_per_byte) >= 0
    assert found.joules_per_byte == 0
    assert found.base_watts == pytest.approx(200, rel=0.1)
    with pytest.raises(UnsupportedError, match="three loads or more, not 2"):
        fit(points[:2])


def test_loads_of_a_card_tell_its_coefficients(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five made-up loads on a made-up card, each at its own power."""
    card = Card()
    shares = {
        "waiting": (0.0, 0.0),
        "copy": (0.0, 1e9),
        "product": (5e10, 1e8),
        "thin": (1e10, 8e8),
        "wide": (3e10, 5e8),
    }

    def load(flops: float, moved: float) -> Callable[..., tuple[Callable[[], None], float, float]]:
        def work() -> None:
            card._busy = 100 + (0.5e-12 * flops + 50e-12 * moved) / 0.002
            card.work(0.002)

        return lambda device, dtype: (work, flops, moved)

    monkeypatch.setattr("weft_bench.profiling.energy._LOADS", {name: load(*share) for name, share in shares.items()})
    monkeypatch.setattr("weft_bench.profiling.energy.call_energy", partial(call_energy, clock=card.clock))
    found = fit(loads(torch.device("cpu"), "float16", card, seconds=0.5))
    assert found.base_watts == pytest.approx(100, rel=0.1)
    assert found.joules_per_flop == pytest.approx(0.5e-12, rel=0.1)
    assert found.joules_per_byte == pytest.approx(50e-12, rel=0.1)


@pytest.mark.gpu
@pytest.mark.alone
def test_the_counter_agrees_with_integrated_power() -> None:
    """Ten seconds of matrix products: within 5 %."""
    a = torch.randn(4096, 4096, device="cuda").half()
    plan = weft.plan("ij,jk->ik", a, a)
    found = weft.energy(plan, a, a, seconds=2.0)
    assert found.source == "energy counter"
    assert found.agreement == pytest.approx(1, abs=0.05)
    assert found.watts > found.idle_watts


CASE = from_letters("product", "mk,kn->mn", m=32, k=64, n=16, epilogue="relu")


def test_digits_count_what_agrees() -> None:
    exact = torch.ones(100, dtype=torch.float64)
    assert digits(exact, exact) == 17
    assert 2.99 < digits(exact * (1 + 1e-3), exact) < 3.01
    assert digits(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 17


def test_narrower_types_have_fewer_digits() -> None:
    found = {each.precision: each for each in trade(CASE, torch.device("cpu"), 0.001)}
    assert list(found) == ["fp64", "fp32", "tf32x3", "tf32", "fp16"]
    values = {name: each.digits for name, each in found.items() if each.digits is not None}
    assert values["fp64"] > 14
    assert 6 < values["fp32"] < 9
    assert 2.5 < values["fp16"] < 5
    assert all(each.seconds is not None or each.missing for each in found.values())
    assert all(each.joules is None for each in found.values())


def test_they_are_drawn_and_listed() -> None:
    trades = [Trade("fp64", 9e-3, 8e-3, 1e-2, 4.0, 15.9, "gett"), Trade("tf32", missing="no such instruction")]
    figure = picture(trades, "trade")
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fp64: 4 J"]
    assert picture(trades[1:], "trade") is None
    lines = trade_lines(trades)
    assert "9 ms" in lines[1]
    assert "15.9" in lines[1]
    assert "no such instruction" in lines[2]
    assert trade_lines([]) == []

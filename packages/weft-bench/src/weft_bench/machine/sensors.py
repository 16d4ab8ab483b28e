"""A GPU's energy and power: joules by its own counter, watts by its sensor, and the period at which the two change.

NVML has, since Volta, a counter of all millijoules since the driver was loaded; it changes every 20 to 100 ms. Where
there is none, power is sampled by a thread and integrated by the trapezoid rule. Figures are the board's: nothing of
the host, and nothing of what cools it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from weft.errors import UnsupportedError
from weft.machine.stamp import nvml_handle
from weft.machine.statistics import summarise

POLL = 0.002  # seconds between looks at a sensor, when its period is measured
SAMPLE = 0.01  # seconds between samples of power
SETTLING = 8  # whiles that power may take to fall to what an idle device draws
LEAST_UPDATES = 20  # of the counter, that a measurement must span: then its grain is 5 % of it at most

Clock = Callable[[], float]


class Sensor(Protocol):
    """The seam to NVML: what a fake must answer."""

    def joules(self) -> float | None:
        """Since some moment in the past; None where there is no counter."""

    def watts(self) -> float:
        """Drawn now."""


class NvmlSensor:
    """The sensors of one GPU, through NVML. `UnsupportedError` where it does not answer."""

    def __init__(self, device: torch.device) -> None:
        self._handle = nvml_handle(device)
        if self._handle is None:
            raise UnsupportedError(f"no sensor tells the energy of {device}: it is read of NVIDIA's GPUs, through NVML")
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            self._counts = True
        except pynvml.NVMLError:
            self._counts = False
        self._instant = getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", None)
        if self._instant_watts() is None:
            self._instant = None

    def joules(self) -> float | None:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3 if self._counts else None

    def watts(self) -> float:
        """At this moment where the driver tells it, else the average of the last second, which newer GPUs give."""
        if self._instant is not None and (found := self._instant_watts()) is not None:
            return found
        try:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise UnsupportedError(f"NVML does not tell this GPU's power: {error}") from None

    def _instant_watts(self) -> float | None:
        if self._instant is None:
            return None
        try:
            (field,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [self._instant])
        except (self._nvml.NVMLError, ValueError):
            return None
        return field.value.uiVal / 1e3 if field.nvmlReturn == 0 and field.value.uiVal else None


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy over a span of time, by the counter and by power samples."""

    seconds: float
    counted: float | None  # joules by the counter
    integrated: float  # joules by the trapezoid rule
    samples: int  # of power

    @property
    def joules(self) -> float:
        """By the counter where there is one."""
        return self.counted if self.counted is not None else self.integrated

    @property
    def source(self) -> str:
        return "energy counter" if self.counted is not None else "power samples"


def trapezoid(times: Sequence[float], watts: Sequence[float]) -> float:
    """Joules under power samples: the sum of (P_i + P_i+1) / 2 (t_i+1 - t_i)."""
    spans = zip(pairwise(times), pairwise(watts), strict=True)
    return sum((first + second) / 2 * (end - start) for (start, end), (first, second) in spans)


class Sampler:
    """Samples power in a thread while it is entered; `times` and `watts` hold what it saw."""

    def __init__(self, sensor: Sensor, every: float = SAMPLE, clock: Clock = time.perf_counter) -> None:
        self._sensor, self._every, self._clock = sensor, every, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True, name="weft samples power")
        self.times: list[float] = []
        self.watts: list[float] = []

    def __enter__(self) -> Sampler:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    def _go(self) -> None:
        while not self._stop.wait(self._every):
            self._take()

    def _take(self) -> None:
        self.watts.append(self._sensor.watts())
        self.times.append(self._clock())


def read_while(work: Callable[[], Any], sensor: Sensor, clock: Clock = time.perf_counter) -> Reading:
    """Energy while `work` runs; it must end when the device has done it (synchronised)."""
    with Sampler(sensor, clock=clock) as sampler:
        before, start = sensor.joules(), clock()
        work()
        after, end = sensor.joules(), clock()
    counted = after - before if after is not None and before is not None else None
    return Reading(end - start, counted, trapezoid(sampler.times, sampler.watts) * (end - start)
                   / max(sampler.times[-1] - sampler.times[0], 1e-9), len(sampler.times))  # fmt: skip


def update_period(
    sensor: Sensor, seconds: float = 1.0, clock: Clock = time.perf_counter, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Seconds between two changes of what the sensor says, the median over a while; `seconds` where none came."""
    changes: list[float] = []
    start = now = clock()
    last = _look(sensor)
    while now - start < seconds:
        sleep(POLL)
        now, found = clock(), _look(sensor)
        if found != last:
            changes.append(now)
            last = found
    gaps = [second - first for first, second in pairwise(changes)]
    return summarise(gaps).median if gaps else seconds


def idle_watts(sensor: Sensor, seconds: float = 0.5, sleep: Callable[[float], None] = time.sleep) -> float:
    """Power while nothing is asked of the device: the median over a while, once it falls no more.

    After work clocks, and averages over the last second, take some time to come down: at most `SETTLING` whiles.
    """
    before = summarise(power_samples(sensor, seconds, sleep)).median
    for _ in range(SETTLING):
        now = summarise(power_samples(sensor, seconds, sleep)).median
        if now >= 0.98 * before:
            return min(now, before)
        before = now
    return before


def power_samples(sensor: Sensor, seconds: float, sleep: Callable[[float], None] = time.sleep) -> list[float]:
    """Watts at steps of `SAMPLE` over a while, at least one."""
    found = [sensor.watts()]
    for _ in range(int(seconds / SAMPLE)):
        sleep(SAMPLE)
        found.append(sensor.watts())
    return found


def _look(sensor: Sensor) -> float:
    joules = sensor.joules()
    return joules if joules is not None else sensor.watts()

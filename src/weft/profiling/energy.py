"""Joules of a call, what they buy, and a model of them: E = P_base T + e_F F + e_B Q.

The model and the metrics are those of section 5.7 of *Design and Performance Engineering of GPU-Accelerated Tensor
Network Algorithms*: joules a call, flops and bytes a joule, energy-delay product E T and energy-delay-squared product
E T^2. The coefficients are fitted on the card itself, to loads that differ in flops and bytes, and are never negative.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from weft.bench.timed_sets import TimedSets
from weft.errors import UnsupportedError
from weft.machine.energy import LEAST_UPDATES, NvmlSensor, Reading, Sensor, idle_watts, read_while, update_period
from weft.machine.statistics import summarise
from weft.profiling.subject import Subject, usual_sampling

SECONDS = 2.0  # of one repetition, at least so many updates of the sensor
REPETITIONS = 5
_TRIAL = 0.05  # seconds of calls, from which it is known how many fill a repetition


@dataclass(frozen=True, slots=True)
class Energy:
    """What one call draws, over several repetitions of many calls."""

    name: str
    joules: float  # a call, the median over repetitions
    low: float  # 95 % interval of the median
    high: float
    seconds: float  # a call, while energy was measured: one after another, operands where the last call left them
    watts: float  # on average
    idle_watts: float
    source: str  # "energy counter" or "power samples"
    flops: float
    bytes: float
    repetitions: int
    calls: int  # in each repetition
    update_seconds: float  # how often the sensor changes
    integrated: float  # joules a call by power samples, to hold against the counter

    @property
    def edp(self) -> float:
        """Energy-delay product, J s."""
        return self.joules * self.seconds

    @property
    def ed2p(self) -> float:
        """Energy-delay-squared product, J s^2."""
        return self.joules * self.seconds**2

    @property
    def flops_per_joule(self) -> float:
        return self.flops / self.joules

    @property
    def bytes_per_joule(self) -> float:
        return self.bytes / self.joules

    @property
    def agreement(self) -> float:
        """Power samples over the counter: 1 where the two agree."""
        return self.integrated / self.joules

    def to_dict(self) -> dict[str, Any]:
        made = ("edp", "ed2p", "flops_per_joule", "bytes_per_joule", "agreement")
        return asdict(self) | {name: getattr(self, name) for name in made}

    def __str__(self) -> str:
        return (
            f"{self.joules:.4g} J a call [{self.low:.4g}, {self.high:.4g}], {self.watts:.0f} W for {self.seconds:.4g} "
            f"s by the {self.source} (idle {self.idle_watts:.0f} W), {self.flops_per_joule:.3g} FLOP/J, "
            f"{self.bytes_per_joule:.3g} B/J, EDP {self.edp:.3g} J s, ED2P {self.ed2p:.3g} J s^2; power samples say "
            f"{self.agreement:.3f} of it"
        )


def measured_energy(
    subject: Subject, *, flops: float, moved: float, seconds: float = SECONDS, repetitions: int = REPETITIONS,
    sensor: Sensor | None = None,
) -> Energy:  # fmt: skip
    """Energy of a call: `repetitions` times as many calls as take about `seconds`, operands out of cache.

    The calls are replayed in a CUDA graph where they can be. `UnsupportedError` without a sensor.
    """
    sensor = sensor or sensor_of(subject.device)
    call, each = _passes(subject)
    return call_energy(
        subject.name, call, synchroniser(subject.device), sensor, flops=flops, moved=moved, seconds=seconds,
        repetitions=repetitions, calls_in_one=each,
    )  # fmt: skip


def _passes(subject: Subject) -> tuple[Callable[[], Any], int]:
    """Calls on all sets of tensors, one after another, in a CUDA graph where they can be; and how many these are."""
    sets = TimedSets(subject.tensors, subject.device, usual_sampling(subject.device)).rotated(subject.call)

    def once() -> None:
        for each in sets:
            subject.call(*each)

    if subject.device.type != "cuda":
        return once, len(sets)
    once()
    torch.cuda.synchronize(subject.device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            once()
    except Exception:  # what synchronises cannot be captured; torch leaves the capturing stream current
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        return once, len(sets)
    return graph.replay, len(sets)


def call_energy(
    name: str, call: Callable[[], Any], synchronise: Callable[[], None], sensor: Sensor, *, flops: float, moved: float,
    seconds: float = SECONDS, repetitions: int = REPETITIONS, calls_in_one: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:  # fmt: skip
    """The same of anything that makes so many calls in one; `synchronise` waits until the device has done its work."""
    if repetitions < 1 or not seconds > 0:
        raise UnsupportedError(f"energy takes at least one repetition of some time, not {repetitions} of {seconds} s")
    synchronise()
    idle = idle_watts(sensor)
    call()
    synchronise()
    period = update_period_under(sensor, call, synchronise, clock)
    span = max(seconds, LEAST_UPDATES * period)
    calls = _calls_in(span, call, synchronise, clock)

    def batch() -> None:
        for _ in range(calls):
            call()
        synchronise()

    batch()
    readings = [read_while(batch, sensor, clock) for _ in range(repetitions)]
    return _summed(name, readings, calls * calls_in_one, idle, period, flops, moved)


def sensor_of(device: torch.device) -> Sensor:
    """The sensor of a GPU; `UnsupportedError` where there is none."""
    if device.type != "cuda":
        raise UnsupportedError(f"no sensor tells the energy of '{device}': it is read of NVIDIA's GPUs, through NVML")
    return NvmlSensor(device)


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits for a device."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)


def update_period_under(
    sensor: Sensor, call: Callable[[], Any], synchronise: Callable[[], None], clock: Callable[[], float]
) -> float:
    """The sensor's period while calls run: at rest its power may stay the same for long."""

    def pause(_: float) -> None:
        call()
        synchronise()

    return update_period(sensor, 1.0, clock, pause)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement that a model is fitted to: totals."""

    name: str
    seconds: float
    flops: float
    bytes: float
    joules: float


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """E = P_base T + e_F F + e_B Q with the coefficients of one card."""

    base_watts: float
    joules_per_flop: float
    joules_per_byte: float
    worst: float  # the largest relative error over the points that it was fitted to

    def predict(self, seconds: float, flops: float, moved: float) -> float:
        """Joules."""
        return self.base_watts * seconds + self.joules_per_flop * flops + self.joules_per_byte * moved

    def __str__(self) -> str:
        return (
            f"E = {self.base_watts:.1f} W T + {1e12 * self.joules_per_flop:.3g} pJ/flop F + "
            f"{1e12 * self.joules_per_byte:.3g} pJ/B Q, within {self.worst:.1%} of what it was fitted to"
        )


def fit(points: Sequence[Point]) -> EnergyModel:
    """The model with the least sum of squared relative errors, no coefficient negative.

    Of all subsets of the three terms the best one without a negative coefficient is taken: with three terms that is
    non-negative least squares. `UnsupportedError` with fewer than three points.
    """
    if len(points) < 3:
        raise UnsupportedError(
            f"the energy model has three coefficients and is fitted to three loads or more, not {len(points)}"
        )
    loads = np.array([[each.seconds, each.flops, each.bytes] for each in points]) / np.array(
        [[p.joules] for p in points]
    )
    scale = np.abs(loads).max(axis=0)
    scale[scale == 0] = 1.0
    best, least = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for terms in itertools.combinations(range(3), size):
            part = (loads / scale)[:, terms]
            found, *_ = np.linalg.lstsq(part, np.ones(len(points)), rcond=None)
            error = float(np.sum((part @ found - 1) ** 2))
            if (found >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(3), error
                best[list(terms)] = found
    base, flop, byte = (float(each) for each in best / scale)
    worst = float(np.abs(loads @ (best / scale) - 1).max())
    return EnergyModel(base, flop, byte, worst)


def _calls_in(span: float, call: Callable[[], Any], synchronise: Callable[[], None], clock: Callable[[], float]) -> int:
    """How many calls take about `span` seconds."""
    count = 1
    while True:
        start = clock()
        for _ in range(count):
            call()
        synchronise()
        taken = clock() - start
        if taken >= _TRIAL or count >= 1 << 24:
            return max(1, round(count * span / max(taken, 1e-9)))
        count *= 2


def _summed(
    name: str, readings: Sequence[Reading], calls: int, idle: float, period: float, flops: float, moved: float
) -> Energy:
    joules = summarise([each.joules / calls for each in readings])
    seconds = summarise([each.seconds / calls for each in readings]).median
    integrated = summarise([each.integrated / calls for each in readings]).median
    return Energy(
        name, joules.median, joules.low, joules.high, seconds, joules.median / seconds, idle, readings[0].source,
        float(flops), float(moved), len(readings), calls, period, integrated,
    )  # fmt: skip

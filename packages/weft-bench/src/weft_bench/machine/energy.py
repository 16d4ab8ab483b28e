"""Joules of a call, over repetitions that are long beside the sensor's period, and what they buy.

The metrics are those of section 5.7 of *Design and Performance Engineering of GPU-Accelerated Tensor Network
Algorithms*: joules a call, flops and bytes a joule, energy-delay product E T, energy-delay-squared product E T^2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.rotation import InputSet
from weft.machine.statistics import summarise
from weft.machine.timing import Call
from weft_bench.machine.sensors import LEAST_UPDATES, NvmlSensor, Reading, Sensor, idle_watts, read_while, update_period

SECONDS = 2.0  # of one repetition, at least so many updates of the sensor
REPETITIONS = 5
_TRIAL = 0.05  # seconds of calls, from which it is known how many fill a repetition


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of one call, over several repetitions of many calls."""

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


def call_energy(
    name: str, call: Callable[[], Any], synchronise: Callable[[], None], sensor: Sensor, *, flops: float, moved: float,
    seconds: float = SECONDS, repetitions: int = REPETITIONS, calls_in_one: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:  # fmt: skip
    """The energy of `call`, which may be many calls in one; `synchronise` waits until the device has done its work."""
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
    """A function that waits for a device."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)


def update_period_under(
    sensor: Sensor, call: Callable[[], Any], synchronise: Callable[[], None], clock: Callable[[], float]
) -> float:
    """The sensor's period while calls run: at rest its power may stay the same for long."""

    def pause(_: float) -> None:
        call()
        synchronise()

    return update_period(sensor, 1.0, clock, pause)


def one_pass(call: Call, sets: Sequence[InputSet], device: torch.device) -> Callable[[], Any]:
    """Calls on all sets of tensors, one after another, in a CUDA graph where they can be."""

    def once() -> None:
        for each in sets:
            call(*each)

    if device.type != "cuda":
        return once
    once()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            once()
    except Exception:  # what synchronises cannot be captured; torch leaves the capturing stream current
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        return once
    return graph.replay


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

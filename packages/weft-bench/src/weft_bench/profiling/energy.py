"""Energy of what is profiled, and a model of it, fitted on the card itself: E = P_base T + e_F F + e_B Q.

The model is that of section 5.7.3 of *Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms*.
Its coefficients are fitted to loads that differ in flops and bytes, and are never negative.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import float32_products
from weft.machine.store import fields_of
from weft_bench.machine.energy import REPETITIONS, SECONDS, Energy, call_energy, one_pass, sensor_of, synchroniser
from weft_bench.machine.sensors import Sensor
from weft_bench.profiling.record import keep_model, kept_model
from weft_bench.profiling.subject import Subject, usual_sampling
from weft_bench.timed_sets import TimedSets


def measured_energy(
    subject: Subject, *, flops: float, moved: float, seconds: float = SECONDS, repetitions: int = REPETITIONS,
    sensor: Sensor | None = None,
) -> Energy:  # fmt: skip
    """Energy of a call: `repetitions` times as many calls as take about `seconds`, operands out of cache.

    The calls are replayed in a CUDA graph where they can be. `UnsupportedError` without a sensor.
    """
    sensor = sensor or sensor_of(subject.device)
    sets = TimedSets(subject.tensors, subject.device, usual_sampling(subject.device)).rotated(subject.call)
    call = one_pass(subject.call, sets, subject.device)
    return call_energy(
        subject.name, call, synchroniser(subject.device), sensor, flops=flops, moved=moved, seconds=seconds,
        repetitions=repetitions, calls_in_one=len(sets),
    )  # fmt: skip


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


def card_model(device: torch.device, rate: str, *, refresh: bool = False) -> EnergyModel:
    """The model of a card for products of one rate name ("float16", "tf32", "float64", ...).

    Kept on disk with the device's stamp; where it is not known, or with `refresh`, it is fitted to loads that are
    measured now, some 20 seconds. `UnsupportedError` where no sensor answers.
    """
    if not refresh and (saved := kept_model(device, rate)) is not None:
        with suppress(ValueError):
            return fields_of(EnergyModel, saved)
    model = fit(loads(device, rate))
    keep_model(device, rate, asdict(model))
    return model


def loads(device: torch.device, rate: str, sensor: Sensor | None = None, seconds: float = 1.0) -> list[Point]:
    """Measured loads that tell the three coefficients apart: a launch at a time, a copy, large and thin products."""
    sensor = sensor or sensor_of(device)
    dtype = {"tf32": torch.float32, "tf32x3": torch.float32}.get(rate) or getattr(torch, rate)
    found = []
    for name, make in _LOADS.items():
        call, flops, moved = make(device, dtype)
        with float32_products(tf32=rate.startswith("tf32")):
            drawn = call_energy(
                name, call, synchroniser(device), sensor, flops=max(flops, 1.0), moved=max(moved, 1.0),
                seconds=seconds, repetitions=3,
            )  # fmt: skip
        found.append(Point(name, drawn.seconds, flops, moved, drawn.joules))
    return found


Load = tuple[Callable[[], Any], float, float]


def _waiting(device: torch.device, dtype: torch.dtype) -> Load:
    """The smallest kernel, over and over: the card is awake and does nothing."""
    x = torch.zeros(1, device=device)
    return lambda: x.add_(1.0), 0.0, 0.0


def _copying(device: torch.device, dtype: torch.dtype) -> Load:
    x = torch.ones(1 << 28, device=device, dtype=torch.uint8)
    y = torch.empty_like(x)
    return lambda: y.copy_(x), 0.0, 2.0 * x.numel()


def _multiplying(m: int, n: int, k: int) -> Callable[[torch.device, torch.dtype], Load]:
    def make(device: torch.device, dtype: torch.dtype) -> Load:
        a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
        d = torch.empty(m, n, device=device, dtype=dtype)
        moved = float((m * k + k * n + m * n) * dtype.itemsize)
        return lambda: torch.mm(a, b, out=d), 2.0 * m * n * k, moved

    return make


_LOADS: Mapping[str, Callable[[torch.device, torch.dtype], Load]] = {
    "waiting": _waiting,
    "copy": _copying,
    "large product": _multiplying(4096, 4096, 4096),
    "thin product": _multiplying(1 << 18, 256, 64),
    "wide product": _multiplying(16384, 4096, 256),
}

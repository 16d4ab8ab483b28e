"""Models fitted to microbenchmarks: latency and bandwidth of transfers, break-even intensity, the size of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Transfer:
    """T = t0 + bytes / B, fitted to measured times."""

    latency: float  # seconds
    bandwidth: float  # bytes/s
    worst: float  # largest relative error over what it was fitted to

    def seconds(self, size: float) -> float:
        """The time that the model expects for so many bytes."""
        return self.latency + size / self.bandwidth


def fit_transfer(sizes: Sequence[float], seconds: Sequence[float]) -> Transfer:
    """Least squares of relative errors, so that short transfers count as much as long ones; latency is not negative."""
    size, time = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    loads = np.stack([1 / time, size / time], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(loads, np.ones(len(time)), rcond=None)
    if latency < 0:
        latency, slope = 0.0, float((size / time).sum() / ((size / time) ** 2).sum())
    worst = float(np.abs(loads @ np.array([latency, slope]) - 1).max())
    return Transfer(float(latency), float(1 / slope), worst)


def break_even(bandwidth: float, there: float, here: float | None = None) -> float:
    """Flops for each byte moved from which on moving an operand to the GPU pays.

    `there` and `here` are the rates of GPU and CPU, flop/s: bytes / B + F / there = F / here. Where the CPU's is not
    known, the intensity from which on computing takes longer than moving.
    """
    if here is None:
        return there / bandwidth
    gain = 1 / here - 1 / there
    return float("inf") if gain <= 0 else 1 / (bandwidth * gain)


def knee(sizes: Sequence[float], rates: Sequence[float]) -> float:
    """The size at which rates fall half way from their best to what the largest sizes have, between two of the sizes.

    Infinite where they never fall.
    """
    best, last = max(rates), rates[-1]
    middle = (best + last) / 2
    top = list(rates).index(best)
    if last > 0.9 * best:
        return float("inf")
    for at in range(top, len(rates) - 1):
        if rates[at] >= middle > rates[at + 1]:
            share = (rates[at] - middle) / (rates[at] - rates[at + 1])
            return float(sizes[at] * (sizes[at + 1] / sizes[at]) ** share)
    return float("inf")


def conflicts(stride: int, banks: int = 32) -> int:
    """How many lanes of a warp meet in one bank where neighbours read words so far apart."""
    return int(np.gcd(stride, banks))

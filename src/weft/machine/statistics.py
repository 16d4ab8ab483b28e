"""Statistics of repeated timings: the median, its spread and interval, and means across cases.

The statistics are those of robust timing practice: the median as point estimate, the median absolute deviation as
spread, and a percentile bootstrap for the median's interval, because runtimes are skewed and have long tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

NORMAL_CONSISTENCY = 1.4826  # 1 / quantile(3/4) of the normal distribution: makes a MAD comparable to a deviation
RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Summary:
    """One set of samples in a few figures, in the samples' unit (seconds for timings)."""

    count: int
    median: float
    rrs: float  # relative robust spread: 1.4826 times the median |sample - median|, over the median
    low: float  # 95 % bootstrap interval of the median
    high: float


def summarise(samples: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Summary:
    """Summarise at least one finite sample; the interval is the same for the same samples and `seed`."""
    values = _finite(samples)
    low, high = percentile_interval(bootstrap_medians(samples, resamples=resamples, seed=seed))
    return Summary(values.size, float(np.median(values)), relative_robust_spread(samples), low, high)


def relative_robust_spread(samples: Sequence[float]) -> float:
    """RRS: 1.4826 MAD over the median. 0 for equal samples, infinite when the median is 0 and the spread is not."""
    values = _finite(samples)
    median = float(np.median(values))
    sigma = NORMAL_CONSISTENCY * float(np.median(np.abs(values - median)))
    if sigma == 0:
        return 0.0
    return sigma / abs(median) if median else math.inf


def bootstrap_medians(samples: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Medians of `resamples` draws with replacement, each as large as the sample; shape ``(resamples,)``."""
    values = _finite(samples)
    if resamples < 1:
        raise ValueError(f"{resamples} bootstrap resamples: at least 1 is needed")
    draws = np.random.default_rng(seed).integers(values.size, size=(resamples, values.size))
    return np.median(values[draws], axis=1)


def percentile_interval(estimates: np.ndarray) -> tuple[float, float]:
    """The central share `CONFIDENCE` of bootstrap estimates."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def parts_from(self, other: Interval) -> bool:
        """Whether the two intervals have no point in common: only then are two figures called different."""
        return self.high < other.low or other.high < self.low


def mean_ratio(
    peer: Sequence[Sequence[float]],
    ours: Sequence[Sequence[float]],
    *,
    at_least_one: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Geometric mean over cases of median(peer) / median(ours), and how far the samples let it vary.

    `peer` and `ours` hold the samples of each case. Every bootstrap replicate draws each case's samples anew and forms
    the mean from their medians. `at_least_one` takes ratios below 1 as 1: what a user gains who takes the faster of the
    two in every case. They are GM2, and else GM1, of "Flexible Performant Tensor Contractions on GPUs", section IV,
    with medians in the place of minima.
    """
    logarithms = np.zeros(resamples)
    for case, (theirs, mine) in enumerate(zip(peer, ours, strict=True)):
        ratios = bootstrap_medians(theirs, resamples=resamples, seed=seed + 2 * case) / bootstrap_medians(
            mine, resamples=resamples, seed=seed + 2 * case + 1
        )
        logarithms += np.log(np.maximum(ratios, 1.0) if at_least_one else ratios)
    medians = [float(np.median(t) / np.median(m)) for t, m in zip(peer, ours, strict=True)]
    value = geometric_mean([max(1.0, ratio) for ratio in medians] if at_least_one else medians)
    low, high = percentile_interval(np.exp(logarithms / len(peer)))
    return Interval(value, low, high)


def _finite(samples: Sequence[float]) -> np.ndarray:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"statistics need a list of at least one number, not shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("statistics need finite numbers; there is an infinity or NaN among them")
    return values

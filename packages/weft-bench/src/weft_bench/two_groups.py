"""Samples that fall into two groups, as where a clock or a state changes between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TwoGroups:
    """Samples that do not agree on one value: the medians of two groups, seconds, and the share of the slower one."""

    low: float
    high: float
    share: float

    def sentence(self) -> str:
        return (
            f"samples fall into two groups: {1e6 * self.low:.4g} us ({1 - self.share:.0%}) and "
            f"{1e6 * self.high:.4g} us ({self.share:.0%})"
        )


def two_groups(samples: Sequence[float]) -> TwoGroups | None:
    """The two groups that samples fall into, or None where they are one.

    The split is where the variance within both groups is least (Otsu, "A threshold selection method from gray-level
    histograms", 1979). It counts where each group has a fifth of at least ten samples, the medians lie 5 % apart or
    more, and the gap between the groups is wider than either's own range of middle samples (their quartiles).
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    count, least = values.size, max(2, math.ceil(values.size / 5))
    if count < 10 or 2 * least > count:
        return None
    splits = range(least, count - least + 1)
    at = min(splits, key=lambda split: float(values[:split].var() * split + values[split:].var() * (count - split)))
    first, second = values[:at], values[at:]
    low, high = float(np.median(first)), float(np.median(second))
    widest = max(float(np.subtract(*np.quantile(group, [0.75, 0.25]))) for group in (first, second))
    if high < 1.05 * low or second[0] - first[-1] <= widest:
        return None
    return TwoGroups(low, high, second.size / count)

"""How work on several workers scales: Amdahl's law and Gustafson's, and the parallel share that measurements imply.

Amdahl's law bounds the speed-up of a fixed piece of work of which a share f runs in parallel:
S(p) = 1 / (1 - f + f / p) (1967). Gustafson's bounds that of work which grows with the workers:
S(p) = 1 - f + f p (1988). A share is fitted by least squares where both are lines in f: 1 / S of the first, S of the
second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def amdahl(f: float, p: float) -> float:
    """The most by which p workers speed up work of which a share f is parallel."""
    return 1 / ((1 - f) + f / p)


def amdahl_limit(f: float) -> float:
    """Amdahl's speed-up with any number of workers; infinite where all is parallel."""
    return math.inf if f == 1 else 1 / (1 - f)


def gustafson(f: float, p: float) -> float:
    """Gustafson's speed-up, where the work grows with the workers."""
    return (1 - f) + f * p


def fit_amdahl(workers: Sequence[float], speedups: Sequence[float]) -> float:
    """The parallel share that explains measured speed-ups best, within 0 and 1."""
    steps = np.asarray(workers, dtype=float)
    rise, left = 1 - 1 / steps, 1 - 1 / np.asarray(speedups, dtype=float)
    return _share(rise, left)


def fit_gustafson(workers: Sequence[float], speedups: Sequence[float]) -> float:
    """The parallel share that fits scaled speed-ups best."""
    return _share(np.asarray(workers, dtype=float) - 1, np.asarray(speedups, dtype=float) - 1)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Measured speed-ups over one worker: of the same work ("strong"), or of work that grew with them ("weak")."""

    kind: str
    workers: tuple[int, ...]
    speedups: tuple[float, ...]

    @property
    def parallel(self) -> float:
        """The fitted parallel share."""
        fit = fit_amdahl if self.kind == "strong" else fit_gustafson
        return fit(self.workers, self.speedups)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "workers": list(self.workers), "speedups": list(self.speedups),
            "parallel share": self.parallel,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Scaling:
        return cls(saved["kind"], tuple(saved["workers"]), tuple(saved["speedups"]))

    def predicted(self, workers: float) -> float:
        """The speed-up of so many workers by the law with the fitted share."""
        return (amdahl if self.kind == "strong" else gustafson)(self.parallel, workers)


def _share(rise: np.ndarray, left: np.ndarray) -> float:
    """The slope of a line through the origin, within 0 and 1."""
    square = float(rise @ rise)
    return min(1.0, max(0.0, float(rise @ left) / square)) if square else 0.0

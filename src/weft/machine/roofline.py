"""The roofline: the least time that work and traffic allow, which of the two binds, and how close a run came.

    T >= max(F / P, Q / B) + launch

F and Q are flops and compulsory bytes, P and B the ceilings of the device. Reads and writes may have different
ceilings; then Q / B is the sum of their times.

S. Williams, A. Waterman, D. Patterson: Roofline, Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def ridge_point(peak: float, bandwidth: float) -> float:
    """The intensity in FLOP/byte at which compute and memory take equally long: ``P / B``."""
    return peak / bandwidth


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time for one computation on one device, by cause; seconds."""

    compute: float
    memory: float
    launch: float
    intensity: float  # FLOP/byte: of flops over compulsory bytes; infinite without traffic
    ridge: float  # FLOP/byte: where this computation would turn compute-bound

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory) + self.launch

    @property
    def binds(self) -> str:
        """The largest of the three times: "compute", "memory" or "launch"."""
        if self.launch > max(self.compute, self.memory):
            return "launch"
        return "compute" if self.compute >= self.memory else "memory"

    def efficiency(self, seconds: float) -> float:
        """The floor over a measured time: 1 is the best there can be."""
        return self.seconds / seconds

    def __str__(self) -> str:
        return (
            f"floor {self.seconds * 1e6:.3g} us, {self.binds} binds "
            f"(compute {self.compute * 1e6:.3g} us, memory {self.memory * 1e6:.3g} us, "
            f"launch {self.launch * 1e6:.3g} us; {self.intensity:.3g} FLOP/byte, ridge {self.ridge:.3g})"
        )


def floor_time(
    flops: float, reads: float, writes: float, *, peak: float | None, read: float, write: float, launch: float = 0.0
) -> Floor:
    """The floor of a computation with `flops` that must read and write so many bytes.

    `peak` in FLOP/s, `read` and `write` in bytes/s, `launch` in seconds. Without a known `peak` (None) only memory and
    launch bound the time.
    """
    memory = reads / read + writes / write
    traffic = reads + writes
    bandwidth = traffic / memory if memory else read
    return Floor(
        compute=flops / peak if peak is not None else 0.0,
        memory=memory,
        launch=launch,
        intensity=flops / traffic if traffic else math.inf if flops else 0.0,
        ridge=ridge_point(peak, bandwidth) if peak is not None else math.inf,
    )

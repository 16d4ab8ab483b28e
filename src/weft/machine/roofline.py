"""The roofline, and the floor of a description under it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.machine.ceilings import Ceilings, rate_name
from weft.machine.counts import Work, contraction_work
from weft.spec import Contraction


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


def contraction_floor(
    contraction: Contraction, ceilings: Ceilings, *, beta: complex = 1, in_graph: bool = False
) -> Floor:
    """The least time of one call. `in_graph` takes the launch cost within a CUDA graph, where there are such.

    Where no matrix rate is known for the contraction's types, memory and launch alone bound it.
    """
    arithmetic = contraction.arithmetic
    name = rate_name(arithmetic.product, arithmetic.accumulate, arithmetic.fastest)
    return work_floor(contraction_work(contraction, beta=beta), ceilings, peak=ceilings.rate(name), in_graph=in_graph)


def work_floor(work: Work, ceilings: Ceilings, *, peak: float | None = None, in_graph: bool = False) -> Floor:
    """The least time for counted work; without `peak` (FLOP/s), as for a permutation, only memory and launch count."""
    in_graph = in_graph and ceilings.launch_graph is not None
    return floor_time(
        work.flops,
        work.reads,
        work.writes,
        peak=peak,
        read=ceilings.best_read,
        write=ceilings.best_write,
        launch=(ceilings.launch_graph or 0.0) if in_graph else ceilings.launch_eager,
    )

"""The floor of a contraction or permutation on a device: its counts over the device's ceilings."""

from __future__ import annotations

from weft.machine.ceilings import Ceilings, rate_name
from weft.machine.counts import Work, contraction_work
from weft.machine.roofline import Floor, floor_time
from weft.spec import Contraction


def contraction_floor(
    contraction: Contraction, ceilings: Ceilings, *, beta: complex = 1, in_graph: bool = False
) -> Floor:
    """The least time of one call. `in_graph` takes the launch cost within a CUDA graph, where there are such.

    Where no matrix rate is known for the contraction's types, memory and launch alone bound it.
    """
    arithmetic = contraction.arithmetic
    name = rate_name(arithmetic.product, arithmetic.accumulate, arithmetic.precision)
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

"""Each launch of a call with its time, grid and registers: what CUPTI records, read from the trace of torch's profiler.

A vendor library's kernels, and the fills and copies of torch, are among them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.machine.datasheets import SmLimits
from weft.machine.statistics import summarise
from weft_bench.machine.occupancy import occupancy, waves

CALLS = 5  # that are traced; each launch's time is the median over them


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a call. What the trace does not say is None."""

    name: str
    seconds: float
    programs: int | None = None  # blocks of the grid
    threads: int | None = None  # of a block
    registers: int | None = None  # of a thread
    shared: int | None = None  # bytes of a block
    occupancy: float | None = None  # the share of an SM's warps that its blocks could fill
    waves: float | None = None

    def on(self, limits: SmLimits, processors: int) -> Launch:
        """With what its blocks could fill of SMs with such limits, where the trace says what they take."""
        taken = (self.programs, self.threads, self.registers, self.shared)
        if None in taken:
            return self
        held = occupancy(
            limits,
            registers=int(self.registers or 0),
            shared=int(self.shared or 0),
            warps=-(-int(self.threads or 1) // 32),
        )
        if not held.blocks:
            return self
        return replace(self, occupancy=held.share, waves=waves(int(self.programs or 0), processors, held.blocks).count)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def traced(call: Callable[[], Any], calls: int = CALLS) -> list[Launch]:
    """The launches of one call, in their order. Empty where the profiler sees none."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        return read(json.loads(file.read_text()), calls)


def read(trace: Mapping[str, Any], calls: int) -> list[Launch]:
    """Launches of one call from the trace of several: each with the median of its times.

    Where the calls did not all launch the same (a first one that compiled, say), those of the last call, as far as they
    can be told apart: as many as a call launches on average.
    """
    kinds = ("kernel", "gpu_memset", "gpu_memcpy")
    events = [event for event in trace.get("traceEvents", ()) if event.get("cat") in kinds]
    events.sort(key=lambda event: float(event["ts"]))
    each = len(events) // calls
    if each == 0:
        return []
    rounds = [events[at : at + each] for at in range(len(events) - calls * each, len(events), each)]
    return [_launch([one[at] for one in rounds]) for at in range(each)]


def _launch(events: Sequence[Mapping[str, Any]]) -> Launch:
    """One launch, as seen in several calls."""
    last = events[-1]
    alike = [float(event["dur"]) * 1e-6 for event in events if event["name"] == last["name"]]
    said = last.get("args", {})
    return Launch(
        str(last["name"]), summarise(alike).median, _product(said.get("grid")), _product(said.get("block")),
        said.get("registers per thread"), said.get("shared memory"),
    )  # fmt: skip


def _product(sizes: Sequence[int] | None) -> int | None:
    if not sizes:
        return None
    found = 1
    for size in sizes:
        found *= int(size)
    return found

"""The kernels of weft that a call launches: what each takes of an SM, how its programs fall into waves, how many times.

A plan knows its kernels; layers, groups, networks and calls without a plan launch those of several. What they launch
is noted while they run once. What a CUDA graph replays, and what a vendor's library launches, is not among it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from weft.errors import UnsupportedError
from weft.planner.schedule import Target
from weft.planner.target import target_of

if TYPE_CHECKING:
    from weft.gpu.common.cubins import Cubin, Loaded
    from weft.gpu.common.direct import DirectLaunch

MOST = 64  # kernels that are kept of a call, those with most warps


def launched(call: Callable[..., Any], tensors: Sequence[Any], device: torch.device) -> list[dict[str, Any]]:
    """The kernels of one call on an NVIDIA GPU, see `weft_bench.kernels.kernel.Kernel.to_dict`; else none.

    A backward pass runs in the thread of the call meanwhile, for launches are noted by thread.
    """
    if device.type != "cuda" or torch.version.hip:
        return []
    from weft.gpu.common.direct import NotedKernel, noting

    with torch.cuda.device(device), torch.autograd.set_multithreading_enabled(False), noting() as noted:
        call(*tensors)
    torch.cuda.synchronize(device)
    return facts([each.direct for each in noted if isinstance(each, NotedKernel)], target_of("triton", device))


def facts(launches: Sequence[DirectLaunch], target: Target) -> list[dict[str, Any]]:
    """Each kernel and grid once, in the order of their first launches, with the number of its launches."""
    from weft_bench.kernels.kernel import Kernel

    first = {(each.function, each.programs): each for each in launches}
    times = Counter((each.function, each.programs) for each in launches)
    try:
        found = [Kernel(_Run.of(first[each]), target).to_dict() | {"launches": times[each]} for each in times]
    except UnsupportedError:  # no such SM in the table
        return []
    largest = sorted(found, key=lambda kernel: -kernel["programs"] * kernel["warps"])[:MOST]
    return [kernel for kernel in found if kernel in largest]


class _Run(NamedTuple):
    """A launched kernel as `Kernel` takes it."""

    function: Cubin  # which has its name
    programs: int
    loaded: Loaded
    carveout: int | None

    @classmethod
    def of(cls, launch: DirectLaunch) -> _Run:
        from weft.gpu.common.cubins import described
        from weft.gpu.common.driver import carveout_of

        loaded = described(launch.cubin, launch.function, launch.device)
        return cls(launch.cubin, launch.programs, loaded, carveout_of(launch.function))

"""Times of a network: of a call, of a slice, and of every step by itself.

Steps are timed in their order, each on what those before have made, so that values are those of a real call; equal
steps once. A call whose slices would take too long is reckoned from one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import torch

from weft.machine.ceilings import Ceilings
from weft.machine.counts import distinct_elements
from weft.machine.roofline import contraction_floor, floor_time
from weft.machine.stamp import device_stamp
from weft.machine.timing import Timing, measure
from weft.networks.network import Network
from weft.networks.steps import ContractionCall
from weft_bench.machine.energy import SECONDS, Energy, call_energy, sensor_of, synchroniser
from weft_bench.profiling.launches import traced
from weft_bench.profiling.network_profile import NetworkProfile, StepTime
from weft_bench.timed_sets import Sampling

LONGEST = 2.0  # seconds of a call in slices that is still timed as a whole
_NO_COUNTERS = "they are read of plans: profile a step by itself, weft.plan of its contraction"


def profiled_network(
    network: Network, tensors: Sequence[torch.Tensor], *, out: torch.Tensor | None, sampling: Sampling,
    ceilings: Ceilings | None, environment: Mapping[str, Any],
) -> NetworkProfile:  # fmt: skip
    """Measure a network on these tensors."""
    device = network.plan.settings.device
    found = NetworkProfile(
        repr(network), str(device_stamp(device)["name"]), datetime.now(UTC).isoformat(timespec="seconds"),
        network.plan.tree.slices, [str(label) for label in network.slices], environment=dict(environment),
        missing={"counters": _NO_COUNTERS},
    )  # fmt: skip
    call = network_call(network, tensors, out)
    with torch.no_grad():
        operands, place, compute = network.operands(tensors), network.place(), 0.0
        if network.plan.tree.steps:
            compute = _of_steps(found, network, _timed_steps(network, operands, place, sampling), ceilings)
        _of_work(found, network, operands, compute, ceilings)
        if found.slices > 1:
            found.slice_samples = _timed_slice(network, operands, place, sampling)
        if found.slices == 1 or found.seconds.value <= LONGEST:
            taken = _timed(call, device, sampling)
            found.samples = taken.samples
            found.timing = {name: value for name, value in asdict(taken).items() if name != "samples"}
        else:
            found.missing["time of a call"] = f"its {found.slices} slices take longer than {LONGEST:.0f} s"
        if network.plan.settings.strip_exponent:
            found.missing["scales"] = "steps are timed without the search for the largest magnitude, which a call has"
        _of_launches(found, call, device)
    return found


def network_call(network: Network, tensors: Sequence[Any], out: torch.Tensor | None) -> Callable[[], Any]:
    """A call in which all is computed, what `reuse` would keep too."""
    changed = list(network.plan.folded.given) if network.plan.settings.reuse else None
    return lambda: network(*tensors, out=out, changed=changed)


def network_energy(
    network: Network, tensors: Sequence[Any], out: torch.Tensor | None, seconds: float = SECONDS
) -> Energy:
    """Joules of a call; `UnsupportedError` where no sensor answers."""
    device = network.plan.settings.device
    sensor, call = sensor_of(device), network_call(network, tensors, out)
    with torch.no_grad():
        call()
        operands = network.operands(tensors)
        return call_energy(
            "weft", call, synchroniser(device), sensor, flops=network.report()["flops"],
            moved=sum(_traffic(network, operands)), seconds=seconds,
        )  # fmt: skip


def _timed(call: Callable[[], Any], device: torch.device, sampling: Sampling, budget: float | None = None) -> Timing:
    """Samples with operands where they are. With a `budget` of its own it is one of many, and kept out of the host's
    time where it can be."""
    return measure(
        call, [()], device=device, mode="hot", rrs=sampling.rrs, threads=sampling.threads,
        budget=sampling.budget if budget is None else budget, capture=budget is not None, quick=budget is not None,
    )  # fmt: skip


def _timed_slice(
    network: Network, operands: Sequence[torch.Tensor], place: torch.Tensor, sampling: Sampling
) -> tuple[float, ...]:
    """Samples of a slice. They come in turn, as in a call: each sees other parts of the operands."""
    work, numbers = network.work(operands, place), cycle(range(network.plan.tree.slices))
    work.begin()
    return _timed(lambda: work.slice(next(numbers)), network.plan.settings.device, sampling).samples


def _timed_steps(
    network: Network, operands: Sequence[torch.Tensor], place: torch.Tensor, sampling: Sampling
) -> list[tuple[ContractionCall, Timing]]:
    """The steps in their order. Equal ones are timed once, but all are run: the next ones need what they make."""
    timings: dict[int, Timing] = {}
    budget, found = sampling.budget / len(network.plan.tree.steps), []
    for call, run in network.work(operands, place).one_by_one():
        run()
        key = id(call.variant)
        if key not in timings:
            timings[key] = _timed(run, network.plan.settings.device, sampling, budget)
        found.append((call, timings[key]))
    return found


def _of_steps(
    found: NetworkProfile, network: Network, timed: Sequence[tuple[ContractionCall, Timing]], known: Ceilings | None
) -> float:
    """Fill in the steps; returns the least seconds of all their products, 0 without ceilings."""
    reported = {step["node"]: step for step in network.report()["steps"]}
    compute = 0.0
    for call, timing in timed:
        step, summary, least = reported[call.node], timing.summary, None
        times = 1 if step["once"] else found.slices
        if known is not None:
            in_graph = network.plan.settings.device.type == "cuda"
            floor = contraction_floor(call.variant.description, known, in_graph=in_graph)
            least = floor.seconds
            compute += times * floor.compute
        found.steps.append(StepTime(
            call.node, (call.left, call.right), step["equation"], times, summary.median, summary.low, summary.high,
            step["seconds"], least, step["flops"], step["bytes"], step["kernel"],
        ))  # fmt: skip
    found.predicted = sum(step.times * step.predicted for step in found.steps)
    return compute


def _of_work(
    found: NetworkProfile, network: Network, operands: Sequence[torch.Tensor], compute: float, known: Ceilings | None
) -> None:
    """Flops, bytes and, where ceilings are known, the floor; `compute` are the least seconds of the products."""
    reads, writes = _traffic(network, operands)
    found.flops, found.bytes = network.report()["flops"], reads + writes
    if known is None:
        found.missing["floor"] = "no ceilings are known of this device: `weft info` measures them"
        return
    in_graph = network.plan.settings.device.type == "cuda" and known.launch_graph is not None
    floor = floor_time(
        found.flops, reads, writes, peak=found.flops / compute if compute else None, read=known.best_read,
        write=known.best_write, launch=(known.launch_graph or 0.0) if in_graph else known.launch_eager,
    )  # fmt: skip
    causes = {name: value for name, value in asdict(floor).items() if math.isfinite(value)}
    steps = sum(step.times * (step.floor or 0.0) for step in found.steps)
    found.floor = {"seconds": floor.seconds, "binds": floor.binds, "steps": steps, **causes}


def _traffic(network: Network, operands: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Bytes of operands, what they repeat counted once, and of the result."""
    reads = sum(distinct_elements(each.shape, each.stride()) * each.element_size() for each in operands)
    return reads, network.plan.result_bytes


def _of_launches(found: NetworkProfile, call: Callable[[], Any], device: torch.device) -> None:
    """Record the launches of a call, in order."""
    if device.type != "cuda":
        found.missing["launches"] = "on a CPU nothing is launched"
        return
    if found.seconds.value > LONGEST:
        found.missing["launches"] = f"a call takes longer than {LONGEST:.0f} s"
        return
    try:
        found.launches = traced(call)
    except (RuntimeError, OSError, ValueError) as error:
        found.missing["launches"] = f"torch's profiler gave no trace: {str(error).partition(chr(10))[0]}"

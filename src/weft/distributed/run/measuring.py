"""Calls of all ranks measured, and held against samples of the whole D."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from weft.base.arrays import grad_mode
from weft.distributed.group.collectives import all_reduce, own_operation
from weft.distributed.group.lanes import Recorder
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import LocalBlock
from weft.distributed.planned.placement import Placed, RankProblem, coordinates, held
from weft.distributed.planned.timeline import Event, Timeline
from weft.distributed.run.asked import RankRequest, key_of
from weft.oracle.validate import Sample, Sampled
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.spec.notation import Label


@dataclass(frozen=True)
class Parts:
    """A tensor of which each rank has a part; `shape` is that of the whole. All ranks ask for the same elements."""

    placed: Placed
    shape: tuple[int, ...]
    problem: RankProblem
    ranks: Ranks
    tensor: torch.Tensor

    def gathered(self, sample: Sample, term: Sequence[Label], mark: Label) -> tuple[torch.Tensor, tuple[Label, ...]]:
        """Each rank fills in what it has, the first that has it; the sum of their bytes is all of it, bit for bit."""
        own = [at for at, label in enumerate(term) if label in sample.labels]
        others = [at for at, label in enumerate(term) if label not in sample.labels]
        rows = [len(sample.coordinates)] if own else []
        found = self.tensor.new_zeros([*rows, *(self.shape[at] for at in others)])
        self._fill(found, sample, term, own, others)
        if found.numel():
            work = all_reduce(self.ranks, found.view(-1).view(torch.uint8), own_operation(None, torch.uint8))
            self.ranks.wait(work, f"gathering of sampled elements of {self.placed.name}")
        left = tuple(term[at] for at in others)
        return found.cpu(), (mark, *left) if own else left

    def _fill(
        self, found: torch.Tensor, sample: Sample, term: Sequence[Label], own: list[int], others: list[int]
    ) -> None:
        mesh, places = self.problem.mesh, self.placed.places
        at = coordinates(self.ranks.rank, mesh)
        if any(here and label is None for here, label in zip(at, places, strict=True)):
            return  # another rank has the same
        spans = [held(label, extent, places, mesh, at) for label, extent in zip(term, self.shape, strict=True)]
        for place, dim in enumerate(others):
            found = found.narrow(place + bool(own), spans[dim].start, spans[dim].extent)
        value = self.tensor.permute(*own, *others)
        if not own:
            found.copy_(value)
            return
        index = [sample.along(term[dim]) * (self.shape[dim] != 1) - spans[dim].start for dim in own]
        here = [(each >= 0) & (each < spans[dim].extent) for each, dim in zip(index, own, strict=True)]
        mine = torch.stack(here).all(0)
        device = self.tensor.device
        found[mine.to(device)] = value[tuple(each[mine].to(device) for each in index)]


def sampled_of(
    problem: RankProblem, request: Request, ranks: Ranks, asked: RankRequest, tensors: Mapping[str, torch.Tensor],
    c: LocalBlock | None, factors: tuple[Scalar, Scalar],
) -> Sampled:  # fmt: skip
    """Elements of the whole D that validate a call of these tensors. Every rank calls it."""
    parts = {
        key: Parts(each, problem.shapes[key], problem, ranks, tensors[key].detach())
        for key, each in asked.placed.items()
    }
    addend = None
    if c is not None:
        shape, places = problem.addend(c.broadcast, problem.d.places)
        addend = Parts(Placed("c", problem.d.term, places), shape, problem, ranks, c.tensor.detach())
    operands = {name: parts[key_of(name)] for name in asked.options.operands}
    return Sampled.of(request, parts["a"], parts["b"], addend, *factors, operands)


FEWEST, MOST = 3, 100  # calls that are measured
BUDGET = 0.3  # seconds of them

Call = Callable[[Recorder | None], Any]
Exchanged = Callable[[str, Any], list[Any]]  # a value of each rank, in their order


@dataclass(frozen=True)
class MeasuredCalls:
    """Calls that all ranks made together.

    `seconds` has for each call what the slowest rank took. `timelines` are those of the call that took the median, one
    of each rank, all counted from the moment at which the first of them began: by the clocks of their machines.
    """

    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]


def measured(call: Call, device: torch.device) -> tuple[float, Timeline]:
    """One call on this rank, and when it began, in seconds since the epoch. Waits for the device."""
    recorder = Recorder(device)
    with grad_mode(False):
        call(recorder)
    return recorder.began, recorder.finish()


def warmed(call: Call, device: torch.device) -> Timeline:
    """The second of two calls on this rank."""
    with grad_mode(False):
        call(None)
    return measured(call, device)[1]


def measured_calls(call: Call, device: torch.device, exchanged: Exchanged, budget: float) -> MeasuredCalls:
    """As many calls as take about `budget` seconds, from `FEWEST` to `MOST`. Every rank calls it."""
    slowest = max(exchanged("the first measured call", warmed(call, device).seconds))
    found = []
    for _ in range(max(FEWEST, min(MOST, int(budget / max(slowest, 1e-6))))):
        exchanged("the begin of a measured call", None)
        found.append(measured(call, device))
    every = exchanged("the times of measured calls", [timeline.seconds for _, timeline in found])
    seconds = tuple(max(each) for each in zip(*every, strict=True))
    began, timeline = found[sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2]]
    reported = exchanged("the timelines of a measured call", [began, [astuple(event) for event in timeline.events]])
    first = min(began for began, _ in reported)
    timelines = [
        Timeline("measured", tuple(Event(*event) for event in events)).shifted(began - first)
        for began, events in reported
    ]
    return MeasuredCalls(seconds, tuple(timelines))

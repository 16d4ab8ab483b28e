"""`validate=True` over ranks: sampled elements of the whole D, and what they are computed from, of all ranks' parts.

Every rank gathers the same elements, and judges those of D that it has; where all of D is on every rank, each its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from weft.distributed.group.collectives import all_reduce, own_operation
from weft.distributed.group.lanes import wait_for
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import Block
from weft.distributed.planned.placement import Placed, coordinates, held
from weft.distributed.planned.problem import Problem
from weft.distributed.run.given import Given
from weft.oracle.validate import Sample, Sampled
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.spec.notation import Label


@dataclass(frozen=True)
class Parts:
    """A tensor of which each rank has a part; `shape` is that of the whole. All ranks ask for the same elements."""

    placed: Placed
    shape: tuple[int, ...]
    problem: Problem
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
            wait_for(work, self.ranks, f"gathering of sampled elements of {self.placed.name}")
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
    problem: Problem, request: Request, ranks: Ranks, given: Given, operands: Mapping[str, Placed], c: Block | None,
    factors: tuple[Scalar, Scalar],
) -> Sampled:  # fmt: skip
    """Elements of the whole D that validate a call; `operands` says how those of functions lie. Every rank calls it."""

    def parts(placed: Placed, shape: tuple[int, ...], tensor: torch.Tensor) -> Parts:
        return Parts(placed, shape, problem, ranks, tensor.detach())

    addend = None
    if c is not None:
        places = tuple(None if label in c.broadcast else label for label in problem.d.places)
        shape = tuple(1 if label in c.broadcast else problem.extents[label] for label in problem.d.term)
        addend = parts(Placed("c", problem.d.term, places), shape, c.tensor)
    beside = {
        name: parts(placed, problem.shapes[placed.name], given.operands[name]) for name, placed in operands.items()
    }
    a, b = (parts(each, problem.shapes[each.name], tensor)
            for each, tensor in ((problem.a, given.a), (problem.b, given.b)))  # fmt: skip
    return Sampled.of(request, a, b, addend, *factors, beside)


def starts(problem: Problem, rank: int) -> list[int]:
    """Where a rank's part of D begins along each mode."""
    at = problem.at(rank)
    return [problem.range(label, problem.d.places, at).start for label in problem.d.term]

"""One call on one rank: its tensors, and which of their indices this rank has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from weft.distributed.group.lanes import Lane, Recorder, noted
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import LabelRun, LocalBlock
from weft.distributed.planned.moves import TensorRoute
from weft.distributed.planned.placement import Places, held
from weft.distributed.planned.strategy import Strategy, steps_of
from weft.distributed.run.work import PartWork
from weft.planner.schedule import Scalar
from weft.spec.notation import Label


@dataclass
class RankCall:
    """The tensors of one call on one rank; C is None where it is not read."""

    strategy: Strategy
    rank: int
    lines: Sequence[Ranks]
    work: PartWork
    a: torch.Tensor
    b: torch.Tensor
    c: LocalBlock | None
    results: Sequence[torch.Tensor]
    alpha: Scalar = 1.0
    beta: Scalar = 1.0
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self.problem = self.strategy.problem
        self.at = self.problem.at(self.rank)
        self.device = self.a.device
        self.label = self.strategy.loop
        self.steps = steps_of(self.strategy, self.rank)
        self.lane: Lane

    def record(self, name: str, step: int, work: Callable[[], None]) -> None:
        """Run something on the caller's stream or thread, and note when, where that is requested."""
        with noted(self.recorder, "compute", name, step):
            work()

    def moved(self, route: TensorRoute, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part under the route's target."""
        return route.run(tensor, self.at, self.lines)

    def spans(self, places: Places) -> dict[Label, LabelRun]:
        """The indices of every label that this rank has under `places`."""
        problem = self.problem
        return {
            label: LabelRun(start, stop - start) for label, extent in problem.extents.items()
            for start, stop in (held(label, extent, places, problem.mesh, self.at),)
        }  # fmt: skip

    def block(
        self, tensor: torch.Tensor, spans: Mapping[Label, LabelRun], term: Sequence[Label] | None = None,
        broadcast: Collection[Label] = (),
    ) -> LocalBlock:  # fmt: skip
        """A tensor that holds these indices; of D's labels where it has no others."""
        term = self.problem.d.term if term is None else tuple(term)
        return LocalBlock(tensor, tuple(term), {one: spans[one].start for one in term}, frozenset(broadcast))

    @property
    def finished_as(self) -> Places:
        """The placement of D when the epilogue is applied: the final one, if nothing of it moves after its sums."""
        strategy = self.strategy
        if (strategy.reductions or self.problem.pairs) and not strategy.leaving.moves:
            return self.problem.d.places
        return strategy.summed

    def empty(self, spans: Mapping[Label, LabelRun], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        shape = [spans[label].length for label in self.problem.d.term]
        return [torch.empty(shape, dtype=dtype, device=self.device) for dtype in dtypes]

    def in_results(self, spans: Mapping[Label, LabelRun]) -> list[torch.Tensor]:
        """Views of those indices of D's part."""
        there = self.spans(self.problem.d.places)
        runs = {label: spans[label] for label in self.problem.d.term}
        return [self.block(tensor, there).cut(runs)[0] for tensor in self.results]

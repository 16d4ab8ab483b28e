"""The parts of a loop in their order, as one rank sees them."""

from __future__ import annotations

from dataclasses import dataclass

from weft.distributed.planned.blocks import LabelRun, runs_of
from weft.distributed.planned.placement import Span, chunks
from weft.distributed.planned.strategy import Strategy


@dataclass(frozen=True)
class LoopStep:
    """One part of the loop on one rank; `part` is None for the rank's own piece, which does not travel."""

    runs: tuple[LabelRun, ...]
    part: int | None
    spans: tuple[Span, ...] = ()

    @property
    def name(self) -> str:
        """The name of the step in timelines."""
        return f"part {self.part}" if self.part is not None else "own piece" if self.spans else "all parts"


def steps_of(strategy: Strategy, rank: int) -> list[LoopStep]:
    """The parts in their order, as a rank sees them."""
    if strategy.loop is None:
        return [LoopStep((), None)]
    found = []
    own = own_piece(strategy, rank)
    if own is not None:
        whole = strategy.span(strategy.loop, rank)
        mine = chunks(whole, strategy.pieces)[own]
        found.append(LoopStep((LabelRun.of(mine),) if mine.extent else (), None, (mine,)))
    for part in range(strategy.parts):
        spans = strategy.part(part, rank)
        others = [Span(0, 0) if at == own else span for at, span in enumerate(spans)]
        found.append(LoopStep(tuple(runs_of(others)), part, spans))
    return found


def own_piece(strategy: Strategy, rank: int) -> int | None:
    """Which of the pieces is the rank's own, where it is contracted first."""
    name = strategy.own_first
    if name is None:
        return None
    return strategy.problem.at(rank)[strategy.routes[name].moves[0].line]

"""`return_arg=True` over ranks: each selects among the pairs that it has, and then the best of all ranks' is selected.

    fetch    operands that move, whole         the lane
    select   of this rank's share              the caller's stream, or thread
    compare  over ranks, value and index       the lane
    finish   the epilogue                      the caller's
    leave    D and the indices                 the lane

What travels is the value in the type of sums, and one index: that along all reduced modes of the whole tensors, the
last one fastest. Of equal values the one with the smallest index is kept, as within a rank, so that the result does not
depend on how ranks share out what is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from weft.api.selection import INDEX
from weft.base.figures import counted
from weft.distributed.group.collectives import all_gather, all_to_all
from weft.distributed.group.lanes import done, wait_for
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import Block
from weft.distributed.planned.moves import Route, padded
from weft.distributed.planned.placement import Span, chunk
from weft.distributed.planned.strategy import Reduction
from weft.distributed.run.execution import Execution


class Pair(NamedTuple):
    """What was selected: values, and where they lie; -1 where there was nothing to select from."""

    values: torch.Tensor
    places: torch.Tensor

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
        return Pair(change(self.values), change(self.places))


class Selecting(Execution):
    """A call of which D and the indices are asked; it moves tensors whole, not by parts."""

    def _loop(self, ahead: Mapping[str, Callable[[], Block] | None], addend: Callable[[], Block | None]) -> None:
        blocks = {name: found() for name, found in ahead.items() if found is not None}
        own: list[Pair] = []
        self.record("all parts", 0, lambda: own.append(self._selected(blocks)))
        (pair,) = own
        for each in self.strategy.reductions:
            what = f"D: {each.kind} of values with their indices"
            pair = self.lane.put(what, -1, partial(self._over, pair, each), [done(self.device)]).wait()
        self._leave(self._finished(pair))

    def _selected(self, blocks: Mapping[str, Block]) -> Pair:
        """Of the indices that this rank computes."""
        spans = self.spans(self.strategy.split)
        values, along = self.work.select(blocks["a"], blocks["b"], spans)
        places = torch.zeros(values.shape, dtype=INDEX, device=self.device)
        terms = dict.fromkeys((*self.problem.a.term, *self.problem.b.term))
        reduced = [label for label in terms if self.problem.is_reduced(label)]
        for label, index in zip(reduced, along, strict=True):
            whole = places * self.problem.extents[label] + index + spans[label].start
            places = torch.where(index < 0, index, whole)
        return Pair(values, places)

    # -- over ranks ----------------------------------------------------------------------------------------------------

    def _over(self, pair: Pair, reduction: Reduction) -> Pair:
        """The best over the ranks of a line: all of it on each of them, or a chunk along a label of D."""
        line, shape = self.lines[reduction.line], pair.values.shape
        if reduction.target is not None:
            dim = self.problem.d.term.index(reduction.target)
            mine = chunk(Span(0, shape[dim]), line.size, line.rank).extent
            found = self._scattered(pair.each(lambda each: each.movedim(dim, 0)), line)
            return found.each(lambda each: each[:mine].movedim(0, dim))
        found = self._scattered(pair.each(lambda each: each.reshape(-1)), line)
        count = pair.values.numel()
        return found.each(lambda each: self._gathered(each, line)[:count].view(shape))

    def _scattered(self, pair: Pair, line: Ranks) -> Pair:
        """Of equal pieces along the first dimension this rank's, the best of all ranks'."""
        rows = -(-pair.values.shape[0] // line.size)
        sent = pair.each(lambda each: padded(each, rows * line.size))
        came = sent.each(torch.empty_like)
        if came.values.numel():
            for received, own in zip(came, sent, strict=True):
                wait_for(all_to_all(line, received, own), line, f"exchange of D ({counted(line.size, 'rank')})")
        pieces = came.each(lambda each: each.view(line.size, rows, *each.shape[1:]))
        return best(pieces, self.work.largest)

    def _gathered(self, part: torch.Tensor, line: Ranks) -> torch.Tensor:
        found = part.new_empty(line.size * part.numel())
        if found.numel():
            wait_for(all_gather(line, found, part), line, f"all-gather of D ({counted(line.size, 'rank')})")
        return found

    # -- finish and leave ----------------------------------------------------------------------------------------------

    def _finished(self, pair: Pair) -> Pair:
        """D in place of the values."""
        term, spans = self.problem.d.term, self.spans(self.finished_as)
        here = self._starts(term, self.problem.shapes["d"], self.strategy.summed)
        values, places = pair.each(lambda each: Block(each, term, here).cut({label: spans[label] for label in term})[0])
        (out,) = self.empty(spans, self.work.types[:1])
        if out.numel():
            self.record("finish", 0, partial(self.work.finish, values, [out], spans, None, self.alpha, self.beta))
        return Pair(out, places)

    def _leave(self, pair: Pair) -> None:
        d = self.problem.d
        route = Route("D", d.term, self.problem.shapes["d"], self.finished_as, d.places, self.problem.mesh)

        def work() -> None:
            for tensor, result in zip(pair, self.results, strict=True):
                result.copy_(route.run(tensor, self.at, self.lines, wait_for))

        self.lane.put(f"D: {route.said() or 'stays'}", -1, work, [done(self.device)]).wait()


def best(pieces: Pair, largest: bool) -> Pair:
    """Along the first dimension: the larger (or smaller) value, NaN before all others; of equals the first index."""
    values, places = pieces.each(lambda each: each[0])
    for value, place in zip(pieces.values[1:], pieces.places[1:], strict=True):
        equal = (value == values) | (value.isnan() & values.isnan())
        ahead = value > values if largest else value < values
        ahead = torch.where(equal, place < places, ahead | (value.isnan() & ~values.isnan()))
        ahead = (place >= 0) & (ahead | (places < 0))
        values, places = torch.where(ahead, value, values), torch.where(ahead, place, places)
    return Pair(values, places)

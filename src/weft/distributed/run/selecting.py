"""The strategy of a contraction over ranks: predicted, measured, or held against samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from weft.api.selection import INDEX
from weft.base.arrays import grad_mode
from weft.base.figures import counted
from weft.distributed.group.collectives import all_gather, all_reduce, all_to_all, own_operation
from weft.distributed.group.lanes import Recorder, done
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import LocalBlock
from weft.distributed.planned.moves import TensorRoute, padded
from weft.distributed.planned.placement import Placed, Span, chunk, coordinates, held
from weft.distributed.planned.problem import RankProblem
from weft.distributed.planned.strategy import Reduction
from weft.distributed.planned.timeline import Event, Timeline
from weft.distributed.run.execution import Execution
from weft.distributed.run.given import RankTensors
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
    problem: RankProblem, request: Request, ranks: Ranks, given: RankTensors, operands: Mapping[str, Placed],
    c: LocalBlock | None, factors: tuple[Scalar, Scalar],
) -> Sampled:  # fmt: skip
    """Elements of the whole D that validate a call; `operands` has placements of operands. Every rank calls it."""

    def parts(placed: Placed, shape: tuple[int, ...], tensor: torch.Tensor) -> Parts:
        return Parts(placed, shape, problem, ranks, tensor.detach())

    addend = None
    if c is not None:
        places = tuple(None if label in c.broadcast else label for label in problem.d.places)
        shape = tuple(1 if label in c.broadcast else problem.extents[label] for label in problem.d.term)
        addend = parts(Placed("c", problem.d.term, places), shape, c.tensor)
    operands_of_functions = {
        name: parts(placed, problem.shapes[placed.name], given.operands[name]) for name, placed in operands.items()
    }
    a, b = (parts(each, problem.shapes[each.name], tensor)
            for each, tensor in ((problem.a, given.a), (problem.b, given.b)))  # fmt: skip
    return Sampled.of(request, a, b, addend, *factors, operands_of_functions)


def starts(problem: RankProblem, rank: int) -> list[int]:
    """Where a rank's part of D begins along each mode."""
    at = problem.at(rank)
    return [problem.range(label, problem.d.places, at).start for label in problem.d.term]


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


class SelectedPair(NamedTuple):
    """Selected values, and their indices; -1 where there was nothing to select from."""

    values: torch.Tensor
    places: torch.Tensor

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> SelectedPair:
        return SelectedPair(change(self.values), change(self.places))


class Selecting(Execution):
    """A call that returns D and the indices; it moves tensors whole, not by parts."""

    def _loop(
        self, ahead: Mapping[str, Callable[[], LocalBlock] | None], addend: Callable[[], LocalBlock | None]
    ) -> None:
        blocks = {name: found() for name, found in ahead.items() if found is not None}
        own: list[SelectedPair] = []
        self.record("all parts", 0, lambda: own.append(self._selected(blocks)))
        (pair,) = own
        for each in self.strategy.reductions:
            what = f"D: {each.kind} of values with their indices"
            pair = self.lane.put(what, -1, partial(self._over, pair, each), [done(self.device)]).wait()
        self._leave(self._finished(pair))

    def _selected(self, blocks: Mapping[str, LocalBlock]) -> SelectedPair:
        """The selected values among the indices that this rank computes."""
        spans = self.spans(self.strategy.split)
        values, along = self.work.select(blocks["a"], blocks["b"], spans)
        places = torch.zeros(values.shape, dtype=INDEX, device=self.device)
        terms = dict.fromkeys((*self.problem.a.term, *self.problem.b.term))
        reduced = [label for label in terms if self.problem.is_reduced(label)]
        for label, index in zip(reduced, along, strict=True):
            whole = places * self.problem.extents[label] + index + spans[label].start
            places = torch.where(index < 0, index, whole)
        return SelectedPair(values, places)

    # -- over ranks ----------------------------------------------------------------------------------------------------

    def _over(self, pair: SelectedPair, reduction: Reduction) -> SelectedPair:
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

    def _scattered(self, pair: SelectedPair, line: Ranks) -> SelectedPair:
        """This rank's piece along the first dimension, cut in equal pieces: the best values of all ranks."""
        rows = -(-pair.values.shape[0] // line.size)
        sent = pair.each(lambda each: padded(each, rows * line.size))
        came = sent.each(torch.empty_like)
        if came.values.numel():
            for received, own in zip(came, sent, strict=True):
                line.wait(all_to_all(line, received, own), f"exchange of D ({counted(line.size, 'rank')})")
        pieces = came.each(lambda each: each.view(line.size, rows, *each.shape[1:]))
        return best(pieces, self.work.largest)

    def _gathered(self, part: torch.Tensor, line: Ranks) -> torch.Tensor:
        found = part.new_empty(line.size * part.numel())
        if found.numel():
            line.wait(all_gather(line, found, part), f"all-gather of D ({counted(line.size, 'rank')})")
        return found

    # -- finish and leave ----------------------------------------------------------------------------------------------

    def _finished(self, pair: SelectedPair) -> SelectedPair:
        """D in place of the values."""
        term, spans = self.problem.d.term, self.spans(self.finished_as)
        here = self._starts(term, self.problem.shapes["d"], self.strategy.summed)
        runs = {label: spans[label] for label in term}
        values, places = pair.each(lambda each: LocalBlock(each, term, here).cut(runs)[0])
        (out,) = self.empty(spans, self.work.types[:1])
        if out.numel():
            self.record("finish", 0, partial(self.work.finish, values, [out], spans, None, self.alpha, self.beta))
        return SelectedPair(out, places)

    def _leave(self, pair: SelectedPair) -> None:
        d = self.problem.d
        route = TensorRoute("D", d.term, self.problem.shapes["d"], self.finished_as, d.places, self.problem.mesh)

        def work() -> None:
            for tensor, result in zip(pair, self.results, strict=True):
                result.copy_(route.run(tensor, self.at, self.lines))

        self.lane.put(f"D: {route.said() or 'stays'}", -1, work, [done(self.device)]).wait()


def best(pieces: SelectedPair, largest: bool) -> SelectedPair:
    """Along the first dimension: the larger (or smaller) value, NaN before all others; of equals the first index."""
    values, places = pieces.each(lambda each: each[0])
    for value, place in zip(pieces.values[1:], pieces.places[1:], strict=True):
        equal = (value == values) | (value.isnan() & values.isnan())
        ahead = value > values if largest else value < values
        ahead = torch.where(equal, place < places, ahead | (value.isnan() & ~values.isnan()))
        ahead = (place >= 0) & (ahead | (places < 0))
        values, places = torch.where(ahead, value, values), torch.where(ahead, place, places)
    return SelectedPair(values, places)

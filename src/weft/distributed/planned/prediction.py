"""The predicted time of a strategy: the steps of `execution` in their order, each with a predicted time.

The lane of transfers and the lane of contractions each do one thing at a time; a step waits for what it needs. Where
kernels hold every multiprocessor (`KernelModel.stays`) a transfer begins between them, and a contraction that begins
during transfers takes its own time after them: they run at once, and nothing is gained. Of two steps that may begin at
the same time the transfer does, as its stream has the higher priority. The prediction is that of rank 0, whose parts
are the largest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.distributed.group.link import Link
from weft.distributed.planned.kernel_model import KernelModel
from weft.distributed.planned.moves import TensorRoute
from weft.distributed.planned.placement import Placed
from weft.distributed.planned.problem import RankProblem
from weft.distributed.planned.steps import LoopStep, steps_of
from weft.distributed.planned.strategy import Strategy, looped, strategies
from weft.distributed.planned.timeline import Event, Timeline
from weft.spec.notation import Label

_ALIKE = 0.01  # of a time: predictions are no more exact than that
_HIDDEN = 0.9  # of the time of transfers


@dataclass(frozen=True)
class Prediction:
    """A strategy with its predicted timeline, and the bytes that rank 0 sends over each link."""

    strategy: Strategy
    timeline: Timeline
    sent: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.timeline.seconds


@dataclass
class _Lanes:
    """Two queues, and when each is free; `held` is when a contraction has every multiprocessor."""

    held: list[tuple[float, float]] = field(default_factory=list)
    free: dict[str, float] = field(default_factory=lambda: {"transfer": 0.0, "compute": 0.0})
    events: list[Event] = field(default_factory=list)

    def put(
        self, lane: str, name: str, seconds: float, after: float = 0.0, stays: bool = False, step: int = -1
    ) -> float:
        """Queue something that may begin at `after`, and `stays` on all multiprocessors; when it ends."""
        begin = max(self.free[lane], after)
        if lane == "transfer":
            begin = self._between(begin)
        end = begin + seconds
        if stays:
            end += max(0.0, self.free["transfer"] - begin)
            self.held.append((begin, end))
        self.free[lane] = end
        if seconds:
            self.events.append(Event(lane, name, begin, end, step))
        return end

    def _between(self, begin: float) -> float:
        """The first time from `begin` on at which there are multiprocessors."""
        for first, last in self.held:
            if first < begin < last:
                begin = last
        return begin


@dataclass
class _Simulation:
    strategy: Strategy
    kernel: KernelModel
    link: Link
    lanes: _Lanes = field(default_factory=_Lanes)
    sent: Counter[str] = field(default_factory=Counter)

    def run(self) -> Prediction:
        strategy, problem = self.strategy, self.strategy.problem
        self.problem = problem
        self.steps = steps_of(strategy, 0)
        self.whole = {label: strategy.span(label, 0).extent for label in problem.labels}
        self.stays = self.kernel.stays(self.whole)
        ready = max([self._ahead(tensor) for tensor in (problem.a, problem.b)])
        computed: list[float] = []
        fetched = [self._fetch(0, computed)]
        reduced: dict[int, float] = {}
        for at, step in enumerate(self.steps):
            if at + 1 < len(self.steps):
                fetched.append(self._fetch(at + 1, computed))
            computed.append(self._compute(at, step, max(ready, fetched[at])))
            self._send(at, step, computed[-1], reduced)
            if at:
                self._finish(at - 1, reduced)
        self._finish(len(self.steps) - 1, reduced)
        self._end()
        events = tuple(sorted(self.lanes.events, key=lambda event: (event.begin, event.end)))
        return Prediction(strategy, Timeline("predicted", events), dict(self.sent))

    # -- operands ------------------------------------------------------------------------------------------------------

    def _ahead(self, tensor: Placed) -> float:
        if self.strategy.way_of(tensor) != "ahead":
            return 0.0
        route = self.strategy.route(tensor)
        return self.lanes.put("transfer", f"{tensor.name}: {route.said()}", self._travel(tensor.name, route))

    def _fetch(self, at: int, computed: list[float]) -> float:
        """When all operands of a step that move by parts are there."""
        step, done = self.steps[at], 0.0
        if step.part is None:
            return 0.0
        after = computed[at - 2] if at >= 2 else 0.0
        for tensor in (self.problem.a, self.problem.b):
            way = self.strategy.way_of(tensor)
            if way in ("range", "pieces"):
                route = self.strategy.route(tensor)
                scale = self._scale(step) if way == "range" else self._scale_of_pieces(step)
                name = f"{tensor.name}: {route.said()}, part {step.part}"
                seconds = self._travel(tensor.name, route, scale) + self._packing(tensor, scale)
                done = self.lanes.put("transfer", name, seconds, after, step=at)
        return done

    def _packing(self, tensor: Placed, scale: float) -> float:
        """Seconds to copy a part of this rank's piece to where it is sent from; a whole piece is sent uncopied."""
        if self.strategy.parts == 1:
            return 0.0
        return self.kernel.pass_over(2 * scale * self.problem.bytes_of(tensor.name) / self.problem.size)

    def _travel(self, name: str, route: TensorRoute, scale: float = 1.0, item: int | None = None) -> float:
        """Seconds of a way, or of a share of the tensor; counts what is sent."""
        seconds = 0.0
        for move, size, ranks in route.steps(item or self.problem.items[name]):
            seconds += self._collective(move.kind, size * scale, ranks)
        return seconds

    def _collective(self, kind: str, size: float, ranks: int) -> float:
        self.sent.update(self.link.loads(kind, size, ranks))
        return self.link.seconds(kind, size, ranks)

    def _scale(self, step: LoopStep) -> float:
        """The share of the loop's label that a part has."""
        assert self.strategy.loop is not None
        return step.spans[0].extent / max(1, self.whole[self.strategy.loop])

    def _scale_of_pieces(self, step: LoopStep) -> float:
        assert self.strategy.loop is not None
        rows = max(span.extent for span in step.spans)
        return rows * len(step.spans) / max(1, self.whole[self.strategy.loop])

    # -- D -------------------------------------------------------------------------------------------------------------

    def _compute(self, at: int, step: LoopStep, after: float) -> float:
        label = self.strategy.loop
        part = self.whole
        if label is not None:
            part = {**self.whole, label: sum(run.length * run.times for run in step.runs)}
        seconds = self.kernel.part(self.whole, part)
        if at and label not in self.problem.d.term:
            seconds += self.kernel.read_sums(self.whole)
        return self.lanes.put("compute", step.name, seconds, after, self.stays, at)

    def _send(self, at: int, step: LoopStep, after: float, reduced: dict[int, float]) -> None:
        strategy = self.strategy
        if strategy.reducing in ("range", "pieces"):
            seconds = self._sums(self._share(step))
            reduced[at] = self.lanes.put("transfer", f"D: sums, {step.name}", seconds, after, step=at)
        elif not strategy.reductions and strategy.way_of_d in ("range", "pieces"):
            self._leave(at, step, after)

    def _share(self, step: LoopStep) -> float:
        return self._scale_of_pieces(step) if self.strategy.reducing == "pieces" else self._scale(step)

    def _sums(self, scale: float) -> float:
        """Seconds of the sums over ranks."""
        size = math.prod(self.whole[label] for label in self.problem.d.term) * self.problem.items["sum"] * scale
        seconds = 0.0
        for each in self.strategy.reductions:
            ranks = self.problem.mesh[each.line]
            seconds += self._collective(each.kind, size, ranks)
            size /= 1 if each.target is None else ranks
        return seconds

    def _finish(self, at: int, reduced: dict[int, float]) -> None:
        if at not in reduced:
            return
        step = self.steps[at]
        after = reduced.pop(at)
        done = self.lanes.put("compute", f"finish {step.name}", self._pass(self._share(step)), after, step=at)
        if self.strategy.way_of_d in ("range", "pieces"):
            self._leave(at, step, done)

    def _pass(self, scale: float) -> float:
        d, items = self.problem.d, self.problem.items
        elements = math.prod(self._extent(label, self.strategy.summed) for label in d.term) * scale
        return self.kernel.pass_over(elements * (items["sum"] + items["d"]))

    def _extent(self, label: Label, places: tuple[Label | None, ...]) -> int:
        return self.problem.range(label, places, self.problem.at(0)).extent

    def _leave(self, at: int, step: LoopStep, after: float) -> None:
        route = self.strategy.leaving
        name = f"D: {route.said()}, part {step.part}"
        self.lanes.put("transfer", name, self._travel("d", route, self._scale(step)), after, step=at)

    def _end(self) -> None:
        after = self.lanes.free["compute"]
        if self.strategy.reducing == "ahead":
            done = self.lanes.put("transfer", "D: sums", self._sums(1.0), after)
            after = self.lanes.put("compute", "finish", self._pass(1.0), done)
        if self.strategy.way_of_d == "ahead":
            route = self.strategy.leaving
            self.lanes.put("transfer", f"D: {route.said()}", self._travel("d", route), after)


def predicted(strategy: Strategy, kernel: KernelModel, link: Link) -> Prediction:
    """One strategy's timeline."""
    return _Simulation(strategy, kernel, link).run()


def ranked(problem: RankProblem, kernel: KernelModel, link: Link) -> list[Prediction]:
    """Every strategy, the best first. It follows from the arguments alone.

    The fastest, but of those within `_ALIKE` of it one that hides `_HIDDEN` of its transfers, or what comes nearest to
    that, in the fewest parts: it has parts in memory instead of whole tensors. Where kernels stay on all
    multiprocessors little is gained while something travels, and the fewest parts come first: on two H200s sums that
    are scattered in 2 to 32 parts took 484 to 547 ms, and 497 in one (`results/h200x2/ways.json`).
    """
    found: list[Prediction] = []
    for first in strategies(problem):
        plain = predicted(first, kernel, link)
        found.append(plain)
        if plain.timeline.transfer:
            found += [predicted(each, kernel, link) for each in looped(first)]
    found.sort(key=lambda one: (one.seconds, one.strategy.parts))
    alike = sum(one.seconds <= (1 + _ALIKE) * found[0].seconds for one in found)
    strategy = found[0].strategy
    stays = kernel.stays({label: strategy.span(label, 0).extent for label in problem.labels})

    def preference(one: Prediction) -> tuple[float, ...]:
        hidden, parts = -min(one.timeline.hidden, _HIDDEN), float(one.strategy.parts)
        return (parts, hidden, one.seconds) if stays else (hidden, parts, one.seconds)

    return [*sorted(found[:alike], key=preference), *found[alike:]]

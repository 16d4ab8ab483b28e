"""The predicted time of a strategy: the steps of `execution` in their order, each with a predicted time.

The lane of transfers and the lane of contractions each do one thing at a time; a step waits for what it needs. Where
kernels hold every multiprocessor (`KernelModel.stays`) a transfer begins between them, and a contraction that begins
during transfers takes its own time after them: they run at once, and nothing is gained. Of two steps that may begin at
the same time the transfer does, as its stream has the higher priority. The prediction is that of rank 0, whose parts
are the largest.

Contracting a part takes the planner's prediction for this rank's share, spread over its parts:

    seconds = launch + max((the share's time - launch) * the part's share of products, its bytes / bandwidth)

A part that is thin reads an operand again, so its bytes may take longer than its products. A part along a summed mode
reads the sums of those before it, and its products wait meanwhile: 2.2 ms for 8.6 GB on an H200, where 1.0 to 3.3 were
measured (`results/h200x2/ways.json`).

A kernel whose blocks stay for all of their tiles, one on each multiprocessor, leaves none to a collective's kernel
before it ends. Where the collective came first, the blocks that waited for its multiprocessors have their tiles still
to do. GPUs take no block off a multiprocessor before it is done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from weft.algebra import Algebra
from weft.api.describe import choice_for
from weft.distributed.lanes import Event, Timeline
from weft.distributed.link import Link
from weft.distributed.moves import TensorRoute
from weft.distributed.placement import RankProblem
from weft.distributed.strategy import BY_PARTS, LoopStep, Strategy, Way, looped, steps_of, strategies
from weft.machine.datasheets import datasheet
from weft.planner.options import Options
from weft.planner.schedule import Target
from weft.planner.validity import generation
from weft.plans.resolving import resolved
from weft.spec import Notation
from weft.spec.notation import Label

LAUNCH = {"cuda": 6e-6, "cpu": 3e-5}  # seconds before a contraction of a part begins, host included, once it is known
_HANDOVER = {"cuda": 0.0, "cpu": 1e-3}  # before a part travels: a CPU's thread wakes another, which shares its cores
_ALIKE = 0.01  # of a time: predictions are no more exact than that
_HIDDEN = 0.9  # of the time of transfers
_STAYS = "warp_specialized"  # the family whose grid is as large as the GPU, each block with a range of tiles
_RATE, _BANDWIDTH = {"cuda": 100e12, "cpu": 20e9}, {"cuda": 2e12, "cpu": 10e9}  # where the planner predicts nothing


@dataclass(frozen=True)
class KernelModel:
    """Times of contractions of one equation on one device; `types` are those of a, b and of sums."""

    terms: tuple[tuple[Label, ...], tuple[Label, ...], tuple[Label, ...]]
    types: tuple[torch.dtype, torch.dtype, torch.dtype]
    target: Target
    algebra: Algebra | None = None
    precision: str | torch.dtype | None = None

    @property
    def kind(self) -> str:
        return "cuda" if self.target.kind in ("cuda", "hip") else "cpu"

    def part(self, whole: Mapping[Label, int], part: Mapping[Label, int]) -> float:
        """Seconds for a part of what a rank computes; both by the extents of labels."""
        launch = LAUNCH[self.kind]
        work = max(0.0, self.whole(whole) - launch)
        products = work * (self._products(part) / (self._products(whole) or 1.0))
        return launch + max(products, min(work, self.traffic(part) / self.bandwidth))

    def whole(self, extents: Mapping[Label, int]) -> float:
        """Seconds for all that a rank computes."""
        return self._predicted(extents)[0]

    def stays(self, extents: Mapping[Label, int]) -> bool:
        """Whether the kernel occupies all multiprocessors until it ends, so that no transfer can overlap it."""
        return self._predicted(extents)[1] == _STAYS

    def _predicted(self, extents: Mapping[Label, int]) -> tuple[float, str]:
        a, b = (tuple(extents[label] for label in term) for term in self.terms[:2])
        return _predicted(self, a, b, generation())

    def traffic(self, extents: Mapping[Label, int]) -> float:
        """Bytes of A, B and sums."""
        return sum(
            math.prod(extents[label] for label in term) * dtype.itemsize
            for term, dtype in zip(self.terms, self.types, strict=True)
        )

    def read_sums(self, extents: Mapping[Label, int]) -> float:
        """Seconds to read all sums."""
        return math.prod(extents[label] for label in self.terms[2]) * self.types[2].itemsize / self.bandwidth

    def pass_over(self, size: float) -> float:
        """Seconds to read and write `size` bytes in all, as what follows a sum does."""
        return LAUNCH[self.kind] + size / self.bandwidth

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the device's memory: of a GPU four fifths of its datasheet's, where it has one."""
        sheet = datasheet(self.target.name) if self.kind == "cuda" else None
        return 0.8 * sheet.bandwidth if sheet is not None else _BANDWIDTH[self.kind]

    def _products(self, extents: Mapping[Label, int]) -> float:
        return float(math.prod(extents[label] for label in dict.fromkeys(sum(self.terms, ()))))


@lru_cache(maxsize=1024)
def _predicted(
    kernel: KernelModel, a: tuple[int, ...], b: tuple[int, ...], _generation: tuple[int, int]
) -> tuple[float, str]:
    """Seconds for contiguous operands, and by what family; a roofline where the planner predicts nothing.

    They are predicted anew when what plans depend on has changed.
    """
    extents = dict(zip(sum(kernel.terms[:2], ()), (*a, *b), strict=True))
    for label, extent in zip(kernel.terms[0], a, strict=True):
        extents[label] = max(extent, extents[label])
    if not all(extents.values()):
        return LAUNCH[kernel.kind], ""
    x, y = (
        torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip((a, b), kernel.types[:2], strict=True)
    )
    # Modes may be of any kind: numbers stand for them, as an equation in text cannot hold them.
    number = {label: at for at, label in enumerate(extents)}
    terms = [tuple(number[label] for label in term) for term in kernel.terms]
    options = Options(
        kernel.types[2], kernel.precision, None, algebra=kernel.algebra, backend="reference", promote=True
    )  # fmt: skip
    request = resolved(Notation((terms[0], terms[1]), terms[2]), "a part", x, y, options)
    kind = kernel.kind
    device = torch.device(kind)
    backend = "cpu" if kind == "cpu" else "triton"
    _, choice = choice_for(replace(request, backend=backend, device=device, target=kernel.target))
    if choice is not None:
        return float(choice.best.seconds), choice.best.schedule.family
    flops = 2 * math.prod(extents.values())
    return LAUNCH[kind] + max(flops / _RATE[kind], kernel.traffic(extents) / kernel.bandwidth), ""


@dataclass(frozen=True)
class Prediction:
    """A strategy with its predicted timeline, and the bytes that rank 0 sends over each link."""

    strategy: Strategy
    timeline: Timeline
    sent: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.timeline.seconds


class _Simulation:
    """Two queues, and when each is free; `held` is when a contraction has every multiprocessor."""

    def __init__(self, strategy: Strategy, kernel: KernelModel, link: Link) -> None:
        self.strategy, self.problem, self.kernel, self.link = strategy, strategy.problem, kernel, link
        self.ways, self.whole = strategy.ways, strategy.share
        self.stays = kernel.stays(self.whole)
        self.steps = steps_of(strategy, 0)
        self.held: list[tuple[float, float]] = []
        self.free = {"transfer": 0.0, "compute": 0.0}
        self.events: list[Event] = []
        self.sent: Counter[str] = Counter()

    def run(self) -> Prediction:
        strategy, ways = self.strategy, self.ways
        ahead = [self._move(name, name, route) for name, route in strategy.routes.items() if ways[name] == "ahead"]
        ready = max(ahead, default=0.0)
        computed: list[float] = []
        fetched = [self._fetch(0, computed)]
        reduced: dict[int, float] = {}
        for at, step in enumerate(self.steps):
            if at + 1 < len(self.steps):
                fetched.append(self._fetch(at + 1, computed))
            computed.append(self._compute(at, step, max(ready, fetched[at])))
            if ways["sums"] in BY_PARTS:
                seconds = self._sums(self._scale(step, ways["sums"]))
                reduced[at] = self._put("transfer", f"D: sums, {step.name}", seconds, computed[-1], at)
            elif not strategy.reductions and ways["d"] in BY_PARTS:
                self._leave(at, step, computed[-1])
            if at:
                self._finish(at - 1, reduced)
        self._finish(len(self.steps) - 1, reduced)
        after = self.free["compute"]
        if ways["sums"] == "ahead":
            done = self._put("transfer", "D: sums", self._sums(1.0), after)
            after = self._put("compute", "finish", self._pass(1.0), done)
        if ways["d"] == "ahead":
            self._move("D", "d", strategy.leaving, after)
        events = tuple(sorted(self.events, key=lambda event: (event.begin, event.end)))
        return Prediction(strategy, Timeline("predicted", events), dict(self.sent))

    def _put(self, lane: str, name: str, seconds: float, after: float, step: int = -1, stays: bool = False) -> float:
        """Queue something that may begin at `after`, and `stays` on all multiprocessors; when it ends."""
        begin = max(self.free[lane], after)
        if lane == "transfer":  # it begins when there are multiprocessors
            begin += _HANDOVER[self.kernel.kind] if step >= 0 else 0.0
            for first, last in self.held:
                begin = last if first < begin < last else begin
        end = begin + seconds
        if stays:
            end += max(0.0, self.free["transfer"] - begin)
            self.held.append((begin, end))
        self.free[lane] = end
        if seconds:
            self.events.append(Event(lane, name, begin, end, step))
        return end

    # -- what travels --------------------------------------------------------------------------------------------------

    def _move(self, said: str, name: str, route: TensorRoute, after: float = 0.0) -> float:
        """A whole tensor on its way; when it is there."""
        return self._put("transfer", f"{said}: {route.said()}", self._travel(name, route), after)

    def _fetch(self, at: int, computed: list[float]) -> float:
        """When all operands of a step that move by parts are there."""
        step, done = self.steps[at], 0.0
        if step.part is None:
            return 0.0
        after = computed[at - 2] if at >= 2 else 0.0
        for name, route in self.strategy.routes.items():
            if self.ways[name] in BY_PARTS:
                scale = self._scale(step, self.ways[name])
                seconds = self._travel(name, route, scale) + self._packing(name, scale)
                done = self._put("transfer", f"{name}: {route.said()}, part {step.part}", seconds, after, at)
        return done

    def _packing(self, name: str, scale: float) -> float:
        """Seconds to copy a part of this rank's piece to where it is sent from; a whole piece is sent uncopied."""
        if self.strategy.parts == 1:
            return 0.0
        return self.kernel.pass_over(2 * scale * self.problem.bytes_of(name) / self.problem.size)

    def _travel(self, name: str, route: TensorRoute, scale: float = 1.0) -> float:
        """Seconds of a way, or of a share of the tensor; counts what is sent."""
        seconds = 0.0
        for move, size, ranks in route.steps(self.problem.items[name]):
            seconds += self._collective(move.kind, size * scale, ranks)
        return seconds

    def _collective(self, kind: str, size: float, ranks: int) -> float:
        self.sent.update(self.link.loads(kind, size, ranks))
        return self.link.seconds(kind, size, ranks)

    def _scale(self, step: LoopStep, way: Way) -> float:
        """The share of the loop's label that a part has, of one range or of every rank's chunk."""
        found = step.spans[0].extent
        if way == "pieces":
            found = max(span.extent for span in step.spans) * len(step.spans)
        return found / max(1, self.whole[self.strategy.loop])

    # -- D -------------------------------------------------------------------------------------------------------------

    def _compute(self, at: int, step: LoopStep, after: float) -> float:
        label = self.strategy.loop
        part = self.whole
        if label is not None:
            part = {**self.whole, label: sum(run.extent * run.times for run in step.runs)}
        seconds = self.kernel.part(self.whole, part)
        if at and label not in self.problem.d.term:
            seconds += self.kernel.read_sums(self.whole)
        return self._put("compute", step.name, seconds, after, at, self.stays)

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
        seconds = self._pass(self._scale(step, self.ways["sums"]))
        done = self._put("compute", f"finish {step.name}", seconds, reduced.pop(at), at)
        if self.ways["d"] in BY_PARTS:
            self._leave(at, step, done)

    def _pass(self, scale: float) -> float:
        problem, items, summed = self.problem, self.problem.items, self.strategy.summed
        first = problem.at(0)
        elements = math.prod(problem.range(label, summed, first).extent for label in problem.d.term) * scale
        return self.kernel.pass_over(elements * (items["sum"] + items["d"]))

    def _leave(self, at: int, step: LoopStep, after: float) -> None:
        route = self.strategy.leaving
        seconds = self._travel("d", route, self._scale(step, "range"))
        self._put("transfer", f"D: {route.said()}, part {step.part}", seconds, after, at)


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
    stays = kernel.stays(found[0].strategy.share)

    def preference(one: Prediction) -> tuple[float, ...]:
        hidden, parts = -min(one.timeline.hidden, _HIDDEN), float(one.strategy.parts)
        return (parts, hidden, one.seconds) if stays else (hidden, parts, one.seconds)

    return [*sorted(found[:alike], key=preference), *found[alike:]]

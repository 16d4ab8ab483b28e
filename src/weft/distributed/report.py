"""The text of a distributed plan: what is shared out, what travels, when, and what bounds it; and calls of all ranks
measured, and held against samples of the whole D."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch

from weft.api.describe import find_target
from weft.base.arrays import grad_mode
from weft.base.figures import counted, duration, share, si
from weft.distributed.asked import RankRequest, key_of
from weft.distributed.lanes import Event, Recorder, Timeline
from weft.distributed.link import Link, all_reduce, own_operation
from weft.distributed.placement import LocalBlock, Placed, Placement, RankProblem, coordinates, held
from weft.distributed.prediction import KernelModel, Prediction, ranked
from weft.distributed.ranks import Ranks
from weft.distributed.strategy import BY_PARTS, Strategy
from weft.oracle.validate import Sample, Sampled
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.spec.notation import Label, label_text, term_text


def explained(
    problem: RankProblem, chosen: Prediction, candidates: Sequence[Prediction], link: Link, kernel: KernelModel,
    ranks: Ranks | None,
) -> str:  # fmt: skip
    """The chosen way and its timeline, and what else was looked at."""
    here = f"{ranks}" if ranks is not None else counted(problem.size, "rank")
    lines = [f"{title(problem)} ({here})"]
    for placed in (problem.a, problem.b, problem.d):
        lines.append(f"  {placed.name.upper()} {_shape(problem, placed)} {_placed(placed)}")
    lines += ["", *way(chosen.strategy), ""]
    lines.append(f"link {link}")
    share_of_one = duration(kernel.whole(chosen.strategy.share))
    lines.append(f"kernel: {share_of_one} for a rank's share on {kernel.target.name}")
    sent = ", ".join(f"{si(size, 'B')} over {name}" for name, size in chosen.sent.items()) or "nothing"
    lines += [f"rank 0 sends {sent}", "", str(chosen.timeline), *others(chosen, candidates)]
    return "\n".join(lines)


def title(problem: RankProblem) -> str:
    """The title of a plan: what is contracted, over how many ranks."""
    terms = [term_text(each.term) for each in (problem.a, problem.b, problem.d)]
    mesh = " x ".join(map(str, problem.mesh))
    return f"{terms[0]},{terms[1]}->{terms[2]} over {counted(problem.size, 'rank')}, mesh {mesh}"


def way(strategy: Strategy, names: tuple[str, str, str] = ("A", "B", "D")) -> list[str]:
    """Lines on what is shared out, and how every tensor moves; `names` are what A, B and D are called."""
    problem, d = strategy.problem, names[2]
    splits = [
        f"'{label_text(label)}' ({_role(problem, label)}) along dimension {line}"
        for line, label in enumerate(strategy.split) if label is not None
    ]  # fmt: skip
    found = [f"ranks share out {', '.join(splits)}" if splits else "every rank computes all of D"]
    for name, tensor in zip(names, (problem.a, problem.b), strict=False):
        if not tensor.term:
            continue
        moves = strategy.routes[tensor.name].said()
        said = moves + _when(strategy.ways[tensor.name]) if moves else "stays"
        found.append(f"  {name}: {said}")
    for each in strategy.reductions:
        said = each.said(" of values with their indices" if problem.pairs else " of sums")
        found.append(f"  {d}: {said}{_when(strategy.ways['sums'], after=True)}")
    moves = strategy.leaving.said()
    if moves:
        found.append(f"  {d}: {moves}{_when(strategy.ways['d'], after=True)}")
    elif not strategy.reductions:
        found.append(f"  {d}: stays")
    if strategy.loop is not None:
        own = " after the rank's own piece" if strategy.own_first else ""
        found.append(f"in {strategy.parts} parts along '{label_text(strategy.loop)}'{own}")
    return found


def others(chosen: Prediction, candidates: Sequence[Prediction]) -> list[str]:
    """The best of each other way."""
    seen, found = {chosen.strategy.split}, []
    for one in candidates:
        if one.strategy.split not in seen:
            seen.add(one.strategy.split)
            names = ", ".join("none" if label is None else f"'{label_text(label)}'" for label in one.strategy.split)
            found.append(f"  sharing out {names}: {duration(one.seconds)}, {one.timeline.bounds} bounds it")
    return ["", "also looked at:", *found[:6]] if found else []


def paper(
    problem: RankProblem, ranks: int, link: Link, kernel: KernelModel, target: str | None
) -> tuple[RankProblem, list[Prediction], KernelModel]:
    """A plan on paper: the whole tensors of `problem`, placed alike on another number of ranks."""
    other = replace(problem, mesh=(ranks,)) if ranks != problem.size else problem
    if target is not None:
        kernel = replace(kernel, target=find_target(target))
    return other, ranked(other, kernel, link), kernel


def on_paper(problem: RankProblem, ranks: int, link: Link, kernel: KernelModel, target: str | None) -> str:
    """The plan for hardware that is not here, and what it assumes."""
    one_problem, alone, _ = paper(problem, 1, link, kernel, target)
    other, candidates, kernel = paper(problem, ranks, link, kernel, target)
    chosen = candidates[0]
    single = alone[0].seconds
    speedup = single / chosen.seconds if chosen.seconds else math.nan
    assumed = [
        "assumed:",
        f"  every rank is a {kernel.target.name}; a contraction of a part takes its share of what the planner predicts",
        f"  link {link}",
        "  all ranks begin at once and none is slower; collectives slow contractions down by nothing, but for kernels",
        "  that hold every multiprocessor: those are done later by as much as travels beside them",
        "  a step of a collective costs one latency; machines are joined by a network that is nowhere shared",
    ]
    return "\n".join([
        explained(other, chosen, candidates, link, kernel, None), "",
        f"on paper: {duration(single)} on {one_problem.size} rank, {duration(chosen.seconds)} on {ranks}: "
        f"{speedup:.3g} times as fast, efficiency {share(speedup / ranks)}",
        *assumed,
    ])  # fmt: skip


def _when(how: str, after: bool = False) -> str:
    if how in BY_PARTS:
        return ", part by part"
    return ", after all parts" if after else ", before the first part"


def _role(problem: RankProblem, label: object) -> str:
    in_a, in_b = label in problem.a.term, label in problem.b.term
    if label not in problem.d.term:
        return "k"
    return "batch" if in_a and in_b else "m" if in_a else "n"


def _shape(problem: RankProblem, placed: Placed) -> str:
    shape = "x".join(map(str, problem.shapes[placed.name])) or "0-d"
    return f"{term_text(placed.term)} {shape}, {si(problem.bytes_of(placed.name), 'B')}"


def _placed(placed: Placed) -> str:
    if all(label is None for label in placed.places):
        return "whole on every rank"
    return str(Placement(*placed.places))


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

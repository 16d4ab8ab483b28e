"""The text of a distributed plan: what is shared out, what travels, when, and what bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.api.describe import find_target
from weft.base.figures import counted, duration, share, si
from weft.distributed.group.link import Link
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.placement import Placed, Placement, RankProblem
from weft.distributed.planned.prediction import KernelModel, Prediction, ranked
from weft.distributed.planned.strategy import BY_PARTS, Strategy
from weft.spec.notation import label_text, term_text


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
        to = "" if each.target is None else f" along '{label_text(each.target)}'"
        summed = "values with their indices" if problem.pairs else "sums"
        found.append(f"  {d}: {each.kind} of {summed}{to}{_when(strategy.ways['sums'], after=True)}")
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

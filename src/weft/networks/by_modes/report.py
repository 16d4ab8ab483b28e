"""Networks distributed by modes on paper: where each intermediate is, what travels, and what it takes on many ranks."""

from __future__ import annotations

from typing import Any

from weft.api.describe import find_target
from weft.base.figures import counted, duration, share, si
from weft.distributed.group.link import Link, read_link
from weft.distributed.planned.placement import Places
from weft.errors import ArgumentError, UnsupportedError
from weft.networks.by_modes.plan import ModesPlan
from weft.networks.by_modes.search import by_slices, chosen, meshes_of
from weft.networks.cost import Model, model, precision_word
from weft.networks.plan import NetworkPlan
from weft.networks.tree import TreeStep

MOST_STEPS = 16  # that the text lists, those that take longest
MACHINE = 8  # GPUs, where nothing says how many


def report(network: NetworkPlan, ranks: Any, link: Any = None, target: Any = None) -> dict[str, Any]:
    """Numbers, text and lists alone; seconds are predicted, bytes are those of the rank with the largest parts.

    `one_seconds`: of one rank with the network's own slices; `slices_seconds`: of these shared out among all ranks.
    """
    plan, over, figures = _planned(network, ranks, link, target)
    one, slices = (by_slices(network, count, over, figures) for count in (1, ranks))
    return {
        "ranks": ranks,
        "mesh": list(plan.mesh),
        "link": str(over),
        "slices": plan.tree.slices,
        "seconds": plan.seconds,
        "one_seconds": one,
        "slices_seconds": slices,
        "memory_bytes": plan.memory,
        "sent_bytes": plan.sent,
        "steps": [_step(plan, step) for step in plan.tree.steps],
    }


def explain(network: NetworkPlan, ranks: Any, link: Any = None, target: Any = None) -> str:
    """The report for people."""
    found = report(network, ranks, link, target)
    one, seconds = found["one_seconds"], found["seconds"]
    mesh = " x ".join(map(str, found["mesh"]))
    lines = [
        f"network of {counted(len(network.graph.operands), 'operand')} over {counted(ranks, 'rank')}, mesh {mesh}",
        f"  link         {found['link']}",
        f"  slices       {found['slices']}, each distributed by modes",
        f"  memory       {si(found['memory_bytes'], 'B')} on a rank besides the operands",
        f"  travels      {si(found['sent_bytes'], 'B')} from a rank",
        f"  predicted    {duration(seconds)}; {duration(found['slices_seconds'])} by slices over as many ranks, "
        f"{duration(one)} on one: {one / seconds:.3g} times as fast, efficiency {share(one / seconds / ranks)}",
    ]
    ranked = sorted(found["steps"], key=lambda step: -(step["seconds"] + step["travel_seconds"]))[:MOST_STEPS]
    order = {step["node"]: at for at, step in enumerate(found["steps"])}
    count = f"{len(ranked)} of {len(found['steps'])}"
    lines += ["", f"steps that take longest ({count}), as they run, each of one slice", _HEAD]
    for step in sorted(ranked, key=lambda step: order[step["node"]]):
        lines.append(
            f"  {step['node']:>5} {duration(step['seconds']):>8} {si(step['sent_bytes'], 'B'):>9} "
            f"{duration(step['travel_seconds']):>8}  {step['equation']}, {_placed(step['shared_out'])}, "
            f"{_placed(step['placed'])}" + "".join(f"; {moved}" for moved in step["moves"])
        )
    return "\n".join(lines)


_HEAD = f"  {'node':>5} {'time':>8} {'travels':>9} {'takes':>8}  contraction, shared out, placed by; what travels"


def _planned(network: NetworkPlan, ranks: Any, link: Any, target: Any) -> tuple[ModesPlan, Link, Model]:
    for name, value in (("link", link), ("target", target)):
        if ranks is None and value is not None:
            raise ArgumentError(f"{name}={value!r} is of a call on paper: pass ranks=, too")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ArgumentError(f"ranks is a number of ranks, 1 or more, not {ranks!r}")
    if not network.tree.steps:
        raise UnsupportedError("a network of one operand has no steps that ranks could share out")
    settings = network.settings
    device = settings.target if target is None else find_target(target)
    figures = model(device, network.dtype, precision_word(settings.options.precision))
    if link is None:
        link = "gloo" if device.kind == "cpu" else "nvlink" if ranks <= MACHINE else "nvlink+ib"
    over = read_link(link, None, settings.device)
    return chosen(network, over, meshes_of(ranks), figures), over, figures


def _step(plan: ModesPlan, step: TreeStep) -> dict[str, Any]:
    graph, cost = plan.tree.graph, plan.costs[step.node]
    texts = [graph.text(plan.orders[node]) for node in (step.left, step.right, step.node)]
    moves = []
    for child in (step.left, step.right):
        route = plan.routes[step.node, child]
        for move in route.moves:
            to = "" if move.target is None else f" to '{graph.text((move.target,))}'"
            moves.append(f"{route.name}: {move.kind} along '{graph.text((move.source,))}'{to}")
    for _, target in plan.sums(step):
        to = "to all" if target is None else f"split by '{graph.text((target,))}'"
        moves.append(f"sums over ranks, {to}")
    return {
        "node": step.node,
        "equation": f"{texts[0]},{texts[1]}->{texts[2]}",
        "shared_out": _labels(plan, plan.split[step.node]),
        "placed": _labels(plan, plan.places[step.node]),
        "moves": moves,
        "seconds": cost.compute,
        "travel_seconds": cost.travel,
        "sent_bytes": cost.sent,
    }


def _labels(plan: ModesPlan, places: Places) -> list[str | None]:
    return [None if label is None else plan.tree.graph.text((label,)) for label in places]


def _placed(labels: list[str | None]) -> str:
    if all(label is None for label in labels):
        return "whole"
    return " x ".join("-" if label is None else label for label in labels)

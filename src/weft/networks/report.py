"""Reports of a planned network, and how far its result may be off.

A report, in words and as data, has path, slices, steps, memory, predicted time and the tree as text. The bound of an
error is that of every step, carried up the tree. Each step rounds its sums, relative to the sum of magnitudes, by
(K + 2) eps of its accumulator, and its result by half an eps of the type that it is stored in (`weft.oracle.rounding`).
Every product of the whole network goes through all steps, so its relative error is at most the product of all
(1 + step) less one; the bound is that times the same network of magnitudes. Slices are one more sum. (Higham, Accuracy
and Stability of Numerical Algorithms, section 3.1.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.api.describe import find_target
from weft.base.figures import counted, duration, folded, share, si, table
from weft.distributed.link import Link, read_link
from weft.distributed.placement import Places
from weft.errors import ArgumentError, UnsupportedError
from weft.networks.derivatives import Contractions, alone
from weft.networks.modes import ModesPlan
from weft.networks.modes_call import by_slices, chosen, meshes_of
from weft.networks.order import StepRoles
from weft.networks.plan import NetworkPlan
from weft.networks.steps import StepOptions
from weft.networks.tree import Model, TreeStep, model, precision_word
from weft.oracle.rounding import FP8_LOSS, SHORTENED, epsilon, smallest
from weft.planner.options import Options
from weft.spec.dtypes import FP8, resolve

MOST_STEPS = 12  # that the text lists, those that take longest
MOST_ON_RANKS = 16  # of those over ranks
MOST_LINES = 40  # of the tree
MACHINE = 8  # GPUs, where nothing says how many


def report(network: NetworkPlan, program: Any = None) -> dict[str, Any]:
    """Numbers, text and lists alone. Seconds are predicted; what is said of a step is of one slice.

    `flops` are of all slices, a complex multiply-add being eight. Bytes: `memory_bytes` is all that a call holds
    beyond its operands; `intermediates_bytes` of them are intermediates, `gathered_bytes` are copies of operands for a
    CUDA graph; `largest_bytes` is the largest intermediate or the result. `stretches`: how many indices of each
    `sliced` label a slice has. Of a step: the extents of its `m`, `n`, `k` and `batch`, `flops`, `bytes` read and
    written, `result_bytes`, whether it runs `once` for all slices and has a `function`; `kernel` and `tier` are empty
    until the network has been called.
    """
    tree, price = network.tree, network.model
    steps = [_step(network, program, step) for step in tree.steps]
    each = sum(step["flops"] * (1 if step["once"] else tree.slices) for step in steps)
    return {
        "operands": len(network.graph.operands),
        "constants": len(network.graph.operands) - len(network.folded.given),
        "labels": len(network.graph.extents),
        "hyper_edges": [network.graph.text((label,)) for label in network.graph.hyper()],
        "source": network.source,
        "path": [list(pair) for pair in network.whole.path],
        "sliced": [tree.graph.text((label,)) for label in tree.sliced],
        "stretches": list(tree.stretches),
        "slices": tree.slices,
        "flops": each,
        "seconds": price.total(tree) if steps else price.launch,
        "intermediates_bytes": network.arena.size,
        "gathered_bytes": network.copied(program),
        "memory_bytes": network.memory(program),
        "largest_bytes": max((step["result_bytes"] for step in steps), default=0),
        "steps": steps,
    }


def sliced_text(found: dict[str, Any]) -> str:
    """Text of a report: how many slices over which labels, and how many indices of each where a slice has several."""
    labels = [
        label if length == 1 else f"{label} ({length} at a time)"
        for label, length in zip(found["sliced"], found["stretches"], strict=True)
    ]
    return f"{found['slices']}" + (f" over {', '.join(labels)}" if labels else "")


def explain(network: NetworkPlan, program: Any = None) -> str:
    """The report for people."""
    found = report(network, program)
    lines = [
        f"network of {counted(found['operands'], 'operand')}, {counted(found['labels'], 'label')}"
        + (f", hyper-edges {', '.join(found['hyper_edges'][:8])}" if found["hyper_edges"] else ""),
        f"  device       {network.settings.target.name or network.settings.device}, {network.settings.backend} backend",
        f"  path         {found['source']}; {counted(len(found['steps']), 'step')}",
        *_wide(network),
        f"  slices       {sliced_text(found)}",
        f"  flops        {si(found['flops'], 'flop')}",
        f"  memory       {si(found['memory_bytes'], 'B')} besides the operands, "
        f"{si(found['intermediates_bytes'], 'B')} of which are intermediates; the largest is "
        f"{si(found['largest_bytes'], 'B')}"
        + (f"; {si(found['gathered_bytes'], 'B')} are copies of operands for a CUDA graph"
           if found["gathered_bytes"] else ""),
        f"  predicted    {duration(found['seconds'])}",
    ]
    if found["constants"]:
        lines.append(f"  constants    {counted(found['constants'], 'operand')}, contracted once")
    ranked = sorted(found["steps"], key=lambda step: -step["seconds"])[:MOST_STEPS]
    lines += ["", f"steps that take longest ({len(ranked)} of {len(found['steps'])}), each of one slice", _HEAD]
    lines += [_line(step) for step in ranked]
    return "\n".join([*lines, "", "tree", *tree_lines(network)])


def _wide(network: NetworkPlan) -> list[str]:
    """The line on intermediates that are kept in a wider type, where there are any."""
    asked, inner = network.asked, [step.node for step in network.tree.steps if step.node != network.tree.root]
    if not asked.halves or not inner:
        return []
    multiplied = asked.of(torch.float32, torch.float16).precision or "ieee"
    return [
        "  types        intermediates of float16 are kept in float32, whose range they do not leave, and multiplied "
        f"as {multiplied}"
    ]


_HEAD = f"  {'node':>5} {'m':>9} {'n':>9} {'k':>9} {'batch':>7} {'flops':>10} {'bytes':>9} {'time':>8}  contraction"


def _line(step: dict[str, Any]) -> str:
    chosen = f"  {step['kernel']}" if step["kernel"] else ""
    return (
        f"  {step['node']:>5} {step['m']:>9} {step['n']:>9} {step['k']:>9} {step['batch']:>7} "
        f"{si(step['flops'], ''):>10} {si(step['bytes'], 'B'):>9} {duration(step['seconds']):>8}  "
        f"{step['equation']}{chosen}"
    )


def _step(network: NetworkPlan, program: Any, step: TreeStep) -> dict[str, Any]:
    tree, graph = network.tree, network.tree.graph
    roles = StepRoles.of(*(tree.nodes[node] for node in (step.left, step.right, step.node)))
    factor = 8 if network.dtypes[step.node].is_complex else 2
    sizes = [tree.size(node) * network.dtypes[node].itemsize for node in (step.left, step.right, step.node)]
    texts = [graph.text(network.orders[node]) for node in (step.left, step.right, step.node)]
    call = None if program is None else program.calls.get(step.node)
    choice = call.variant.choice if call is not None else None
    return {
        "node": step.node,
        "of": [step.left, step.right],
        "equation": f"{texts[0]},{texts[1]}->{texts[2]}",
        **{role: graph.size(getattr(roles, role)) for role in ("m", "n", "k", "batch")},
        "flops": factor * tree.macs(step),
        "bytes": sum(sizes),
        "result_bytes": sizes[2],
        "once": step.node in tree.once,
        "function": step.node in network.functions,
        "seconds": choice.best.seconds if choice is not None else network.model.seconds(tree, step),
        "kernel": str(choice.best.schedule) if choice is not None else "",
        "tier": call.variant.tier.name if call is not None and call.variant.tier is not None else "",
    }


def tree_lines(network: NetworkPlan, most: int = MOST_LINES) -> list[str]:
    """The tree as text, the result at the top; of large ones the part that takes longest."""
    tree, graph = network.tree, network.tree.graph
    by_node = {step.node: step for step in tree.steps}
    lines: list[str] = []
    stack: list[tuple[int, str, str]] = [(tree.root, "", "")]
    while stack and len(lines) < most:
        node, lead, inner = stack.pop()
        text = graph.text(network.orders[node]) or "scalar"
        if node not in by_node:
            lines.append(f"{lead}{text}  operand {node}")
            continue
        step = by_node[node]
        lines.append(f"{lead}{text}  node {node}, {duration(network.model.seconds(tree, step))}")
        children = sorted((step.left, step.right), key=lambda child: -tree.size(child))
        stack.append((children[1], inner + "└─ ", inner + "   "))
        stack.append((children[0], inner + "├─ ", inner + "│  "))
    if stack:
        lines.append(f"... {len(tree.nodes) - most} nodes more: report() has all steps")
    return lines


def shown(network: NetworkPlan, program: Any) -> str:
    """HTML for a notebook: the figures of the report, and the text of `explain` behind a click."""
    found = report(network, program)
    rows = [
        ("operands", found["operands"]),
        ("path", f"{found['source']}; {counted(len(found['steps']), 'step')}"),
        ("slices", sliced_text(found)),
        ("work", si(found["flops"], "flop")),
        ("memory", f"{si(found['memory_bytes'], 'B')} besides the operands"),
        ("predicted", duration(found["seconds"])),
    ]
    return table(rows) + folded("explain()", explain(network, program))


def report_on_ranks(network: NetworkPlan, ranks: Any, link: Any = None, target: Any = None) -> dict[str, Any]:
    """Numbers, text and lists alone; seconds are predicted, bytes are those of the rank with the largest parts.

    `one_seconds`: of one rank with the network's own slices; `slices_seconds`: of these shared out among all ranks.
    """
    plan, over, figures = _on_paper(network, ranks, link, target)
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
        "steps": [_step_on_ranks(plan, step) for step in plan.tree.steps],
    }


def explain_on_ranks(network: NetworkPlan, ranks: Any, link: Any = None, target: Any = None) -> str:
    """The report for people."""
    found = report_on_ranks(network, ranks, link, target)
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
    ranked = sorted(found["steps"], key=lambda step: -(step["seconds"] + step["travel_seconds"]))[:MOST_ON_RANKS]
    count = f"{len(ranked)} of {len(found['steps'])}"
    lines += ["", f"steps that take longest ({count}), as they run, each of one slice", _HEAD_ON_RANKS]
    lines += [
        f"  {step['node']:>5} {duration(step['seconds']):>8} {si(step['sent_bytes'], 'B'):>9} "
        f"{duration(step['travel_seconds']):>8}  {step['equation']}, {_placed(step['shared_out'])}, "
        f"{_placed(step['placed'])}" + "".join(f"; {moved}" for moved in step["moves"])
        for step in found["steps"] if step in ranked
    ]  # fmt: skip
    return "\n".join(lines)


_HEAD_ON_RANKS = (
    f"  {'node':>5} {'time':>8} {'travels':>9} {'takes':>8}  contraction, shared out, placed by; what travels"
)


def _on_paper(network: NetworkPlan, ranks: Any, link: Any, target: Any) -> tuple[ModesPlan, Link, Model]:
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


def _step_on_ranks(plan: ModesPlan, step: TreeStep) -> dict[str, Any]:
    graph, cost = plan.tree.graph, plan.costs[step.node]
    texts = [graph.text(plan.orders[node]) for node in (step.left, step.right, step.node)]
    moves = []
    for child in (step.left, step.right):
        route = plan.routes[step.node, child]
        for move in route.moves:
            to = "" if move.target is None else f" to '{graph.text((move.target,))}'"
            moves.append(f"{route.name}: {move.kind} along '{graph.text((move.source,))}'{to}")
    for each in plan.sums(step):
        to = "to all" if each.target is None else f"split by '{graph.text((each.target,))}'"
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


def error_bound(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """A float64 tensor in the result's shape. `UnsupportedError` for networks with functions or another algebra."""
    if network.whole_functions or network.settings.options.algebra is not None:
        raise UnsupportedError("the bound of a network is of sums of products without functions")
    relative, low = growth(network)
    return relative * _magnitudes(network, operands).reshape(network.graph.shape) + low


def growth(network: NetworkPlan) -> tuple[float, float]:
    """The error that all steps together may bring into a product: relative to its magnitude, and by underflow."""
    found, low = 1.0, 0.0
    for relative, least in _steps(network):
        found *= 1.0 + relative
        low += least
    return found - 1.0, low


def _steps(network: NetworkPlan) -> Iterator[tuple[float, float]]:
    """The error that each step may bring into a product: relative to its magnitude, and by underflow."""
    tree, asked = network.tree, network.asked
    for step in tree.steps:
        a, b = network.dtypes[step.left], network.dtypes[step.right]
        options = asked.of(a, b)
        arithmetic = resolve(a, b, options.precision, options.accumulate, None, options.promote)
        count = tree.graph.size(tree.reduced(step))
        parts = 4.0 if a.is_complex or b.is_complex else 1.0
        relative = parts * (count + 5) * (epsilon(arithmetic.accumulate) + epsilon(torch.float64))
        rounds = any(epsilon(each) < epsilon(arithmetic.product) for each in (a, b))  # factors, before their products
        rounded = epsilon(arithmetic.product) / 2 if rounds else 0.0
        relative += 2.5 * max(SHORTENED.get(arithmetic.precision, 0.0), rounded)
        relative += FP8_LOSS if arithmetic.product in FP8 else 0.0
        stored = network.dtypes[step.node]
        yield relative + epsilon(stored) / 2, count * smallest(arithmetic.accumulate) + smallest(stored)
    if not tree.steps:  # the sums of one operand
        (term,), dtype = tree.graph.terms, network.dtype
        count = tree.graph.size(set(term) - set(tree.graph.output))
        yield (count + 2) * (epsilon(dtype) + epsilon(torch.float64)), count * smallest(dtype)
    if tree.slices > 1:
        stored = network.dtypes[tree.root]
        yield (tree.slices + 2) * epsilon(stored), tree.slices * smallest(stored)


def _magnitudes(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The network of magnitudes, in float64."""
    found = [operand.resolve_conj().abs().double() for operand in operands]
    if not network.tree.steps:
        return alone(network, found[0])
    wide = replace(network, dtypes=dict.fromkeys(network.dtypes, torch.float64), asked=StepOptions())
    return Contractions(wide, network.tree.with_slices(()), Options(specialize="auto"))(*found)

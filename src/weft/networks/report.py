"""Reports of a planned network, in words and as data: path, slices, steps, memory, predicted time, tree as text."""

from __future__ import annotations

from typing import Any

import torch

from weft.base.describe import folded, table
from weft.base.figures import counted, duration, si
from weft.networks.fit import StepRoles
from weft.networks.plan import NetworkPlan
from weft.networks.tree import TreeStep

MOST_STEPS = 12  # that the text lists, those that take longest
MOST_LINES = 40  # of the tree


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
        "path": [list(pair) for pair in network.path],
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

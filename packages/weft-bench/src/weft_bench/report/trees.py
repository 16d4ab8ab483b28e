"""The contraction tree of a `weft.network` as a graph, as a figure of matplotlib and as a page."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

from weft.base.figures import counted
from weft.networks.network import Network
from weft.networks.plan import NetworkPlan

_WIDTH, _LEVEL = 22.0, 34.0  # of a page's picture: pixels for each operand and for each level


def to_graph(network: Network[Any]) -> Any:
    """A `networkx.DiGraph` with an edge from each tensor to the step that takes it.

    Nodes have `kind` ("operand" or "step"), `labels`, `shape` (elements) and `bytes`; steps also `flops` and predicted
    `seconds` of one slice, and `equation`.
    """
    import networkx  # type: ignore[import-untyped]

    plan, tree = network.plan, network.plan.tree
    found = networkx.DiGraph(slices=tree.slices, sliced=network.slices)
    steps = {step["node"]: step for step in network.report()["steps"]}
    for node in sorted(tree.nodes):
        names = tuple(plan.graph.names[label] for label in plan.orders[node])
        size = tree.size(node) * plan.dtypes[node].itemsize
        known = {"labels": names, "shape": plan.shape(node), "bytes": size}
        if node in steps:
            step = steps[node]
            more = {name: step[name] for name in ("flops", "seconds", "equation")}
            found.add_node(node, kind="step", **known, **more)
        else:
            found.add_node(node, kind="operand", **known)
    for step in tree.steps:
        found.add_edge(step.left, step.node)
        found.add_edge(step.right, step.node)
    return found


def positions(network: NetworkPlan) -> dict[int, tuple[float, float]]:
    """Where each node stands: operands side by side, every step amid its two, a level above the higher one."""
    tree = network.tree
    by_node = {step.node: step for step in tree.steps}
    order: list[int] = []
    stack = [tree.root]
    while stack:
        node = stack.pop()
        if node in by_node:
            stack += sorted((by_node[node].left, by_node[node].right), key=tree.size)
        else:
            order.append(node)
    found: dict[int, tuple[float, float]] = {leaf: (float(at), 0.0) for at, leaf in enumerate(order)}
    for step in sorted(tree.steps, key=lambda step: step.node):
        (x, y), (u, v) = found[step.left], found[step.right]
        found[step.node] = ((x + u) / 2, max(y, v) + 1)
    return found


def draw(network: Network[Any], file: Any = None) -> Any:
    """The tree as a figure, saved where `file` is a path: circles grow with the tensors' bytes, colours are predicted
    seconds of the step that makes them."""
    from matplotlib.figure import Figure

    at, graph = positions(network.plan), to_graph(network)
    figure = Figure(figsize=(max(4.0, min(24.0, 0.16 * len(at))), 5.0), layout="constrained")
    axes = figure.add_subplot()
    for child, parent in graph.edges:
        axes.plot(*zip(at[child], at[parent], strict=True), color="0.75", linewidth=0.8, zorder=1)
    nodes = list(graph.nodes)
    sizes = [6 + 6 * math.log2(1 + graph.nodes[node]["bytes"]) for node in nodes]
    times = [graph.nodes[node].get("seconds", 0.0) for node in nodes]
    across, up = [at[node][0] for node in nodes], [at[node][1] for node in nodes]
    dots = axes.scatter(across, up, s=sizes, c=times, cmap="viridis", zorder=2)
    figure.colorbar(dots, label="predicted seconds of the step")
    axes.set_axis_off()
    axes.set_title(repr(network), fontsize=9)
    if file is not None:
        figure.savefig(file)
    return figure


def tree_svg(network: Network[Any]) -> str:
    """The tree as SVG, each node with its labels and figures on hovering."""
    at, graph = positions(network.plan), to_graph(network)
    height = (max(y for _, y in at.values()) + 1) * _LEVEL
    width = (max(x for x, _ in at.values()) + 1) * _WIDTH
    longest = max((graph.nodes[node].get("seconds", 0.0) for node in graph.nodes), default=0.0) or 1.0

    def point(node: int) -> tuple[float, float]:
        x, y = at[node]
        return (x + 0.5) * _WIDTH, height - (y + 0.5) * _LEVEL

    parts = []
    for child, parent in graph.edges:
        (x, y), (u, v) = point(child), point(parent)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="#bbb"/>')
    for node, known in graph.nodes(data=True):
        x, y = point(node)
        share = math.sqrt(known.get("seconds", 0.0) / longest)
        radius = 2 + 0.35 * math.log2(1 + known["bytes"])
        colour = f"rgb({int(60 + 180 * share)},{int(110 - 60 * share)},{int(170 - 120 * share)})"
        what = known.get("equation", known["labels"])
        title = html.escape(f"{known['kind']} {node}: {what}, {counted(known['bytes'], 'byte')}")
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        parts.append(f'<circle {place} fill="{colour}"><title>{title}</title></circle>')
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%"'
    return f'<svg {size} role="img" aria-label="contraction tree">{"".join(parts)}</svg>'


def to_html(network: Network[Any], file: Any = None) -> str:
    """A page with the tree and the text of `explain`; saved where `file` is a path."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Contraction tree</title></head><body>'
        f"{tree_svg(network)}<pre>{html.escape(network.explain())}</pre></body></html>"
    )
    if file is not None:
        Path(file).write_text(page, encoding="utf-8")
    return page

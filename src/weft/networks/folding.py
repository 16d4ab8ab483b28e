"""Constants: subtrees of operands that never change are contracted once, and the rest is a smaller network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from weft.networks.graph import dims_of
from weft.networks.order import Orders
from weft.networks.tree import Tree, TreeStep


@dataclass(frozen=True)
class Folded:
    """A tree after folding: `given` operands of the caller come first, then `made` nodes of the whole tree."""

    tree: Tree
    given: tuple[int, ...]  # operands of the whole tree that a call brings
    made: tuple[int, ...]  # its nodes that are made of constants alone, or constants as they are
    steps: tuple[TreeStep, ...]  # of the whole tree: what makes them, in order
    nodes: Mapping[int, int]  # of the whole tree, to ours


def folded(whole: Tree, constants: Collection[int], orders: Orders) -> Folded:
    """The tree without what is made of constants alone, whose layouts are `orders`: those of the whole tree."""
    below = whole.below()
    fixed = {node for node, leaves in below.items() if leaves <= set(constants)}
    if whole.steps and whole.root in fixed:
        fixed.discard(whole.root)  # the last step stays: every call has a result of its own
    made = [
        child for step in sorted(whole.steps, key=lambda step: step.node) if step.node not in fixed
        for child in (step.left, step.right) if child in fixed
    ] if whole.steps else sorted(fixed)  # fmt: skip
    given = [leaf for leaf in range(whole.leaves) if leaf not in constants]
    nodes = {node: at for at, node in enumerate([*given, *made])}
    pairs = []
    for step in sorted(whole.steps, key=lambda step: step.node):
        if step.node not in fixed:
            pairs.append((nodes[step.left], nodes[step.right]))
            nodes[step.node] = len(given) + len(made) + len(pairs) - 1
    graph = whole.graph
    operands = [graph.operands[leaf] for leaf in given]
    operands += [
        dims_of(orders[node], graph.extents) if node >= whole.leaves else graph.operands[node] for node in made
    ]
    tree = Tree.of(replace(graph, operands=tuple(operands)), pairs, whole.sliced)
    return Folded(tree, tuple(given), tuple(made), tuple(step for step in whole.steps if step.node in fixed), nodes)

"""The path of an einsum as contractions of two, before there are tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.networks.many import network_of
from weft.planner.options import Options
from weft.spec import Notation

Pair = tuple[int, int, Notation]  # which two meet, operands first and then results, and what is made of them


def path_of(
    notation: Notation, shapes: Sequence[tuple[int, ...]], types: Sequence[torch.dtype], device: torch.device,
    options: Options,
) -> list[Pair]:  # fmt: skip
    """The steps that `weft.einsum` takes for operands of these shapes, types and device; `options` are theirs."""
    network = network_of(notation, shapes, types, device, options)
    scheme, names = network.scheme, network.graph.names
    terms = list(notation.inputs)
    places = {node: node for node in range(len(terms))}  # of nodes, among operands and results as steps run
    found: list[Pair] = []
    for step in scheme.tree.steps:
        last = step.node == scheme.tree.root
        made = notation.output if last else tuple(names[label] for label in scheme.orders[step.node])
        left, right = places[step.left], places[step.right]
        found.append((left, right, Notation((terms[left], terms[right]), made)))
        places[step.node] = len(terms)
        terms.append(made)
    return found

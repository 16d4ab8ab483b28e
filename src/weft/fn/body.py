"""From a recorded graph to lines in any language: its operations one by one, on values that have names there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.graphs import name_of
from weft.fn.numba.lowering import QUICK
from weft.fn.operations import lowering_of
from weft.fn.writer import Held, Writer, computing


def write(w: Writer, graph: fx.Graph, arguments: Sequence[Held], *, quick: bool = False) -> None:
    """Write a graph's operations on these values.

    `quick`: by lowerings that round otherwise than torch, but for values that a condition is on. Raises
    `UnsupportedError` for what the language has no code for, naming it.
    """
    given, exact = iter(arguments), deciding(graph) if quick else frozenset()
    for node in graph.nodes:
        if node.op == "placeholder":
            w.take(node, next(given))
        elif node.op == "call_function" and not _fold(w, node):
            name = name_of(node)
            lowering, dtype = lowering_of(name, w), w.computes(node)
            if any(each.meta["dtype"].is_complex for each in node.all_input_nodes) and name not in w.of_complex:
                raise UnsupportedError(f"{name} of complex values has no code {w.where}")
            w.rounded = node.meta["dtype"]
            if quick and node not in exact:
                lowering = QUICK.get(name, lowering)
            w.values[node] = Held(w.typed(lowering(w, dtype, *node.args, **node.kwargs), dtype), dtype)


def written(w: Writer, node: fx.Node) -> Held:
    """A value of a graph that is written, as the type that it is computed in."""
    dtype = w.values[node].dtype if node in w.values else computing(node.meta["dtype"])
    return Held(w.operand(node, dtype), dtype)


def deciding(graph: fx.Graph) -> frozenset[fx.Node]:
    """The values that truth values and whole numbers are made of: rounded otherwise, these may be others."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        dtype = node.meta.get("dtype", torch.float32)
        if node in found or not (dtype.is_floating_point or dtype.is_complex):
            found.update(node.all_input_nodes)
    return frozenset(found)


def _fold(w: Writer, node: fx.Node) -> bool:
    """Compute a value that depends on no input here and now, by torch."""
    if name_of(node) == "full_like":
        w.known[node] = torch.full((1,), node.args[1], dtype=node.meta["dtype"], device="cpu")  # type: ignore[arg-type]
    elif all(source in w.known for source in node.all_input_nodes):
        arguments = fx.map_arg((node.args, node.kwargs), w.known.__getitem__)
        w.known[node] = node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
    return node in w.known

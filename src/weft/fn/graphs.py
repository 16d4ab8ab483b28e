"""Recorded graphs: what they return, what a value depends on, and running them on values of any kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from torch import fx


def run(graph: fx.Graph, arguments: Iterable[Any], call: Callable[[fx.Node, Any, Any], Any]) -> tuple[Any, ...]:
    """The results of a graph for these arguments; `call` makes the value of an operation from its own arguments."""
    given = iter(arguments)
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = next(given)
        elif node.op == "call_function":
            known[node] = call(node, *fx.map_arg((node.args, node.kwargs), known.__getitem__))
    return tuple([known[node] for node in results_of(graph)])


def behind(*nodes: fx.Node, cut: Collection[fx.Node] = ()) -> set[fx.Node]:
    """Values and those that they depend on; what lies behind a node that is cut does not count."""
    seen: set[fx.Node] = set()
    waiting = [*nodes]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += () if one in cut else one.all_input_nodes
    return seen


def output_of(graph: fx.Graph) -> Any:
    """The value that a graph returns, or the tuple of values."""
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def results_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """The values that a graph returns."""
    result = output_of(graph)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def name_of(node: fx.Node) -> str:
    """The name of an operation, without aten's and without its overload."""
    return str(node.target._schema.name).removeprefix("aten::")  # type: ignore[union-attr]

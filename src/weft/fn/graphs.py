"""Recorded graphs: what they return, what a value depends on, their identity; run on values of any kind, and written.

Writing a graph makes lines in any language: its operations one by one, on values that have names there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from weft.base.figures import dtype_name
from weft.errors import UnsupportedError
from weft.fn.numba.writer import QUICK
from weft.fn.operations import lowering_of
from weft.fn.writer import Held, Writer, computing


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


def canonical(graph: fx.Graph) -> str:
    """Text that two recorded graphs share exactly when they compute the same thing in the same way.

    Operations stand in recording order with their overload, arguments and result dtype; values are numbered, so the
    names of functions and parameters leave no trace. Floats are written in hexadecimal, which tells -0.0 from 0.0
    and loses no bit; integers and booleans keep their kind, because torch promotes each differently.
    """
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"return {_argument(node.args[0], numbers)}")
            continue
        numbers[node] = f"%{len(numbers)}"
        if node.op == "placeholder":
            lines.append(f"{numbers[node]}: {dtype_name(node.meta['dtype'])}")
            continue
        arguments = [_argument(argument, numbers) for argument in node.args]
        arguments += [f"{key}={_argument(node.kwargs[key], numbers)}" for key in sorted(node.kwargs)]
        lines.append(f"{numbers[node]} = {node.target}({', '.join(arguments)}): {dtype_name(node.meta['dtype'])}")
    return "\n".join(lines)


def _argument(value: Any, numbers: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_argument(item, numbers) for item in value)})"
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return f"complex({value.real.hex()}, {value.imag.hex()})"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return repr(value)


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

"""From a recorded graph to lines of a body: its operations one by one, on values that have names there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.lowerings import Lowering
from weft.fn.writer import Writer, computing


class Held(NamedTuple):
    """A value of a body: its name, and the torch type that it has; half types are held as float32."""

    name: str
    dtype: torch.dtype


class Language(NamedTuple):
    """A language's lowering of each operation, and which of them take complex values.

    `quick` are lowerings that round otherwise than torch, of values that no condition is on.
    """

    name: str  # as refusals call what runs it, "the CPU" say
    lowerings: Mapping[str, Lowering]
    of_complex: frozenset[str] = frozenset()
    quick: Mapping[str, Lowering] = MappingProxyType({})


def written(writer: Writer, graph: fx.Graph, arguments: Sequence[Held], language: Language) -> list[Held]:
    """Write a graph's operations on these values; its results, as the types that they are computed in.

    Raises `UnsupportedError` for what the language has no code for, naming it.
    """
    given, exact = iter(arguments), deciding(graph) if language.quick else frozenset()
    for node in graph.nodes:
        if node.op == "placeholder":
            value = next(given)
            writer.define(node, writer.cast(value.name, value.dtype, computing(node.meta["dtype"])))
        elif node.op == "call_function" and not _fold(writer, node):
            _operation(writer, node, language, {} if node in exact else language.quick)
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    nodes = result if isinstance(result, tuple) else (result,)
    return [Held(writer.operand(node, writer.held(node)), writer.held(node)) for node in nodes]


def deciding(graph: fx.Graph) -> frozenset[fx.Node]:
    """The values that truth values and whole numbers are made of: rounded otherwise, these may be others."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        dtype = node.meta.get("dtype", torch.float32)
        if node in found or not (dtype.is_floating_point or dtype.is_complex):
            found.update(node.all_input_nodes)
    return frozenset(found)


def _operation(w: Writer, node: fx.Node, language: Language, quick: Mapping[str, Lowering]) -> None:
    dtype = computing(node.meta["dtype"])
    name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    if name not in language.lowerings:
        raise UnsupportedError(f"{name} has no code for {language.name}")
    takes_complex = any(each.meta["dtype"].is_complex for each in node.all_input_nodes)
    if takes_complex and name not in language.of_complex:
        raise UnsupportedError(f"{name} of complex values has no code for {language.name}")
    w.rounded = node.meta["dtype"]
    text = quick.get(name, language.lowerings[name])(w, dtype, *node.args, **node.kwargs)
    w.define(node, w.typed(text, dtype))


def _fold(w: Writer, node: fx.Node) -> bool:
    """Compute a value that depends on no input here and now, by torch."""
    if node.target._schema.name == "aten::full_like":  # type: ignore[union-attr]
        w.know(node, torch.full((1,), node.args[1], dtype=node.meta["dtype"], device="cpu"))  # type: ignore[arg-type]
    elif all(w.knows(source) for source in node.all_input_nodes):
        arguments = fx.map_arg((node.args, node.kwargs), w.known)
        w.know(node, node.target(*arguments[0], **arguments[1]))  # type: ignore[operator]
    return w.knows(node)

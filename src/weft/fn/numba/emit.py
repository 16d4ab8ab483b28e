"""From a recorded graph to lines of the loop body that numba compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.numba.lowering import LOWERINGS
from weft.fn.numba.writer import NumbaWriter
from weft.fn.pointwise import Pointwise, RecordedFunction
from weft.fn.writer import computing


class Held(NamedTuple):
    """A value of the loop body: its name, and the torch type that it has; half types are held as float32."""

    name: str
    dtype: torch.dtype


def inlined(writer: NumbaWriter, function: Pointwise, arguments: Sequence[Held]) -> list[Held]:
    """Write the function's operations on these values; its results, each rounded to its own type.

    Raises `UnsupportedError` for what has no code here, naming it.
    """
    if not isinstance(function, RecordedFunction):
        raise UnsupportedError("a function written in Triton has no code for the CPU")
    graph = function.graph if function.is_complex else function.primitive
    _Inliner(writer).run(graph, arguments)
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    nodes = result if isinstance(result, tuple) else (result,)
    return [_result(writer, node) for node in nodes]


def _result(writer: NumbaWriter, node: fx.Node) -> Held:
    dtype = node.meta["dtype"]
    held = writer.held(node)
    name = writer.operand(node, held)
    return Held(writer.cast(name, held, dtype), dtype)


class _Inliner:
    """Writes a graph, operation by operation."""

    def __init__(self, writer: NumbaWriter) -> None:
        self._writer = writer

    def run(self, graph: fx.Graph, arguments: Sequence[Held]) -> None:
        w = self._writer
        given = iter(arguments)
        for node in graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                w.define(node, w.cast(value.name, value.dtype, computing(node.meta["dtype"])))
            elif node.op == "call_function" and not self._fold(node):
                self._operation(node)

    def _operation(self, node: fx.Node) -> None:
        w, dtype = self._writer, computing(node.meta["dtype"])
        name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
        if name not in LOWERINGS:
            raise UnsupportedError(f"{name} has no code for the CPU")
        takes_complex = any(each.meta["dtype"].is_complex for each in node.all_input_nodes)
        if takes_complex and name not in _COMPLEX:
            raise UnsupportedError(f"{name} of complex values has no code for the CPU")
        w.rounded = node.meta["dtype"]
        text = LOWERINGS[name](w, dtype, *node.args, **node.kwargs)
        w.define(node, w.typed(text, dtype))

    def _fold(self, node: fx.Node) -> bool:
        """Compute a value that depends on no input here and now, by torch."""
        w = self._writer
        if node.target._schema.name == "aten::full_like":  # type: ignore[union-attr]
            w.know(node, torch.full((1,), node.args[1], dtype=node.meta["dtype"], device="cpu"))  # type: ignore[arg-type]
        elif all(w.knows(source) for source in node.all_input_nodes):
            arguments = fx.map_arg((node.args, node.kwargs), w.known)
            w.know(node, node.target(*arguments[0], **arguments[1]))  # type: ignore[operator]
        return w.knows(node)


_COMPLEX = frozenset({"add", "sub", "rsub", "mul", "neg", "conj_physical", "real", "imag", "_to_copy", "eq", "ne"})

"""Write a recorded graph as the source text of one `@triton.jit` function.

Every value is one line. Values of float16, bfloat16 and fp8 are computed in float32. They are rounded to their own
dtype at explicit casts and at the end only, so that a fused function is more exact than torch's eager chain of rounded
steps. All other dtypes compute as themselves; integers wrap.

Two kinds of operation stay in half precision, where one instruction computes two elements: selections (`relu`, `clamp`,
`maximum`) of float16 values, which round nothing, and an ELU of float16 or bfloat16 values.

Constants are written with their type and to the last bit.
"""

from __future__ import annotations

import hashlib

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.triton.lowering_select import LOWERINGS
from weft.fn.triton.writer import TritonWriter
from weft.fn.writer import HALF_TYPES, computing, representable

_SELECTIONS = frozenset({"aten::clamp_min", "aten::clamp_max", "aten::clamp", "aten::maximum", "aten::minimum"})


def emit(graph: fx.Graph) -> str:
    """Source of one function of the graph's inputs in order, named `fused_` and a digest of its own text.

    The text refers to `triton`, `tl`, `libdevice` and `device_math` and to nothing else. Raises `UnsupportedError` for
    complex values, which Triton does not have.
    """
    if any(node.meta["dtype"].is_complex for node in graph.nodes if node.op != "output"):
        raise UnsupportedError("functions of complex values do not run on the Triton backend yet")
    with torch._C._DisableAutocast():
        body = _Emitter().run(graph)
    parameters = ", ".join(node.target for node in graph.nodes if node.op == "placeholder")
    digest = hashlib.sha256(f"{parameters}\n{body}".encode()).hexdigest()[:16]
    return f"@triton.jit\ndef fused_{digest}({parameters}):\n{body}"


class _Emitter(TritonWriter):
    """Writes a whole graph, operation by operation."""

    def run(self, graph: fx.Graph) -> str:
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        in_half = half_nodes(graph)
        for node in graph.nodes:
            self._remark = str(node.target).rpartition(".")[0]
            if node.op == "placeholder":
                self._names[node], self._held[node] = str(node.target), node.meta["dtype"]
            elif node.op == "call_function" and not self._fold(node):
                self.rounded = node.meta["dtype"]
                lowering = LOWERINGS[node.target._schema.name.removeprefix("aten::")]
                self._held[node] = node.meta["dtype"] if node in in_half else computing(node.meta["dtype"])
                text = lowering(self, self._held[node], *node.args, **node.kwargs)
                self._names[node] = text if text.isidentifier() else self.let(text)
        (result,) = next(node for node in graph.nodes if node.op == "output").args
        self._remark = ""
        results = [self._returned(node, inputs) for node in (result if isinstance(result, tuple) else (result,))]
        trailing = "," if isinstance(result, tuple) and len(results) == 1 else ""
        self._line(f"return {', '.join(results)}{trailing}")
        return "".join(self._lines)

    def _fold(self, node: fx.Node) -> bool:
        """Compute a value that depends on no input here and now, by torch."""
        name = node.target._schema.name  # type: ignore[union-attr]
        if name == "aten::full_like":
            self._known[node] = torch.full((1,), node.args[1], dtype=node.meta["dtype"], device="cpu")  # type: ignore[arg-type]
        elif all(source in self._known for source in node.all_input_nodes):
            arguments = fx.map_arg((node.args, node.kwargs), self._known.__getitem__)
            self._known[node] = node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
        return node in self._known

    def _returned(self, node: fx.Node, inputs: list[fx.Node]) -> str:
        """The value in its own dtype and in the shape that all inputs have together, whichever of them it reads."""
        dtype = node.meta["dtype"]
        held = self._held.get(node, computing(dtype))
        name = self.operand(node, held)
        if held != dtype:
            name = self.let(self.rounding(name, dtype))
        read = self._sources(node)
        for unread in (entry for entry in inputs if entry not in read):
            spread = self._fresh()
            self._line(f"{spread}, _ = tl.broadcast({name}, {unread.target})")
            name = spread
        return name

    def _sources(self, node: fx.Node) -> set[fx.Node]:
        """The nodes that enter a value, itself and inputs included."""
        found: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if current not in found and current not in self._known:
                found.add(current)
                waiting += current.all_input_nodes
        return found

def half_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Operations that compute in half precision: their arguments and their result have it."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and (_is_selection(node, found) or _is_elu(node, found)):
            found.add(node)
    for node in reversed(list(graph.nodes)):
        if any(user.op != "output" and user not in found for user in node.users):
            found.discard(node)
    return found


def _is_selection(node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether an operation selects among float16 values.

    At most one of them may be computed in float32 and rounded first; numbers must be exact in float16.
    """
    if node.target._schema.name not in _SELECTIONS or node.meta["dtype"] != torch.float16:  # type: ignore[union-attr]
        return False
    tensors = node.all_input_nodes
    computed = [each for each in tensors if each.op != "placeholder" and each not in found]
    numbers = [each for each in (*node.args, *node.kwargs.values()) if isinstance(each, (bool, int, float))]
    return (
        len(computed) < min(len(tensors), 2)
        and all(each.meta["dtype"] == torch.float16 for each in tensors)
        and all(number == representable(number, torch.float16) for number in numbers)
    )


def _is_elu(node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether an operation is an ELU, without factors, of a value in half precision."""
    if node.target._schema.name != "aten::elu" or node.meta["dtype"] not in HALF_TYPES:  # type: ignore[union-attr]
        return False
    (value,) = node.all_input_nodes
    factors = (*node.args[1:], *node.kwargs.values())
    return all(factor == 1 for factor in factors) and (value.op == "placeholder" or value in found)

"""Write a recorded graph as the source text of one `@triton.jit` function.

Every value is one line. Values of float16, bfloat16 and fp8 are computed in float32. They are rounded to their own
dtype at explicit casts and at the end only, so that a fused function is more exact than torch's eager chain of rounded
steps. All other dtypes compute as themselves; integers wrap.

Two kinds of operation stay in half precision, where one instruction computes two elements: selections (`relu`, `clamp`,
`maximum`) of float16 values, which round nothing, and an ELU of float16 or bfloat16 values.

Constants are written with their type and to the last bit.

`issue_cost` is the cost on a GPU: issue slots (instructions) for each element. The figures are counts in machine code
for sm_90, compiled by Triton 3.6 without flushing subnormals: a kernel with the operation, less the same kernel without
it. Those of operations stand in their rows (`weft.fn.operations`).
"""

from __future__ import annotations

import hashlib

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.graphs import behind, name_of, output_of, results_of, write, written
from weft.fn.operations import MANY, OPERATIONS
from weft.fn.triton.writer import TritonWriter
from weft.fn.writer import HALF_TYPES, Held, computing, representable

_SELECTIONS = frozenset({"clamp_min", "clamp_max", "clamp", "maximum", "minimum"})


def emit(graph: fx.Graph) -> str:
    """Source of one function of the graph's inputs in order, named `fused_` and a digest of its own text.

    The text refers to `triton`, `tl`, `libdevice` and `device_math` and to nothing else. Raises `UnsupportedError` for
    complex values, which Triton does not have.
    """
    if any(node.meta["dtype"].is_complex for node in graph.nodes if node.op != "output"):
        raise UnsupportedError("functions of complex values do not run on the Triton backend yet")
    inputs = [Held(node.target, node.meta["dtype"]) for node in graph.nodes if node.op == "placeholder"]
    w = TritonWriter(half_nodes(graph))
    with torch._C._DisableAutocast():
        write(w, graph, inputs)
        w.remark = ""
        results = [_returned(w, node, inputs) for node in results_of(graph)]
    trailing = "," if isinstance(output_of(graph), tuple) and len(results) == 1 else ""
    w.line(f"return {', '.join(results)}{trailing}")
    parameters, body = ", ".join(each.name for each in inputs), "".join(f"    {line}\n" for line in w.lines)
    digest = hashlib.sha256(f"{parameters}\n{body}".encode()).hexdigest()[:16]
    return f"@triton.jit\ndef fused_{digest}({parameters}):\n{body}"


def _returned(w: TritonWriter, node: fx.Node, inputs: list[Held]) -> str:
    """The value in its own dtype and in the shape that all inputs have together, whichever of them it reads."""
    (name, held), dtype = written(w, node), node.meta["dtype"]
    if held != dtype:
        name = w.let(w.converted_to(name, dtype))
    read = {each.target for each in behind(node, cut=w.known)}
    for unread in (entry.name for entry in inputs if entry.name not in read):
        spread = w.fresh()
        w.line(f"{spread}, _ = tl.broadcast({name}, {unread})")
        name = spread
    return name


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
    if name_of(node) not in _SELECTIONS or node.meta["dtype"] != torch.float16:
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
    if name_of(node) != "elu" or node.meta["dtype"] not in HALF_TYPES:
        return False
    (value,) = node.all_input_nodes
    factors = (*node.args[1:], *node.kwargs.values())
    return all(factor == 1 for factor in factors) and (value.op == "placeholder" or value in found)


_TO_SINGLE, _FROM_SINGLE = 1.0, 0.5  # conversions of half precision; two elements are rounded at a time
_SELECTION_IN_HALF, _ELU_IN_HALF = 0.5, 5.0  # without conversion, two elements to a register
_GELU_BY_TANH = 7.0
_SCALED = 2.0  # more than an ELU takes without factors


def issue_cost(graph: fx.Graph) -> float:
    """Issue slots for each element of a graph of primitive operations, conversions included."""
    in_half = half_nodes(graph)
    total = 0.0
    for node in graph.nodes:
        if node.op == "placeholder" and computing(node.meta["dtype"]) != node.meta["dtype"]:
            total += _TO_SINGLE if any(user.op != "output" and user not in in_half for user in node.users) else 0.0
        elif node.op == "call_function":
            total += _of_half(node, in_half) if node in in_half else _of(node)
    held = [node for node in results_of(graph) if node.op != "placeholder" and node not in in_half]
    return total + sum(_FROM_SINGLE for node in held if node.meta["dtype"] in HALF_TYPES)


def _of_half(node: fx.Node, in_half: set[fx.Node]) -> float:
    """Cost of an operation in half precision. Arguments that were computed in float32 are rounded first."""
    if name_of(node) == "elu":
        return _ELU_IN_HALF
    computed = [each for each in node.all_input_nodes if each.op != "placeholder" and each not in in_half]
    return _SELECTION_IN_HALF + _FROM_SINGLE * len(computed)


def _of(node: fx.Node) -> float:
    slots = OPERATIONS[name_of(node)].slots
    if isinstance(slots, float):
        return slots
    if computing(node.meta["dtype"]) is not torch.float32:
        return MANY
    if node.kwargs.get("approximate") == "tanh":
        return _GELU_BY_TANH
    scaled = name_of(node) == "elu" and any(factor != 1 for factor in node.args[1:])
    return slots[0 if node.meta["dtype"] in HALF_TYPES else 1] + (_SCALED if scaled else 0.0)

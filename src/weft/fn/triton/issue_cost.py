"""The cost of a recorded function on a GPU: issue slots (instructions) for each element.

The figures are counts in machine code for sm_90, compiled by Triton 3.6 without flushing subnormals: a kernel with the
operation, less the same kernel without it. An operation that is not in the tables counts as one instruction, an
elementary function of `libdevice` as the average of these.
"""

from __future__ import annotations

import torch
from torch import fx

from weft.fn.graphs import name_of, results_of
from weft.fn.operations import ELEMENTARY
from weft.fn.triton.emit import half_nodes
from weft.fn.writer import HALF_TYPES, computing

_ELEMENTARY = 20.0
_SINGLE = {"exp": 8.0, "exp2": 4.0, "div": 9.0, "reciprocal": 8.0, "sqrt": 8.0, "rsqrt": 3.0}
_BY_PRECISION = {  # rounded to half precision at once, and not
    "elu": (6.0, 9.0),
    "expm1": (6.0, 15.0),
    "gelu": (10.5, 14.0),
    "sigmoid": (4.0, 13.0),
    "tanh": (10.0, 14.0),
}
_FREE = frozenset({"full_like", "scalar_tensor", "copy", "alias", "view"})
_TO_SINGLE, _FROM_SINGLE = 1.0, 0.5  # conversions of half precision; two elements are rounded at a time
_SELECTION_IN_HALF, _ELU_IN_HALF = 0.5, 5.0  # without conversion, two elements to a register
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
    name = name_of(node)
    if name in _FREE:
        return 0.0
    if computing(node.meta["dtype"]) is torch.float32:
        half = node.meta["dtype"] in HALF_TYPES
        if name == "gelu" and node.kwargs.get("approximate") == "tanh":
            return 7.0
        if name in _BY_PRECISION:
            scaled = name == "elu" and any(factor != 1 for factor in node.args[1:])
            return _BY_PRECISION[name][0 if half else 1] + (_SCALED if scaled else 0.0)
    return _SINGLE.get(name, _ELEMENTARY if name in ELEMENTARY else 1.0)


def _name(node: fx.Node) -> str:
    return node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]

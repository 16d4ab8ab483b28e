"""The cost of a recorded function on a GPU: issue slots (instructions) for each element.

The figures are counts in machine code for sm_90, compiled by Triton 3.6 without flushing subnormals: a kernel with the
operation, less the same kernel without it. Those of operations stand in their rows (`weft.fn.operations`).
"""

from __future__ import annotations

import torch
from torch import fx

from weft.fn.graphs import name_of, results_of
from weft.fn.operations import MANY, OPERATIONS
from weft.fn.triton.emit import half_nodes
from weft.fn.writer import HALF_TYPES, computing

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

"""A function in the reductions that blocks are accumulated by: sums, extremes, and sums over a peak.

    m = peak(x)                     the largest so far, a constant to gradients; 0 where there is none
    w = exp(x - m)
    l = sum(w)                      rescaled by exp(m - new m) where a larger x comes
    softmax(x) = w / l              logsumexp(x) = log(l) + m
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from weft.cascades.between import Between
from weft.fn.reductions import REDUCE, is_reduction
from weft.spec import Label

aten = torch.ops.aten
#: The kind of a reduction that gives sums of exponentials their scale.
PEAK = "peak"


class Rewriting:
    """A new graph while it is made of another; `new` has the new node of each old one."""

    def __init__(self, between: Between) -> None:
        self.between, self.graph = between, fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}
        self._known: dict[Any, fx.Node] = {}

    def copy(self, node: fx.Node) -> fx.Node:
        """A node of the old graph in the new one."""
        if node.op == "call_function":
            args, kwargs = self.rename(node.args), self.rename(node.kwargs)
            self.new[node] = self._made(node.target, args, kwargs, node.meta["dtype"], node.meta["scalar"])
        else:
            self.new[node] = self.graph.node_copy(node, self.new.__getitem__)
        return self.new[node]

    def call(self, target: Any, *args: Any, like: fx.Node, dtype: torch.dtype | None = None) -> fx.Node:
        """An operation of the new graph, of the type of `like`."""
        return self._made(target, args, {}, dtype or like.meta["dtype"], False)

    def number(self, value: float, like: fx.Node) -> fx.Node:
        """A number of the type of `like`."""
        dtype = like.meta["dtype"]
        return self._made(aten.scalar_tensor.default, (value,), {"dtype": dtype}, dtype, True)

    def _made(self, target: Any, args: Any, kwargs: Any, dtype: torch.dtype, scalar: bool) -> fx.Node:
        """An operation, which is there once whoever asks for it."""
        key = target, repr(args), repr(sorted(kwargs.items())), dtype, scalar
        if key not in self._known:
            self._known[key] = self.graph.call_function(target, tuple(args), dict(kwargs))
            self._known[key].meta.update(dtype=dtype, scalar=scalar)
        return self._known[key]

    def peak(self, value: fx.Node, modes: Any) -> fx.Node:
        """The peak of a value along modes."""
        return self.call(REDUCE, value, PEAK, sorted(modes), like=value)

    def finished(self, outputs: Any) -> Between:
        """The new function."""
        self.graph.output(outputs)
        self.graph.eliminate_dead_code()
        return Between(self.graph, self.between.names, self.between.given, self.between.notation)

    def rename(self, nodes: Any) -> Any:
        """Results of an old graph, in new nodes."""
        return fx.map_arg(nodes, self.new.__getitem__)


def lowered(between: Between, extents: Mapping[Label, int], whole: frozenset[Label] = frozenset()) -> Between:
    """A function without softmax, logsumexp and mean, but for those over labels of `whole` alone."""
    made = Rewriting(between)
    for node in between.graph.nodes:
        if node.op == "output":
            return made.finished(made.rename(node.args[0]))
        kind = node.args[1] if is_reduction(node) else None
        if kind is not None and whole and between.large(node) and set(between.reduced(node)) <= whole:
            made.copy(node)
        elif kind in ("softmax", "logsumexp"):
            made.new[node] = _exponentials(made, node, str(kind))
        elif kind == "mean":
            count = math.prod(extents[label] for label in between.reduced(node))
            total = made.call(REDUCE, made.new[node.args[0]], "sum", node.args[2], like=node)
            made.new[node] = made.call(aten.div.Tensor, total, float(count) if count else math.nan, like=node)
        else:
            made.copy(node)
    raise AssertionError("a graph has an output")


def _exponentials(made: Rewriting, node: fx.Node, kind: str) -> fx.Node:
    """Softmax, which is 0 where there is nothing, or the logarithm of the sum, which is -inf."""
    value, modes = made.new[node.args[0]], node.args[2]  # type: ignore[index]
    peak = made.peak(value, modes)
    weights = made.call(aten.exp.default, made.call(aten.sub.Tensor, value, peak, like=node), like=node)
    total = made.call(REDUCE, weights, "sum", modes, like=node)
    nothing = made.call(aten.eq.Scalar, total, 0.0, like=node, dtype=torch.bool)
    safe = made.call(aten.where.self, nothing, made.number(1.0, node), total, like=node)
    if kind == "softmax":
        return made.call(aten.div.Tensor, weights, safe, like=node)
    logarithm = made.call(aten.add.Tensor, made.call(aten.log.default, safe, like=node), peak, like=node)
    return made.call(aten.where.self, nothing, made.number(-math.inf, node), logarithm, like=node)


def number_of(value: Any) -> float | None:
    """The number that a value is everywhere."""
    if isinstance(value, fx.Node):
        name = value.target
        if name is aten.full_like.default:
            value = value.args[1]
        elif name is aten.scalar_tensor.default:
            value = value.args[0]
    return float(value) if isinstance(value, (bool, int, float)) else None

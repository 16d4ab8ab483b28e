"""A function in the reductions that blocks are accumulated by: sums, extremes, and sums over a peak.

    m = peak(x)                     the largest so far, a constant to gradients; 0 where there is none
    w = exp(x - m)
    l = sum(w)                      rescaled by exp(m - new m) where a larger x comes
    softmax(x) = w / l              logsumexp(x) = log(l) + m

The running form: sums that need the results of reductions, made in the pass that makes the reductions. A sum over j of
``h(s, r)``, where r is reduced over j, runs if h is a product of factors that lack r, of factors that lack j, and of
exponentials whose exponents are sums of such terms. Then

    sum_j u(s_j) v(r) exp(e(s_j) + f(r))  =  v(r) exp(m + f(r)) * sum_j u(s_j) exp(e(s_j) - m)

with m the largest e so far: the last sum is rescaled by ``exp(m - new m)`` when that grows, and the factor before it is
applied once, behind the last block. Softmax, its kin with other exponents and sums that are divided by a sum are of
this form. What is not says here why.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from weft.cascades.between import Between
from weft.cascades.frame import CascadeFrame
from weft.fn.graphs import name_of, output_of
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

    def through(self, rewritten: Callable[[fx.Node], fx.Node | None]) -> Any:
        """The results of the old graph in the new one, where some operations are `rewritten`."""
        for node in self.between.inputs:
            self.new[node] = self.graph.node_copy(node)
        for node in self.between.calls:
            found = rewritten(node)
            if found is None:
                args, kwargs = self.rename(node.args), self.rename(node.kwargs)
                found = self._made(node.target, args, kwargs, node.meta["dtype"], node.meta["scalar"])
            self.new[node] = found
        return self.rename(output_of(self.between.graph))


def lowered(between: Between, extents: Mapping[Label, int], whole: frozenset[Label] = frozenset()) -> Between:
    """A function without softmax, logsumexp and mean, but for those over labels of `whole` alone."""
    made = Rewriting(between)

    def rewritten(node: fx.Node) -> fx.Node | None:
        if not is_reduction(node) or (whole and between.large(node) and set(between.reduced(node)) <= whole):
            return None
        if node.args[1] in ("softmax", "logsumexp"):
            return _exponentials(made, node, str(node.args[1]))
        if node.args[1] != "mean":
            return None
        count = math.prod(extents[label] for label in between.reduced(node))
        total = made.call(REDUCE, made.new[node.args[0]], "sum", node.args[2], like=node)  # type: ignore[index]
        return made.call(aten.div.Tensor, total, float(count) if count else math.nan, like=node)

    return made.finished(made.through(rewritten))


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


class NotRunning(Exception):
    """A value that has no running form; the text says which operation stands against it."""


@dataclass(slots=True)
class _Factors:
    """A value as a product: factors with their powers, and terms of an exponent with signs.

    Where one of `masks` is false the value is 0; `number` is one more factor.
    """

    factors: list[tuple[fx.Node, int]] = field(default_factory=list)
    terms: list[tuple[fx.Node, int]] = field(default_factory=list)
    masks: list[fx.Node] = field(default_factory=list)
    number: float = 1.0


def running(written: Between, frame: CascadeFrame) -> tuple[Between, fx.Node | None]:
    """A function in running form, whose result that meets C is of elements alone, and the factor behind their sum.

    Raises `NotRunning`.
    """
    between = lowered(written, frame.extents)
    product = between.outputs[0] if frame.meets else None
    free, made = _free(between), Rewriting(between)

    def rewritten(node: fx.Node) -> fx.Node | None:
        if not between.large(node) or node.args[0] in free:
            return None
        if node.args[1] != "sum":
            raise NotRunning(f"weft.{node.args[1]} of a value that was reduced before")
        total, before = _run(made, node.args[0], free, list(node.args[2]))  # type: ignore[arg-type]
        return _times(made, made.call(REDUCE, total, "sum", node.args[2], like=node), before, node)

    results, factor = made.through(rewritten), None
    if product is not None and product not in free:
        met, factor = _run(made, product, free, sorted(map(str, frame.columns)))
        results = (met, *results[1:]) if isinstance(results, tuple) else met
    return _finished(made, results, factor)


def _finished(made: Rewriting, results: Any, factor: fx.Node | None) -> tuple[Between, fx.Node | None]:
    """The new function, and its node of the factor, which is none of the results."""
    if factor is None:
        return made.finished(results), None
    found = made.finished((*results, factor) if isinstance(results, tuple) else (results, factor))
    *outputs, behind = found.outputs
    found.outputs, found.several = tuple(outputs), len(outputs) > 1
    if behind in found.elementwise:
        raise NotRunning("the factor behind the sum has modes that none of its parts has all of")
    return found, behind


def _free(between: Between) -> set[fx.Node]:
    """Values that need no result of a reduction of elements."""
    found = set(between.inputs)
    for node in between.calls:
        if not between.large(node) and all(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _run(made: Rewriting, node: fx.Node, free: Collection[fx.Node], modes: list[str]) -> tuple[fx.Node, fx.Node | None]:
    """The value that is summed over `modes`, and the factor behind the sum, in nodes of the new graph."""
    between = made.between
    factors = _Factors()
    _split(between, node, free, factors, 1)

    def apart(parts: list[tuple[fx.Node, int]]) -> list[list[tuple[fx.Node, int]]]:
        """Parts that are summed, and those behind the sum, in new nodes."""
        large = [each for each in parts if each[0] in between.elementwise]
        small = [each for each in parts if each not in large]
        along = [each for each in small if {str(label) for label in between.modes[each[0]]} & set(modes)]  # an operand
        if any(each not in free for each, _ in along):
            raise NotRunning("a factor of the sum is reduced, but not over all of the modes that are summed")
        behind = [each for each in small if each not in along]
        return [[(made.new[each], power) for each, power in some] for some in ((*large, *along), behind)]

    (inner, outer), (exponents, shift) = apart(factors.factors), apart(factors.terms)
    summed, before = _power(made, inner, node), _power(made, outer, node)
    if exponents:
        exponent = _sum(made, exponents, node)
        assert exponent is not None
        peak = made.peak(exponent, modes)
        weight = made.call(aten.exp.default, made.call(aten.sub.Tensor, exponent, peak, like=node), like=node)
        summed = _times(made, summed, weight, node)
        if (peak, -1) in shift:
            shift.remove((peak, -1))
        else:
            shift.append((peak, 1))
    if shift:
        before = _times(made, before, made.call(aten.exp.default, _sum(made, shift, node), like=node), node)
    if factors.number != 1.0:
        before = _times(made, before, made.number(factors.number, node), node)
    if summed is None:
        summed = made.call(aten.full_like.default, made.new[between.inputs[0]], 1.0, like=node)
    for mask in factors.masks:
        summed = made.call(aten.where.self, made.new[mask], summed, made.number(0.0, node), like=node)
    return summed, before


def _times(made: Rewriting, value: fx.Node | None, factor: fx.Node | None, like: fx.Node) -> Any:
    """The product of two values, None for a factor of 1."""
    if value is None or factor is None:
        return value or factor
    return made.call(aten.mul.Tensor, value, factor, like=like)


def _split(between: Between, node: fx.Node, free: Collection[fx.Node], into: _Factors, power: int) -> None:
    """Take a value apart into factors."""
    name, large = _name(node), node in between.elementwise
    exponent = any(each in between.elementwise for each, _ in into.terms)
    if large and name == "exp" and (node not in free or power != 1 or exponent):
        _split_exponent(between, node.args[0], free, into, power)  # type: ignore[arg-type]
    elif node in free or not large:
        into.factors.append((node, power))
    elif name in ("mul", "div") and node.args[1] != 0:
        pairs = zip(node.args, (power, power if name == "mul" else -power), strict=True)
        for value, own in sorted(pairs, key=lambda pair: isinstance(pair[0], fx.Node)):  # numbers first
            if isinstance(value, fx.Node):
                _split(between, value, free, into, own)
            else:
                into.number *= float(value) ** own  # type: ignore[arg-type]
    elif name == "neg":
        into.number = -into.number
        _split(between, node.args[0], free, into, power)  # type: ignore[arg-type]
    elif name == "where" and power > 0 and node.args[0] in free and number_of(node.args[2]) == 0:
        into.masks.append(node.args[0])  # type: ignore[arg-type]
        _split(between, node.args[1], free, into, power)  # type: ignore[arg-type]
    else:
        raise NotRunning(_reason(node))


def _split_exponent(between: Between, node: fx.Node, free: Collection[fx.Node], into: _Factors, sign: int) -> None:
    """Take an exponent apart into terms."""
    name = _name(node)
    if node in free or node not in between.elementwise:
        into.terms.append((node, sign))
    elif name in ("add", "sub") and _are_nodes(node) and not node.kwargs and len(node.args) == 2:
        _split_exponent(between, node.args[0], free, into, sign)  # type: ignore[arg-type]
        _split_exponent(between, node.args[1], free, into, sign if name == "add" else -sign)  # type: ignore[arg-type]
    elif name == "neg":
        _split_exponent(between, node.args[0], free, into, -sign)  # type: ignore[arg-type]
    else:
        raise NotRunning(_reason(node))


def _reason(node: fx.Node) -> str:
    name = f"weft.{node.args[1]}" if is_reduction(node) else f"torch.{_name(node)}"
    return f"{name} takes an element together with a reduced value"


def _name(node: fx.Node) -> str:
    return name_of(node) if node.op == "call_function" else node.op


def _are_nodes(node: fx.Node) -> bool:
    return len(node.args) >= 2 and all(isinstance(each, fx.Node) for each in node.args[:2])


def _power(made: Rewriting, factors: list[tuple[fx.Node, int]], like: fx.Node) -> fx.Node | None:
    """The product of factors and inverses; None for none."""
    above = [node for node, power in factors if power > 0]
    below = [node for node, power in factors if power < 0]
    found = _joined(made, aten.mul.Tensor, above, like)
    if below:
        divisor = _joined(made, aten.mul.Tensor, below, like)
        found = made.number(1.0, like) if found is None else found
        found = made.call(aten.div.Tensor, found, divisor, like=like)
    return found


def _sum(made: Rewriting, terms: list[tuple[fx.Node, int]], like: fx.Node) -> fx.Node | None:
    found: fx.Node | None = None
    for node, sign in sorted(terms, key=lambda term: -term[1]):
        if found is None:
            found = node if sign > 0 else made.call(aten.neg.default, node, like=like)
        else:
            found = made.call(aten.add.Tensor if sign > 0 else aten.sub.Tensor, found, node, like=like)
    return found


def _joined(made: Rewriting, target: Any, nodes: list[fx.Node], like: fx.Node) -> fx.Node | None:
    return functools.reduce(lambda x, y: made.call(target, x, y, like=like), nodes) if nodes else None

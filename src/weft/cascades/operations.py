"""The function of a cascade in torch's operations: of a block, of small values, or of all of S at once.

All of S at once is one program of torch's operations: the reference, second derivatives, and calls of few elements.
Torch's autograd differentiates it, as often as is asked. A node of autograd in Python, blocks and loops cost more than
a few operations on a small S do.

Every tensor has all modes of S in order, with extent 1 where it lacks one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from weft.api.contract import contract
from weft.autograd.graphs import GraphWriter, LabelGroups, Program, bound
from weft.cascades.frame import CascadeFrame
from weft.cascades.program import CascadeProgram
from weft.fn.decompositions import IN_PLACE_OF
from weft.fn.graphs import name_of
from weft.fn.reductions import is_reduction
from weft.spec import Label

Shape = tuple[int, ...]
Laid = tuple[Sequence[Label], Sequence[int]]  # a tensor's labels and its shape


@lru_cache(maxsize=1024)
def recipe(
    nodes: tuple[fx.Node, ...], kept: frozenset[fx.Node], program: CascadeProgram
) -> Callable[[dict[fx.Node, Tensor]], None]:
    """Operations as one program of torch's, which puts values of `kept` beside those that are there; others are dropped
    once they are read no more. What is reduced here has all indices of the reduced modes.
    """
    writer, made, frame = GraphWriter({}), set(nodes), program.frame
    given = [*dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in made)]
    values = {node: writer.graph.placeholder(f"x{at}") for at, node in enumerate(given)}
    for node in nodes:
        if is_reduction(node):
            labels = program.between.reduced(node)
            shape = [frame.extents[label] if label in labels else -1 for label in frame.order]
            count = math.prod([frame.extents[each] for each in labels])
            value = writer.method("expand", values[node.all_input_nodes[0]], shape)
            values[node] = writer.call(reduce_whole, node.args[1], value, frame.dims(labels), count)
        else:
            values[node] = operation(writer.graph, node, values.__getitem__, frame)
    results = [node for node in kept if node in made]
    call = writer.program(values[node] for node in results)

    def run(known: dict[fx.Node, Tensor]) -> None:
        known.update(zip(results, call(*map(known.__getitem__, given)), strict=True))

    return run


def run_whole(nodes: tuple[fx.Node, ...], program: CascadeProgram, values: dict[fx.Node, Tensor]) -> None:
    """Run small nodes, whole, and keep them."""
    if nodes:
        recipe(nodes, frozenset(nodes), program)(values)


def operation(graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node], frame: CascadeFrame) -> fx.Node:
    """An operation of a function in another graph, on tensors of all modes of S in order."""
    name = name_of(node)
    if name in ("full_like", "scalar_tensor"):
        number, shape = node.args[name == "full_like"], (1,) * len(frame.order) if name == "full_like" else ()
        kind: Any = node.meta["dtype"]
        return graph.call_function(torch.full, (shape, number), {"dtype": kind, "device": str(frame.device)})
    if name == "exp" and frame.device.type == "cpu" and _is_over_peak(node.args[0]):
        return graph.call_function(exponential, tuple(map(value, node.args[0].args)))  # type: ignore[union-attr,arg-type]
    args, kwargs = fx.map_arg((node.args, node.kwargs), value)
    return graph.call_function(IN_PLACE_OF.get(name) or bound(node.target), args, kwargs)


def _is_over_peak(value: Any) -> bool:
    """Whether a value is a difference to a peak, so that what its exponential is added to is not less than 1."""
    if not isinstance(value, fx.Node) or value.target is not torch.ops.aten.sub.Tensor:
        return False
    peak = value.args[1]
    return isinstance(peak, fx.Node) and is_reduction(peak) and peak.args[1] == "peak"


def exponential(value: Tensor, peak: Tensor) -> Tensor:
    """``exp(value - peak)`` on a CPU, 0 where it is less than the smallest normal number.

    Where torch computes infinities and subnormal results it takes twenty and a hundred times as long.
    """
    difference = value - peak
    if difference.requires_grad and torch.is_grad_enabled():
        found: Tensor = _Exponential.apply(difference)
        return found
    return _exponential(difference)


def _exponential(value: Tensor) -> Tensor:
    """``exp(value)``, in its memory."""
    kind = torch.finfo(value.dtype)
    value.clamp_(min=math.log(kind.tiny) + 0.25)
    return torch.threshold_(value.exp_(), kind.tiny * 1.5, 0.0)


class _Exponential(torch.autograd.Function):
    """The exponential is its own derivative."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        found = _exponential(value.clone())
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        return grads[0] * found


def reduce_whole(kind: str, value: Tensor, dims: tuple[int, ...], count: int) -> Tensor:
    """A reduction over `dims` of a value that has them; `count` is the number of elements that a mean is over.

    Differentiable, with gradient 0 where every value is -inf.
    """
    if kind == "sum":
        if value.is_floating_point():
            return value.sum(dims, keepdim=True)
        return value.sum(dims, keepdim=True, dtype=torch.int64)
    if kind == "mean":
        return value.sum(dims, keepdim=True) / (count or math.nan)
    if kind in ("amax", "amin"):
        return extreme(kind, value, dims)
    if kind == "peak":
        return finite(extreme("amax", value.detach(), dims))
    if kind == "logsumexp":
        peak = finite(extreme("amax", value.detach(), dims))
        total = torch.exp(value - peak).sum(dims, keepdim=True)
        nothing = total == 0  # no gradient goes there
        return torch.where(nothing, -math.inf, torch.log(torch.where(nothing, 1.0, total)) + peak)
    if kind == "softmax":
        return softmax(value, dims)
    return value.argmax(dims[0], keepdim=True) if kind == "argmax" else value.argmin(dims[0], keepdim=True)


def extreme(kind: str, value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest or smallest value; of no elements -inf or inf, the smallest or largest whole number."""
    if 0 in [value.shape[dim] for dim in dims]:
        shape = [1 if dim in dims else extent for dim, extent in enumerate(value.shape)]
        return value.new_full(shape, worst(kind, value.dtype))
    return value.amax(dims, keepdim=True) if kind == "amax" else value.amin(dims, keepdim=True)


def worst(kind: str, dtype: torch.dtype) -> float | int | bool:
    """The value that every other one is better than."""
    if dtype == torch.bool:
        return kind == "amin"
    if dtype.is_floating_point:
        return -math.inf if kind in ("amax", "argmax", "peak") else math.inf
    return torch.iinfo(dtype).min if kind in ("amax", "argmax") else torch.iinfo(dtype).max


def finite(peak: Tensor) -> Tensor:
    """A peak to subtract: 0 for one that is infinite, as in a row that has nothing."""
    return torch.where(peak.isinf(), 0.0, peak)


def softmax(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Exponentials over their sum; 0 where there is none."""
    if len(dims) == 1 and not value.is_cuda and value.shape[dims[0]] > 0:
        found = torch.softmax(value, dims[0])
        if not math.isnan(found.detach().sum()):  # as a row of -inf is
            return found
        rows = value.detach().amax(dims[0], keepdim=True) == -math.inf
        return torch.where(rows, 0.0, torch.softmax(torch.where(rows, 0.0, value), dims[0]))
    peak = finite(extreme("amax", value.detach(), dims))
    weights = torch.exp(value - peak)
    total = weights.sum(dims, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


class WholeWriter(GraphWriter):
    """Writes a plan's two contractions and the function between them, computed in a type; a term has letters."""

    def __init__(self, plan: Any, wide: torch.dtype) -> None:
        self.plan, self.frame, self.between, self.wide = plan, plan.frame, plan.written, wide
        self._letters = {label: chr(0x100 + at) for at, label in enumerate((*plan.extents, *plan.frame.order))}
        super().__init__({self._letters[label]: extent for label, extent in plan.extents.items()})
        self.s = self._term(self.frame.order)
        self.values: dict[fx.Node, fx.Node] = {}
        self.shapes: dict[fx.Node, Shape] = {}

    def _term(self, labels: Sequence[Label]) -> str:
        return "".join(self._letters[label] for label in labels)

    def whole(self, tensors: Sequence[Laid], operands: Sequence[Laid]) -> Program:
        """The results of a plan, a tuple, as the caller has them, of tensors, operands and coordinates that lie so."""
        a, b, *c = [(self.graph.placeholder(f"tensor_{at}"), *each) for at, each in enumerate(tensors)]
        inputs = self.between.inputs
        for node, (labels, shape) in zip(inputs[1:], operands, strict=False):
            value, term = self._own(self.graph.placeholder(node.name), labels, shape)
            self._keep(node, self._along(value, term, self.s), term)
        for node in inputs[1 + len(operands) :]:
            self._keep(node, self.graph.placeholder(node.name), self._term(tuple(self.between.modes[node])))
        self._scores(a, b)
        for node in self.between.calls:
            self._call(node)
        outputs = list(self.between.outputs)
        results = [self._second(outputs.pop(0), c[0])] if c else []
        for at, node in enumerate(outputs):
            results.append(self._result(node, outputs[:at]))
        return self.program(results)

    def arranging(self, tensors: Sequence[Laid], operands: Sequence[Laid]) -> Program:
        """A, B and C in the order of the products, with their dimensions, missing ones of extent 1, and in their type;
        operands as S."""
        places = [self.graph.placeholder(f"tensor_{at}") for at in range(len(tensors) + len(operands))]
        frame, results = self.frame, []
        orders = zip(frame.places[: len(tensors)], (frame.first.x, frame.first.y, frame.second.y), strict=False)
        for at, order in orders:
            value, term = self._own(places[at], *tensors[at])
            wanted, product = self._term(order), frame.products.product
            lone = [at for at, label in enumerate(term) if label not in wanted]
            summed = [at for at in lone if self.extents[term[at]] != 1]
            if summed:
                value = self.graph.call_method("sum", (value, summed), {"keepdim": True, "dtype": self.wide})
            if lone:
                value = self.method("squeeze", value, lone)
            value = self._along(value, "".join(label for label in term if label in wanted), wanted)
            results.append(self.method("to", value, product) if summed or product != self.plan.said.dtype else value)
        for x, laid in zip(places[len(tensors) :], operands, strict=True):
            results.append(self._along(*self._own(x, *laid), self.s))
        return self.program(results)

    def _along(self, x: fx.Node, term: str, wanted: str) -> fx.Node:
        """A tensor with a dimension for each wanted mode, of extent 1 for those that it lacks."""
        x = self.permuted(x, term, "".join(label for label in wanted if label in term))
        shape = [self.extents[label] if label in term else 1 for label in wanted]
        return x if len(term) == len(wanted) else self.method("reshape", x, shape)

    def _keep(self, node: fx.Node, value: fx.Node, term: str) -> None:
        self.values[node] = value
        self.shapes[node] = tuple(self.extents[label] if label in term else 1 for label in self.s)

    def _own(self, x: fx.Node, labels: Sequence[Label], shape: Sequence[int]) -> tuple[fx.Node, str]:
        """A tensor without the modes that it broadcasts along, and its diagonal where it names one twice."""
        term, sizes = self._term(labels), list(shape)
        for label in dict.fromkeys(term):
            while term.count(label) > 1:
                first = term.index(label)
                second = term.index(label, first + 1)
                x, size = self.call(torch.diagonal, x, 0, first, second), sizes[first]
                keep = [at for at in range(len(term)) if at not in (first, second)]
                term, sizes = "".join(term[at] for at in keep) + label, [*(sizes[at] for at in keep), size]
        spread = [at for at, label in enumerate(term) if sizes[at] != self.extents[label]]
        if spread:
            x = self.method("squeeze", x, spread)
        return x, "".join(label for at, label in enumerate(term) if at not in spread)

    # -- the contractions ------------------------------------------------------------------------------------------

    def _scores(self, a: tuple[fx.Node, Sequence[Label], Sequence[int]], b: Any) -> None:
        """S, of all its modes."""
        (left, term_a), (right, term_b) = self._own(*a), self._own(*b)
        own = "".join(label for label in self.s if label in term_a or label in term_b)
        s = self.product(self._wide(left), term_a, self._wide(right), term_b, own)
        if self.frame.alpha != 1:
            s = self._scaled(s)
        if own != self.s:
            s = self.method("expand", self._along(s, own, self.s), self.shape(self.s))
        self._keep(self.between.inputs[0], s, self.s)

    def _scaled(self, s: fx.Node) -> fx.Node:
        """A product times the cascade's factor, by one call where it is one of matrices."""
        made: Any = s.args[0] if s.target == "view" else s
        by_one: Any = {torch.mm: torch.addmm, torch.bmm: torch.baddbmm}.get(made.target)
        if by_one is None:
            return self.call(torch.mul, s, self.frame.alpha)
        with self.graph.inserting_before(made):
            kind, device = self.wide, str(self.frame.device)
            nothing = self.graph.call_function(torch.empty, ((),), {"dtype": kind, "device": device})
        made.target, made.args = by_one, (nothing, *made.args)
        made.kwargs = {"beta": 0, "alpha": self.frame.alpha}
        return s

    def _wide(self, x: fx.Node) -> fx.Node:
        return x if self.wide == self.plan.said.dtype else self.method("to", x, self.wide)

    def _second(self, node: fx.Node, c: tuple[fx.Node, Sequence[Label], Sequence[int]]) -> fx.Node:
        """D, of the value that meets C."""
        p, frame = self._spread(node, self.s), self.frame
        if node.meta["dtype"] != self.wide:
            p = self.method("to", p, self.wide)
        right, term = self._own(*c)
        asked = self._term(self.plan.notation.d)
        own = "".join(label for label in asked if label in self.s or label in term)
        if frame.algebra is None:
            groups = LabelGroups.of(self.s, term, own)
            made = groups.batch + groups.rows + groups.columns
            d = self.permuted(self.product(p, self.s, self._wide(right), term, made), made, own)
        else:
            d = self.call(_contraction((self.s, term, own), frame.algebra.algebra), p, self._wide(right))
        if own != asked:
            d = self.filled(self.aligned(d, own, asked), asked)
        return d if self.plan.result_type == self.wide else self.method("to", d, self.plan.result_type)

    # -- the function between --------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> None:
        shape = np.broadcast_shapes(*(self.shapes[each] for each in node.all_input_nodes))
        if is_reduction(node):
            labels, kind = self.between.reduced(node), str(node.args[1])
            term, dims = self._term(labels), self.frame.dims(labels)
            value = self._spread(node.all_input_nodes[0], term)
            self.values[node] = self.call(reduce_whole, kind, value, dims, self.size(term))
            kept = self.s if kind == "softmax" else ""
            shape = tuple(
                (self.extents[label] if label in kept else 1) if label in term else extent
                for label, extent in zip(self.s, shape, strict=True)
            )
        else:
            self.values[node] = operation(self.graph, node, self.values.__getitem__, self.frame)
        self.shapes[node] = shape

    def _spread(self, node: fx.Node, term: str) -> fx.Node:
        """A value that has these modes, too."""
        shape = self.shapes[node]
        own = zip(self.s, shape or (1,) * len(self.s), strict=True)
        wanted = tuple(self.extents[label] if label in term else extent for label, extent in own)
        return self.values[node] if shape == wanted else self.method("expand", self.values[node], wanted)

    def _result(self, node: fx.Node, before: Sequence[fx.Node]) -> fx.Node:
        """A result besides D, in memory of its own, with the modes that its value has in S's order."""
        modes, stored = self.between.modes[node], self.frame.stored_type(node, self.between)
        term = self._term([label for label in self.frame.order if label in modes])
        asked = self._term([label for label in self.plan.notation.s if label in modes])
        value = self._spread(node, term)
        if stored != node.meta["dtype"] or self.wide != self.frame.products.accumulate:
            value = self.graph.call_method("to", (value, stored), {"copy": True})
        elif value is not self.values[node] or node in before or _is_view(node) or node in self.between.inputs:
            value = self.graph.call_method("clone", (value,), {"memory_format": torch.contiguous_format})
        if len(term) < len(self.s):
            value = self.method("reshape", value, self.shape(term))
        return self.permuted(value, term, asked)


def _is_view(node: fx.Node) -> bool:
    """Whether an operation may return what it was given."""
    return node.op == "call_function" and any(each.alias_info is not None for each in node.target._schema.returns)  # type: ignore[union-attr]


def _contraction(terms: tuple[str, str, str], algebra: Any) -> Callable[[Tensor, Tensor], Any]:
    def contracted(x: Tensor, y: Tensor) -> Any:
        return contract(tuple(map(tuple, terms)), x, y, algebra=algebra)

    return contracted

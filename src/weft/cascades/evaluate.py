"""A graph run on tensors, of a block or whole, and values while they are made from blocks.

Every tensor has all modes of S in order, with extent 1 where it lacks one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx

from weft.autograd.graphs import bound
from weft.cascades.between import Between
from weft.cascades.frame import Box, CascadeFrame
from weft.cascades.lowering import PEAK
from weft.cascades.program import CascadeProgram, CascadeTarget
from weft.fn.decompositions import IN_PLACE_OF
from weft.fn.reductions import is_reduction
from weft.spec import Label


class Recipe:
    """Operations as one program of torch's, for those of `kept`; each value is dropped once it is read no more.

    What is reduced here has all indices of the reduced modes.
    """

    def __init__(
        self, nodes: Sequence[fx.Node], kept: Collection[fx.Node], between: Between, frame: CascadeFrame
    ) -> None:
        graph, made = fx.Graph(), set(nodes)
        self._given = [*dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in made)]
        values = {node: graph.placeholder(f"x{at}") for at, node in enumerate(self._given)}
        for node in nodes:
            if is_reduction(node):
                labels = between.reduced(node)
                shape = [frame.extents[label] if label in labels else -1 for label in frame.order]
                count = math.prod([frame.extents[each] for each in labels])
                value = graph.call_method("expand", (values[node.all_input_nodes[0]], shape))
                values[node] = graph.call_function(reduce_whole, (node.args[1], value, frame.dims(labels), count))
            else:
                values[node] = operation(graph, node, values.__getitem__, frame)
        self._kept = [node for node in kept if node in made]
        graph.output(tuple(values[node] for node in self._kept))
        graph.eliminate_dead_code()
        self._program = fx.GraphModule(torch.nn.Module(), graph).forward

    def run(self, values: dict[fx.Node, Tensor]) -> None:
        """Run the operations on the `values` that are there, and put those that are kept there, too."""
        found = self._program(*map(values.__getitem__, self._given))
        values.update(zip(self._kept, found, strict=True))


@lru_cache(maxsize=1024)
def recipe_of(nodes: tuple[fx.Node, ...], kept: frozenset[fx.Node], between: Between, frame: CascadeFrame) -> Recipe:
    """The recipe of operations, made once."""
    return Recipe(nodes, kept, between, frame)


def run_whole(nodes: tuple[fx.Node, ...], between: Between, frame: CascadeFrame, values: dict[fx.Node, Tensor]) -> None:
    """Run small nodes, whole, and keep them."""
    if nodes:
        recipe_of(nodes, frozenset(nodes), between, frame).run(values)


def operation(graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node], frame: CascadeFrame) -> fx.Node:
    """An operation of a function in another graph, on tensors of all modes of S in order."""
    name = str(node.target._schema.name).partition("::")[2]  # type: ignore[union-attr]
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
        return logarithm(torch.exp(value - peak).sum(dims, keepdim=True), peak)
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


def logarithm(total: Tensor, peak: Tensor) -> Tensor:
    """``peak + log(total)``; -inf, without a gradient, where the total is 0."""
    nothing = total == 0
    return torch.where(nothing, -math.inf, torch.log(torch.where(nothing, 1.0, total)) + peak)


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


def idle_labels(target: CascadeTarget, program: CascadeProgram, frame: CascadeFrame) -> list[Label]:
    """Labels along which all blocks make the same value: that of the first is taken. Blocks have others whole."""
    between = program.between
    reduced = () if target.kind in ("product", "store") else between.reduced(target.gives)
    known = {*between.modes[target.gives], *reduced, *program.whole}
    return [label for label in frame.order if label not in known]


def stored_type(target: CascadeTarget, between: Between, frame: CascadeFrame) -> torch.dtype:
    """The type in which blocks store a value."""
    dtype: torch.dtype = target.gives.meta["dtype"]
    return frame.stored_as(dtype) if target.node in between.elementwise else dtype


class State:
    """A target: its sums, extremes and places so far, or what blocks have stored."""

    def __init__(self, target: CascadeTarget, program: CascadeProgram, frame: CascadeFrame) -> None:
        self.target, self.frame, kind = target, frame, target.kind
        between, dtype = program.between, target.gives.meta["dtype"]
        shape, start = frame.shape(between.modes[target.gives]), 0
        self.labels = () if kind in ("product", "store") else between.reduced(target.gives)
        #: Labels along which all blocks make the same.
        self.idle = [] if kind in ("product", PEAK) else idle_labels(target, program, frame)
        if kind == "product":
            assert frame.second is not None
            shape = tuple(frame.extents[label] for label in frame.second.result)
            dtype = frame.products.accumulate
            start = 0 if frame.algebra is None else frame.algebra.identity  # type: ignore[assignment]
        elif kind == "store":
            dtype = stored_type(target, between, frame)
        elif kind == PEAK:
            start = -torch.inf  # type: ignore[assignment]
        elif kind in ("amax", "amin"):
            start = worst(kind, dtype)  # type: ignore[assignment]
        self.total = torch.full(shape, start, dtype=dtype, device=frame.device)
        self.best: Tensor | None = None
        if kind in ("argmax", "argmin"):
            source = target.node.meta["dtype"]
            self.best = torch.full(shape, worst(kind, source), dtype=source, device=frame.device)

    def grow(self, value: Tensor, box: Box) -> tuple[Tensor, Tensor | None]:
        """Take a block into a peak: that to subtract, and the factor for what was summed over the one before.

        The factor is None in the first block along the reduced modes.
        """
        frame, place = self.frame, self.frame.place(self.total, box)
        best = extreme("amax", value.detach(), frame.dims(self.labels))
        if all(box[label][0] == 0 for label in self.labels):
            place.copy_(best)
            return finite(best), None
        new = torch.maximum(place, best)
        safe = finite(new)
        scale = torch.where(place == -torch.inf, 0.0, torch.exp(finite(place) - safe))
        place.copy_(new)
        return safe, scale

    def add(self, value: Tensor, c: Tensor | None, box: Box, scale: Tensor | None) -> None:
        """Take a block's value in; what is there is rescaled first."""
        kind, frame = self.target.kind, self.frame
        if any(box[label][0] for label in self.idle):
            return
        if kind == "product":
            assert c is not None
            self._multiply(value, c, box, scale)
            return
        place = frame.place(self.total, box)
        if kind == "store":
            place.copy_(value)
            return
        dims, value = frame.dims(self.labels), frame.along(value, self.labels, box)
        if kind == "sum":
            if scale is not None:
                place.mul_(scale)
            place.add_(reduce_whole("sum", value, dims, 0))
        elif kind in ("amax", "amin"):
            best = torch.maximum if kind == "amax" else torch.minimum
            place.copy_(best(place, extreme(kind, value, dims)))
        elif value.shape[dims[0]]:
            self._choose(place, value, dims[0], box)

    def _multiply(self, value: Tensor, c: Tensor, box: Box, scale: Tensor | None) -> None:
        frame = self.frame
        assert frame.second is not None
        place = frame.of_d(self.total, box)
        multiply = frame.products if frame.algebra is None else frame.algebra
        found = multiply(frame.second, frame.met(value, box), frame.of_c(c, box))
        if frame.algebra is not None:
            place.copy_(frame.algebra.joined(place, found))
            return
        if scale is not None:
            place.mul_(frame.on_d(scale))
        place.add_(found)

    def _choose(self, place: Tensor, value: Tensor, dim: int, box: Box) -> None:
        assert self.best is not None
        largest, start = self.target.kind == "argmax", box[self.labels[0]][0]
        known = self.frame.place(self.best, box)
        best, where = value.max(dim, keepdim=True) if largest else value.min(dim, keepdim=True)
        better = best > known if largest else best < known
        if best.is_floating_point():
            better = better | (best.isnan() & ~known.isnan())
        place.copy_(torch.where(better, where + start, place))
        known.copy_(torch.where(better, best, known))

    def result(self) -> Tensor:
        """The value, whole; a peak is 0 where there is none."""
        return finite(self.total) if self.target.kind == PEAK else self.total

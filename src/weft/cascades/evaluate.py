"""A graph run on tensors: of a block, or whole.

Every tensor has all modes of S in order, with extent 1 where it lacks one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, fx

from weft.fn.backward_rules import IN_PLACE_OF
from weft.fn.reductions import is_reduction
from weft.library.functions import writing_form

Reducing = Callable[[fx.Node, Tensor], Tensor]


class Scratch:
    """Memory that values of a block are written to, and those of the next block again.

    A few are kept from call to call: on a CPU fresh memory costs more than most operations on it.
    """

    _kept: ClassVar[list[Scratch]] = []

    @classmethod
    @contextmanager
    def taken(cls) -> Iterator[Scratch]:
        """One that nobody else has."""
        try:
            found = cls._kept.pop()
        except IndexError:
            found = cls()
        yield found
        if len(cls._kept) < _KEPT:
            cls._kept.append(found)

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """Begin another block."""
        self._next = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Memory of a shape; None for a few elements, which torch finds fast enough."""
        size = math.prod(shape)
        if size < _MANY:
            return None
        if self._next == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=dtype, device="cpu"))
        buffer = self._buffers[self._next]
        if buffer.dtype != dtype or buffer.numel() < size:
            buffer = self._buffers[self._next] = torch.empty(size, dtype=dtype, device="cpu")
        self._next += 1
        return buffer[:size].view(shape)


_KEPT = 4
_MANY = 1 << 15  # elements of a value for which fresh memory costs more than the operation


class Recipe:
    """Operations in order, and when each value is read last: then it is dropped, but for those of `kept`.

    `settled` are choices by `where` that are their first alternative: that stands in their place, and what only they
    need is not made.
    """

    def __init__(
        self, nodes: Sequence[fx.Node], kept: Collection[fx.Node], settled: Collection[fx.Node] = ()
    ) -> None:
        self._instead: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            if node in settled:
                self._instead[node] = self._of(node.args[1])  # type: ignore[arg-type]
        self.given = tuple((node, self._of(node)) for node in kept if node in self._instead)
        read = {self._of(node) for node in kept}
        for node in reversed(nodes):
            if node in read:
                read.update(self._sources(node))
        self.nodes = tuple(node for node in nodes if node in read and node not in self._instead)
        self.reads = frozenset(read)
        sources = [self._sources(node) for node in self.nodes]
        last = {source: at for at, given in enumerate(sources) for source in given}
        stays = {self._of(node) for node in kept}
        self._steps = []
        made: set[fx.Node] = set()
        for at, node in enumerate(self.nodes):
            gone = tuple(dict.fromkeys(each for each in sources[at] if last[each] == at and each not in stays))
            places = tuple(each for each in gone if _fits(node, each))
            self._steps.append((node, tuple(sources[at]), gone, places))
            made.add(node)
        #: Values whose memory may be written over once they are read for the last time.
        self._made = frozenset() if any(_name(node) == "view" for node in self.nodes) else frozenset(made)

    def _of(self, node: fx.Node) -> fx.Node:
        """The value that stands for one."""
        return self._instead.get(node, node)

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        return [self._of(each) for each in node.all_input_nodes]

    def run(
        self, values: dict[fx.Node, Tensor], rank: int, reducing: Reducing, device: torch.device, *,
        owned: frozenset[fx.Node] | None = None, scratch: Scratch | None = None,
    ) -> None:  # fmt: skip
        """Run the operations beside the `values` that are there, and put theirs there, too.

        With `owned`, given values that nobody else reads, operations write where values were that are read no more.
        """
        for node, sources, gone, places in self._steps:
            place = None
            if owned is not None and places:
                own = [values[each] for each in places if each in self._made or each in owned]
                place = _place(own, [values[each] for each in sources])
            if place is None and scratch is not None and _writable(node):
                place = scratch.take(np.broadcast_shapes(*(values[each].shape for each in sources)), node.meta["dtype"])
            if is_reduction(node):
                values[node] = reducing(node, values[sources[0]])
            else:
                values[node] = self._call(node, values, rank, device, place)
            for source in gone:
                values.pop(source, None)
        for node, source in self.given:
            values[node] = values[source]

    def _call(
        self, node: fx.Node, values: Mapping[fx.Node, Tensor], rank: int, device: torch.device, place: Tensor | None
    ) -> Any:
        name = _name(node)
        if name in ("full_like", "scalar_tensor"):
            number = node.args[1] if name == "full_like" else node.args[0]
            shape = (1,) * rank if name == "full_like" else ()
            return torch.full(shape, number, dtype=node.meta["dtype"], device=device)  # type: ignore[arg-type]
        if name == "exp" and device.type == "cpu" and _is_over_peak(node.args[0]):
            return exponential(values[self._of(node.args[0])], place)  # type: ignore[arg-type]
        args = fx.map_arg(node.args, lambda each: values[self._of(each)])
        kwargs = fx.map_arg(node.kwargs, lambda each: values[self._of(each)])
        if place is not None:
            form = _form(node.target)
            assert form is not None
            return form[0](*args, **kwargs, **{form[1]: place})
        call: Any = IN_PLACE_OF.get(name, node.target)
        return call(*args, **kwargs)


def _is_over_peak(value: Any) -> bool:
    """Whether a value is a difference to a peak, so that what its exponential is added to is not less than 1."""
    if not isinstance(value, fx.Node) or is_reduction(value) or value.op != "call_function" or _name(value) != "sub":
        return False
    peak = value.args[1]
    return isinstance(peak, fx.Node) and is_reduction(peak) and peak.args[1] == "peak"


def _writable(node: fx.Node) -> bool:
    """Whether an operation writes where it is told."""
    return not is_reduction(node) and bool(node.all_input_nodes) and _form(node.target) is not None


def _fits(node: fx.Node, source: fx.Node) -> bool:
    """Whether an operation may write where one of its sources is."""
    return not is_reduction(node) and node.meta["dtype"] == source.meta["dtype"] and _form(node.target) is not None


def _place(places: Sequence[Tensor], sources: Sequence[Tensor]) -> Tensor | None:
    """The memory, among `places`, that has the shape of the result of these sources."""
    for place in places:
        shape = place.shape
        if shape and all(
            each.dim() == 0 or all(own in (1, extent) for own, extent in zip(each.shape, shape, strict=True))
            for each in sources
        ):
            return place
    return None


@lru_cache
def _form(target: Any) -> tuple[Any, str] | None:
    """The operation that writes to a place, and the name of that argument."""
    return writing_form(target) if isinstance(target, torch._ops.OpOverload) else None


def _name(node: fx.Node) -> str:
    """The name of an operation, without overload."""
    return str(node.target._schema.name).partition("::")[2]  # type: ignore[union-attr]


def exponential(value: Tensor, place: Tensor | None) -> Tensor:
    """``exp(value)`` on a CPU, 0 where it is less than the smallest normal number.

    Where torch computes infinities and subnormal results it takes twenty and a hundred times as long.
    """
    if value.requires_grad and torch.is_grad_enabled():
        found: Tensor = _Exponential.apply(value)
        return found
    kind = torch.finfo(value.dtype)
    low = math.log(kind.tiny) + 0.25
    found = torch.clamp(value, min=low, out=place)
    return torch.threshold_(found.exp_(), kind.tiny * 1.5, 0.0)


class _Exponential(torch.autograd.Function):
    """The exponential is its own derivative."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        found = exponential(value, None)
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

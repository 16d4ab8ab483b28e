"""A program run by blocks: no more of S is in memory than a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, fx

from weft.cascades.between import Between
from weft.cascades.evaluate import evaluate, extreme, finite, logarithm, reduce_whole, worst
from weft.cascades.frame import Box, Frame
from weft.cascades.product import narrowed
from weft.cascades.program import Program, Stage, Target
from weft.spec import Label

Values = dict[fx.Node, Tensor]
#: The boxes of a stage.
Cutting = Callable[[Stage], Iterable[Box]]


def run(program: Program, frame: Frame, a: Tensor, b: Tensor, c: Tensor | None, given: Values, cut: Cutting) -> Values:
    """Every value that passes make whole, by its node; D, in sums not yet rounded, by the node that meets C.

    `given` has operands and coordinates along S.
    """
    values = dict(given)
    run_tail(program, frame, program.prelude, values)
    for stage in program.stages:
        states = {target: State(target, program, frame) for target in stage.targets}
        for box in cut(stage):
            inputs = inputs_of(program, stage, frame, values, box)
            found = run_block(program, stage, frame, frame.scores(a, b, box), inputs, box)
            for target, state in states.items():
                state.add(found[target.node], c, box)
        for target, state in states.items():
            values[target.gives if target.kind != "product" else PRODUCT] = state.result()
        run_tail(program, frame, stage.tail, values)
    return values


#: What D stands under among values: the value that meets C may be a result itself.
PRODUCT = fx.Graph().placeholder("product")


def run_tail(program: Program, frame: Frame, nodes: Sequence[fx.Node], values: Values) -> None:
    """Run small nodes, whole, and keep them."""
    if not nodes:
        return
    evaluate(nodes, values, len(frame.order), reducing(program.between, frame, None), frame.device, frozenset(values) | set(nodes))


def inputs_of(program: Program, stage: Stage, frame: Frame, values: Mapping[fx.Node, Tensor], box: Box) -> Values:
    """Blocks of operands, coordinates and known values that a stage reads."""
    nodes = (*program.between.inputs[1:], *stage.known)
    return {node: frame.place(values[node], box) for node in nodes if node in values}


def run_block(program: Program, stage: Stage, frame: Frame, scores: Tensor, inputs: Values, box: Box) -> Values:
    """The values of a block of the stage's targets, from a block of S."""
    found = {**inputs, program.between.inputs[0]: scores}
    kept = frozenset(target.node for target in stage.targets)
    evaluate(stage.nodes, found, len(frame.order), reducing(program.between, frame, box), frame.device, kept)
    return found


def reducing(between: Between, frame: Frame, box: Box | None) -> Callable[[fx.Node, Tensor], Tensor]:
    """How a reduction of a value, in a box or whole, is made."""

    def reduce(node: fx.Node, value: Tensor) -> Tensor:
        labels = between.reduced(node)
        dims = frame.dims(labels)
        places = [(0, frame.extents[label]) if box is None else box[label] for label in labels]
        shape = list(value.shape)
        for dim, (_, extent) in zip(dims, places, strict=True):
            shape[dim] = extent
        kind = str(node.args[1])
        count = math.prod(frame.extents[label] for label in labels)
        found = reduce_whole(kind, value.expand(shape), dims, count)
        return found + places[0][0] if kind.startswith("arg") and places[0][0] else found

    return reduce


class State:
    """A target while it is made from blocks."""

    def __init__(self, target: Target, program: Program, frame: Frame) -> None:
        self.target, self.frame = target, frame
        modes = program.between.modes
        self.labels = program.between.reduced(target.gives) if target.kind not in ("product", "store") else ()
        self.modes = modes[target.gives]
        #: Labels along which all blocks make the same.
        self.idle = [] if target.kind == "product" else [
            label for label in frame.order if label not in self.modes and label not in self.labels
        ]  # fmt: skip
        dtype = target.gives.meta["dtype"]
        self.peak: Tensor | None = None
        if target.kind == "product":
            assert frame.second is not None
            shape = tuple(frame.extents[label] for label in frame.second.result)
            self.total = torch.zeros(shape, dtype=frame.products.accumulate, device=frame.device)
            return
        shape = frame.shape(self.modes)
        start = worst(target.kind, dtype) if target.kind in ("amax", "amin") else 0
        if target.kind == "store" and target.node in program.between.elementwise:
            dtype = frame.stored_as(dtype)
        self.total = torch.full(shape, start, dtype=dtype, device=frame.device)
        if target.kind in ("logsumexp", "argmax", "argmin"):
            source = target.node.meta["dtype"]
            self.peak = torch.full(shape, worst(target.kind, source), dtype=source, device=frame.device)

    def add(self, value: Tensor, c: Tensor | None, box: Box) -> None:
        """Take a block's value in."""
        kind, frame = self.target.kind, self.frame
        if any(box[label][0] for label in self.idle):
            return
        if kind == "product":
            assert frame.second is not None and c is not None
            found = frame.products(frame.second, frame.met(value, box), narrowed(c, frame.second.y, box))
            frame.of_d(self.total, box).add_(found)
            return
        place = frame.place(self.total, box)
        if kind == "store":
            place.copy_(value)
            return
        dims = frame.dims(self.labels)
        shape = [box[label][1] if label in self.labels else size for label, size in zip(frame.order, value.shape, strict=True)]
        value = value.expand(shape)
        if kind == "sum":
            place.add_(reduce_whole("sum", value, dims, 0))
        elif kind in ("amax", "amin"):
            best = torch.maximum if kind == "amax" else torch.minimum
            place.copy_(best(place, extreme(kind, value, dims)))
        elif kind == "logsumexp":
            self._add_exponentials(place, frame.place(self._peaks, box), value, dims)
        elif shape[dims[0]]:
            self._choose(place, frame.place(self._peaks, box), value, dims[0], box[self.labels[0]][0])

    @property
    def _peaks(self) -> Tensor:
        assert self.peak is not None
        return self.peak

    @staticmethod
    def _add_exponentials(total: Tensor, peak: Tensor, value: Tensor, dims: tuple[int, ...]) -> None:
        """Sums of exponentials over the largest so far, rescaled where a larger one comes."""
        new = torch.maximum(peak, extreme("amax", value, dims))
        safe = finite(new)
        before = torch.where(peak == -math.inf, 0.0, torch.exp(finite(peak) - safe))
        total.mul_(before).add_(torch.exp(value - safe).sum(dims, keepdim=True))
        peak.copy_(new)

    def _choose(self, place: Tensor, peak: Tensor, value: Tensor, dim: int, start: int) -> None:
        best, where = value.max(dim, keepdim=True) if self.target.kind == "argmax" else value.min(dim, keepdim=True)
        better = best > peak if self.target.kind == "argmax" else best < peak
        better = better | (best.isnan() & ~peak.isnan()) if best.is_floating_point() else better
        place.copy_(torch.where(better, where + start, place))
        peak.copy_(torch.where(better, best, peak))

    def result(self) -> Tensor:
        """The value, whole."""
        if self.target.kind == "logsumexp":
            return logarithm(self.total, finite(self._peaks))
        return self.total


def columns_of(program: Program, frame: Frame) -> frozenset[Label]:
    """Labels that a block is made along last: those that the second contraction or a reduction sums."""
    reduced = {label for node in program.between.reductions for label in program.between.reduced(node)}
    return frame.columns | reduced

"""Values while they are made from blocks."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from weft.cascades.between import Between
from weft.cascades.evaluate import extreme, finite, reduce_whole, worst
from weft.cascades.frame import Box, Frame
from weft.cascades.lowering import PEAK
from weft.cascades.program import Program, Target
from weft.spec import Label


def idle_labels(target: Target, program: Program, frame: Frame) -> list[Label]:
    """Labels along which all blocks make the same value: that of the first is taken. Blocks have others whole."""
    between = program.between
    reduced = () if target.kind in ("product", "store") else between.reduced(target.gives)
    known = {*between.modes[target.gives], *reduced, *program.whole}
    return [label for label in frame.order if label not in known]


def stored_type(target: Target, between: Between, frame: Frame) -> torch.dtype:
    """The type in which blocks store a value."""
    dtype: torch.dtype = target.gives.meta["dtype"]
    return frame.stored_as(dtype) if target.node in between.elementwise else dtype


class State:
    """A target: its sums, extremes and places so far, or what blocks have stored."""

    def __init__(self, target: Target, program: Program, frame: Frame) -> None:
        self.target, self.frame, kind = target, frame, target.kind
        between, dtype = program.between, target.gives.meta["dtype"]
        shape, start = frame.shape(between.modes[target.gives]), 0
        self.labels = () if kind in ("product", "store") else between.reduced(target.gives)
        #: Labels along which all blocks make the same.
        self.idle = [] if kind == "product" else idle_labels(target, program, frame)
        if kind == "product":
            assert frame.second is not None
            shape = tuple(frame.extents[label] for label in frame.second.result)
            dtype = frame.products.accumulate
            start = 0 if frame.algebra is None else frame.algebra.identity  # type: ignore[assignment]
        elif kind == "store":
            dtype = stored_type(target, between, frame)
        elif kind in ("amax", "amin", PEAK):
            start = worst(kind, dtype)  # type: ignore[assignment]
        self.total = torch.full(shape, start, dtype=dtype, device=frame.device)
        self.best: Tensor | None = None
        if kind in ("argmax", "argmin"):
            source = target.node.meta["dtype"]
            self.best = torch.full(shape, worst(kind, source), dtype=source, device=frame.device)

    @classmethod
    def of_peak(cls, node: fx.Node, program: Program, frame: Frame) -> State:
        """The largest value so far along the modes that a peak reduces."""
        return cls(Target(node, PEAK, node), program, frame)

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

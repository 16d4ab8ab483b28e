"""Blocks of S that are masked out, known from coordinates and whole-number operands: they are left out.

The function is run on intervals, once for all blocks (`weft.cascades.bounds`): a coordinate is between the first and
the last of a block, an element of S anything, and ``where(j <= i, s, -inf)`` is -inf in a block where no j is at most
any i.

A block is left out where it adds nothing to any target: 0 to sums and products, -inf to peaks and largest values, inf
to smallest ones. Where a condition holds in a whole block, kernels make the choice by it beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

from weft.base.arrays import outside_transforms
from weft.cascades.bounds import Bounds, bounds_of
from weft.cascades.frame import Frame
from weft.cascades.product import Box
from weft.cascades.program import Program, Stage
from weft.fn.reductions import is_reduction
from weft.spec import Label

Array: TypeAlias = "np.ndarray[Any, Any]"
#: The labels of coordinates, and the values of operands.
Known: TypeAlias = Mapping[fx.Node, "Label | Array"]
_IDLE = {"product": 0.0, "sum": 0.0, "mean": 0.0, "logsumexp": -math.inf, "softmax": -math.inf, "amax": -math.inf,
         "amin": math.inf, "argmax": -math.inf, "argmin": math.inf}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where blocks begin and how long they are, for each label of S in order."""

    starts: tuple[Array, ...]
    sizes: tuple[Array, ...]

    def interval(self, dim: int) -> tuple[Array, Array]:
        """The coordinates of each block along one dimension."""
        shape = [1] * len(self.starts)
        shape[dim] = -1
        low = self.starts[dim].reshape(shape)
        return low, low + np.maximum(self.sizes[dim] - 1, 0).reshape(shape)

    def ranges(self, values: Array) -> tuple[Array, Array]:
        """The least and the largest of values along S in each block."""
        low = high = values
        for dim, starts in enumerate(self.starts):
            if low.shape[dim] > 1:
                low, high = np.minimum.reduceat(low, starts, dim), np.maximum.reduceat(high, starts, dim)
        return low, high


def cuts_of(frame: Frame, blocks: Mapping[Label, int]) -> Cuts:
    """The cuts of all labels; an extent of 0 is one empty block."""
    starts, sizes = [], []
    for label in frame.order:
        extent, step = frame.extents[label], max(blocks[label], 1)
        first = np.arange(0, max(extent, 1), step)
        starts.append(first)
        sizes.append(np.minimum(step, extent - first))
    return Cuts(tuple(starts), tuple(sizes))


def kept(
    program: Program, stage: Stage, frame: Frame, blocks: Mapping[Label, int], known: Known
) -> list[tuple[Box, frozenset[fx.Node]]]:
    """The boxes of a stage that add something, in order; the choices by `where` that are the first alternative in each.

    `known` has the label of each coordinate, and the values along S of operands that are looked at.
    """
    cuts = cuts_of(frame, blocks)
    shape = [len(each) for each in cuts.starts]
    if not known or not shape:
        return [(_box(frame, cuts, place), frozenset()) for place in np.ndindex(*shape)]
    values = _values(stage, frame, cuts, known)
    settled, idle = _settled(stage, values, shape), _idle(program, stage, frame, values)
    busy = ~np.broadcast_to(np.asarray(False) if idle is None else idle, shape)
    return [(_box(frame, cuts, place), settled(place)) for place in map(tuple, np.argwhere(busy))]


def _values(stage: Stage, frame: Frame, cuts: Cuts, known: Known) -> dict[fx.Node, Bounds | None]:
    """The bounds of each value in each block."""
    values: dict[fx.Node, Bounds | None] = {}
    with outside_transforms():
        for node, what in known.items():
            ends = cuts.ranges(what) if isinstance(what, np.ndarray) else cuts.interval(frame.order.index(what))
            values[node] = Bounds(*(torch.from_numpy(each).to(node.meta["dtype"]) for each in ends))
        for node in dict.fromkeys((*stage.first, *stage.nodes)):
            values[node] = bounds_of(node, values)
    return values


def _settled(
    stage: Stage, values: Mapping[fx.Node, Bounds | None], shape: Sequence[int]
) -> Callable[[tuple[int, ...]], frozenset[fx.Node]]:
    """For the place of a block, the choices whose condition holds in all of it."""
    always = {}
    for node in dict.fromkeys((*stage.first, *stage.nodes)):
        if is_reduction(node) or node.target is not torch.ops.aten.where.self:
            continue
        first, condition = node.args[1], values.get(node.args[0])  # type: ignore[arg-type]
        plain = isinstance(first, fx.Node) and not first.meta["scalar"] and first.meta["dtype"] == node.meta["dtype"]
        if condition is not None and plain and (holds := condition.low.numpy()).any():
            always[node] = np.broadcast_to(holds, shape)
    return lambda place: frozenset(node for node, holds in always.items() if holds[place])


def _box(frame: Frame, cuts: Cuts, place: Sequence[Any]) -> Box:
    return {
        label: (int(cuts.starts[dim][at]), int(cuts.sizes[dim][at]))
        for dim, (label, at) in enumerate(zip(frame.order, place, strict=True))
    }


def _idle(program: Program, stage: Stage, frame: Frame, values: Mapping[fx.Node, Bounds | None]) -> Array | None:
    """Whether each block adds nothing; None where nothing is known."""
    found: Array | None = None
    within = [node for node in stage.nodes if is_reduction(node)]
    judged = [(str(node.args[1]), node.args[0]) for node in within]
    judged += [(target.kind, target.node) for target in stage.targets]
    algebra = frame.algebra
    idle = _IDLE if algebra is None else {**_IDLE, "product": algebra.idle}
    for kind, node in judged:
        small = isinstance(node, fx.Node) and node not in program.between.elementwise
        if kind == "store" and small:
            continue
        mask = idle.get(kind)
        if kind == "store" or (program.whole and kind.startswith("arg")) or mask is None:
            return None
        value = values.get(node)  # type: ignore[arg-type]
        if value is None:
            return None
        nothing = value.exactly(mask).numpy()
        found = nothing if found is None else found & nothing
    return found


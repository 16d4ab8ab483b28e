"""Blocks of S that are masked out, known from coordinates and whole-number operands: they are left out.

The function is run on intervals, once for all blocks: a coordinate is between the first and the last of a block, an
element of S anything, and ``where(j <= i, s, -inf)`` is -inf in a block where no j is at most any i. What is masked
stays masked whatever is added to it or multiplied with it: -inf plus anything is -inf here, 0 times anything 0.

Where a condition holds in a whole block the choice by it is made beforehand. A block is left out where it adds nothing
to any target: 0 to sums and products, -inf to peaks and largest values, inf to smallest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

from weft.cascades.frame import Frame
from weft.cascades.product import Box
from weft.cascades.program import Program, Stage
from weft.fn.reductions import is_reduction
from weft.spec import Label

_FINE = 64  # parts that a label is looked at in where blocks have all of it
_LEAST = 16  # indices of such a part

Array: TypeAlias = "np.ndarray[Any, Any]"
#: The labels of coordinates, and the values of operands.
Known: TypeAlias = Mapping[fx.Node, "Label | Array"]
#: The least and the largest value in each block; None where nothing is known.
Interval: TypeAlias = tuple[Array, Array] | None
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
        low = self.starts[dim].astype(np.float64).reshape(shape)
        return low, low + np.maximum(self.sizes[dim] - 1, 0).astype(np.float64).reshape(shape)

    def ranges(self, values: Array) -> tuple[Array, Array]:
        """The least and the largest of values along S in each block."""
        low = high = values.astype(np.float64)
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


@dataclass(frozen=True, slots=True)
class Cut:
    """A box, and the choices by `where` that are the first alternative in all of it."""

    box: Box
    settled: frozenset[fx.Node] = frozenset()


def kept(
    program: Program, stage: Stage, frame: Frame, blocks: Mapping[Label, int], known: Known
) -> list[Cut]:
    """The boxes of a stage that add something, in order.

    `known` has the label of each coordinate, and the values along S of operands that are looked at.

    Where a box has all indices of a label it is narrowed to the stretch that adds something.
    """
    coarse = cuts_of(frame, blocks)
    shape = [len(each) for each in coarse.starts]
    if not known:
        return [Cut(_box(frame, coarse, place)) for place in np.ndindex(*shape)]
    settled = _settled(stage, _values(stage, frame, coarse, known), shape)
    whole = [dim for dim, label in enumerate(frame.order) if label in program.whole]
    fine = {
        label: max(-(-frame.extents[label] // _FINE), _LEAST) if label in program.whole else blocks[label]
        for label in frame.order
    }
    cuts = cuts_of(frame, fine) if whole else coarse
    idle = _idle(program, stage, frame, _values(stage, frame, cuts, known))
    busy = ~np.broadcast_to(np.asarray(False) if idle is None else idle, [len(each) for each in cuts.starts])
    if not whole:
        return [Cut(_box(frame, coarse, place), settled(place)) for place in map(tuple, np.argwhere(busy))]
    stretches = {dim: _stretch(busy, dim, whole) for dim in whole}
    found = []
    for place in np.ndindex(*shape):
        box = dict(_box(frame, coarse, place))
        for dim, (first, last) in stretches.items():
            begin, end = int(first[place]), int(last[place])
            start = int(cuts.starts[dim][begin])
            box[frame.order[dim]] = (start, int(cuts.starts[dim][end] + cuts.sizes[dim][end]) - start)
        found.append(Cut(box, settled(place)))
    return found


def _values(stage: Stage, frame: Frame, cuts: Cuts, known: Known) -> dict[fx.Node, Interval]:
    """The interval of each value in each block."""
    values: dict[fx.Node, Interval] = {
        node: cuts.ranges(what) if isinstance(what, np.ndarray) else cuts.interval(frame.order.index(what))
        for node, what in known.items()
    }
    with np.errstate(all="ignore"):
        for node in dict.fromkeys((*stage.first, *stage.nodes)):
            values[node] = _interval(node, values)
    return values


def _settled(
    stage: Stage, values: Mapping[fx.Node, Interval], shape: Sequence[int]
) -> Callable[[tuple[int, ...]], frozenset[fx.Node]]:
    """For the place of a block, the choices whose condition holds in all of it."""
    always = {}
    for node in dict.fromkeys((*stage.first, *stage.nodes)):
        if is_reduction(node) or node.target is not torch.ops.aten.where.self:
            continue
        first, condition = node.args[1], values.get(node.args[0])  # type: ignore[arg-type]
        plain = isinstance(first, fx.Node) and not first.meta["scalar"] and first.meta["dtype"] == node.meta["dtype"]
        if condition is not None and plain and bool((condition[0] == 1).any()):
            always[node] = np.broadcast_to(condition[0] == 1, shape)
    return lambda place: frozenset(node for node, holds in always.items() if holds[place])


def _box(frame: Frame, cuts: Cuts, place: Sequence[Any]) -> Box:
    return {
        label: (int(cuts.starts[dim][at]), int(cuts.sizes[dim][at]))
        for dim, (label, at) in enumerate(zip(frame.order, place, strict=True))
    }


def _stretch(busy: Array, dim: int, whole: Sequence[int]) -> tuple[Array, Array]:
    """The first and the last busy part along a dimension, for each box; the first alone where none is."""
    others = tuple(each for each in whole if each != dim)
    parts = busy.any(axis=others, keepdims=True) if others else busy
    parts = np.asarray(parts)
    first = parts.argmax(axis=dim)
    last = parts.shape[dim] - 1 - np.flip(parts, axis=dim).argmax(axis=dim)
    last = np.where(np.asarray(parts).max(axis=dim), last, first)
    return np.expand_dims(first, dim), np.expand_dims(last, dim)


def _idle(program: Program, stage: Stage, frame: Frame, values: Mapping[fx.Node, Interval]) -> Array | None:
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
        if kind == "store" or (program.whole and kind.startswith("arg")) or idle.get(kind) is None:
            return None
        value = values.get(node)  # type: ignore[arg-type]
        if value is None:
            return None
        low, high = value
        nothing = (low == idle[kind]) & (high == idle[kind])
        found = nothing if found is None else found & nothing
    return found


# -- intervals ---------------------------------------------------------------------------------------------------------


def _interval(node: fx.Node, values: Mapping[fx.Node, Interval]) -> Interval:
    """The values of an operation in each block."""
    if is_reduction(node):
        given = values.get(node.args[0])  # type: ignore[arg-type]
        return _masked(given, -math.inf, 0.0) if node.args[1] == "softmax" else None
    name = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
    if name in ("full_like", "scalar_tensor"):
        return _exactly(node.args[1] if name == "full_like" else node.args[0])
    arguments = [_argument(each, values) for each in node.args]
    rule = _RULES.get(name)
    if rule is None or node.kwargs.keys() - {"dtype"} or len(arguments) > 3:
        return None
    found: Interval = rule(*arguments)
    return found


def _argument(value: Any, values: Mapping[fx.Node, Interval]) -> Interval:
    if isinstance(value, fx.Node):
        return values.get(value)
    return _exactly(value) if isinstance(value, (bool, int, float)) else None


def _exactly(number: Any) -> Interval:
    found = np.asarray(float(number))
    return found, found


_ANY = (np.asarray(-math.inf), np.asarray(math.inf))


def _masked(value: Interval, mask: float, result: float) -> Interval:
    """`result` where a value is exactly the mask, anything elsewhere."""
    if value is None:
        return None
    exact = (value[0] == mask) & (value[1] == mask)
    return np.where(exact, result, -math.inf), np.where(exact, result, math.inf)


def _sum(x: Interval, y: Interval) -> Interval:
    x, y = x or _ANY, y or _ANY
    low, high = np.asarray(x[0] + y[0]), np.asarray(x[1] + y[1])
    for infinity in (-math.inf, math.inf):
        exact = ((x[0] == infinity) & (x[1] == infinity)) | ((y[0] == infinity) & (y[1] == infinity))
        low, high = np.where(exact, infinity, low), np.where(exact, infinity, high)
    return np.where(np.isnan(low), -math.inf, low), np.where(np.isnan(high), math.inf, high)


def _negative(x: Interval) -> Interval:
    return None if x is None else (-x[1], -x[0])


def _product(x: Interval, y: Interval) -> Interval:
    x, y = x or _ANY, y or _ANY
    corners = [np.nan_to_num(p * q, nan=0.0, posinf=math.inf, neginf=-math.inf) for p in x for q in y]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    none = ((x[0] == 0) & (x[1] == 0)) | ((y[0] == 0) & (y[1] == 0))
    return np.where(none, 0.0, low), np.where(none, 0.0, high)


def _quotient(x: Interval, y: Interval) -> Interval:
    return _masked(x, 0.0, 0.0)


def _less(x: Interval, y: Interval) -> Interval:
    x, y = x or _ANY, y or _ANY
    return (x[1] < y[0]).astype(float), (x[0] < y[1]).astype(float)


def _at_most(x: Interval, y: Interval) -> Interval:
    x, y = x or _ANY, y or _ANY
    return (x[1] <= y[0]).astype(float), (x[0] <= y[1]).astype(float)


def _equal(x: Interval, y: Interval) -> Interval:
    x, y = x or _ANY, y or _ANY
    always = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])
    return always.astype(float), ((x[0] <= y[1]) & (y[0] <= x[1])).astype(float)


def _not(x: Interval) -> Interval:
    return None if x is None else (1.0 - x[1], 1.0 - x[0])


def _both(x: Interval, y: Interval) -> Interval:
    x, y = _bit(x), _bit(y)
    return np.minimum(x[0], y[0]), np.minimum(x[1], y[1])


def _either(x: Interval, y: Interval) -> Interval:
    x, y = _bit(x), _bit(y)
    return np.maximum(x[0], y[0]), np.maximum(x[1], y[1])


def _bit(x: Interval) -> tuple[Array, Array]:
    return (np.asarray(0.0), np.asarray(1.0)) if x is None else x


def _where(condition: Interval, x: Interval, y: Interval) -> Interval:
    always, ever = _bit(condition)
    x, y = x or _ANY, y or _ANY
    low = np.where(always == 1, x[0], np.where(ever == 0, y[0], np.minimum(x[0], y[0])))
    return low, np.where(always == 1, x[1], np.where(ever == 0, y[1], np.maximum(x[1], y[1])))


def _largest(x: Interval, y: Interval = None) -> Interval:
    return None if x is None or y is None else (np.maximum(x[0], y[0]), np.maximum(x[1], y[1]))


def _smallest(x: Interval, y: Interval = None) -> Interval:
    return None if x is None or y is None else (np.minimum(x[0], y[0]), np.minimum(x[1], y[1]))


def _size(x: Interval) -> Interval:
    if x is None:
        return None
    ends = np.abs(x[0]), np.abs(x[1])
    inside = (x[0] <= 0) & (x[1] >= 0)
    return np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends)


def _floor_quotient(x: Interval, y: Interval, *mode: Interval) -> Interval:
    if x is None or y is None or not (np.all(y[0] == y[1]) and np.all(y[0] > 0) and np.all(x[0] >= 0)):
        return None
    return np.floor(x[0] / y[0]), np.floor(x[1] / y[0])


def _rising(function: Any) -> Any:
    return lambda x: None if x is None else (function(x[0]), function(x[1]))


_RULES: dict[str, Any] = {
    "add": lambda x, y, *_: _sum(x, y) if not _ else None,
    "sub": lambda x, y, *_: _sum(x, _negative(y)) if not _ else None,
    "rsub": lambda x, y, *_: _sum(y, _negative(x)) if not _ else None,
    "mul": _product, "div": _quotient, "neg": _negative, "abs": _size, "floor_divide": _floor_quotient,
    "lt": _less, "le": _at_most, "gt": lambda x, y: _less(y, x), "ge": lambda x, y: _at_most(y, x), "eq": _equal,
    "ne": lambda x, y: _not(_equal(x, y)), "bitwise_and": _both, "logical_and": _both, "bitwise_or": _either,
    "logical_or": _either, "bitwise_not": _not, "logical_not": _not, "where": _where, "maximum": _largest,
    "minimum": _smallest, "clamp_min": _largest, "clamp_max": _smallest,
    "exp": _rising(np.exp), "tanh": _rising(np.tanh), "sigmoid": _rising(lambda x: 1 / (1 + np.exp(-x))),
    "_to_copy": lambda x: x, "relu": _rising(lambda x: np.maximum(x, 0)),
}  # fmt: skip

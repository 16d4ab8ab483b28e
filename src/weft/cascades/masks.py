"""Blocks of S that are masked out, known from coordinates and whole-number operands: they are left out.

The function is run on intervals, once for all blocks (`weft.cascades.bounds`): a coordinate is between the first and
the last of a block, an element of S anything, and ``where(j <= i, s, -inf)`` is -inf in a block where no j is at most
any i.

A block is left out where it adds nothing to any target: 0 to sums and products, -inf to peaks and largest values, inf
to smallest ones. Where a condition holds in a whole block, kernels make the choice by it beforehand.

`Stretches` are the columns that a tile of rows of a kernel goes along then, once for a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx

from weft.base.arrays import outside_transforms
from weft.base.caches import cached_property
from weft.cascades.bounds import Bounds, bounds_of
from weft.cascades.frame import Box, CascadeFrame, size_of
from weft.cascades.program import CascadeProgram, Stage
from weft.fn.reductions import is_reduction
from weft.gpu.common.driver import made_aside
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


def cuts_of(frame: CascadeFrame, blocks: Mapping[Label, int]) -> Cuts:
    """The cuts of all labels; an extent of 0 is one empty block."""
    starts, sizes = [], []
    for label in frame.order:
        extent, step = frame.extents[label], max(blocks[label], 1)
        first = np.arange(0, max(extent, 1), step)
        starts.append(first)
        sizes.append(np.minimum(step, extent - first))
    return Cuts(tuple(starts), tuple(sizes))


def kept(
    program: CascadeProgram, stage: Stage, blocks: Mapping[Label, int], known: Known
) -> list[tuple[Box, frozenset[fx.Node]]]:
    """The boxes of a stage that add something, in order; the choices by `where` that are the first alternative in each.

    `known` has the label of each coordinate, and the values along S of operands that are looked at.
    """
    frame = program.frame
    cuts = cuts_of(frame, blocks)
    shape = [len(each) for each in cuts.starts]
    busy, settled = np.ones(shape, bool), dict[fx.Node, Array]()
    found = list[tuple[Box, frozenset[fx.Node]]]()
    if known and shape:
        values = _values(stage, frame, cuts, known)
        settled = _settled(stage, values, shape)
        busy &= ~_idle(program, stage, values)
    for place in map(tuple, np.argwhere(busy)):
        every = enumerate(zip(frame.order, place, strict=True))
        box = {label: (int(cuts.starts[dim][at]), int(cuts.sizes[dim][at])) for dim, (label, at) in every}
        found.append((box, frozenset(node for node, holds in settled.items() if holds[place])))
    return found


def _values(stage: Stage, frame: CascadeFrame, cuts: Cuts, known: Known) -> dict[fx.Node, Bounds | None]:
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
) -> dict[fx.Node, Array]:  # fmt: skip
    """Choices whose condition holds in all of some block, and in which blocks it does."""
    always = {}
    for node in dict.fromkeys((*stage.first, *stage.nodes)):
        if is_reduction(node) or node.target is not torch.ops.aten.where.self:
            continue
        first, condition = node.args[1], values.get(node.args[0])  # type: ignore[arg-type]
        plain = isinstance(first, fx.Node) and not first.meta["scalar"] and first.meta["dtype"] == node.meta["dtype"]
        if condition is not None and plain and (holds := condition.low.numpy()).any():
            always[node] = np.broadcast_to(holds, shape)
    return always


def _idle(program: CascadeProgram, stage: Stage, values: Mapping[fx.Node, Bounds | None]) -> Array:
    """Whether each block adds nothing, as far as is known."""
    every: list[Array] = []
    judged = [(str(node.args[1]), node.all_input_nodes[0]) for node in stage.nodes if is_reduction(node)]
    judged += [(target.kind, target.node) for target in stage.targets]
    algebra = program.frame.algebra
    idle = _IDLE if algebra is None else {**_IDLE, "product": algebra.idle}
    for kind, node in judged:
        if kind == "store" and node not in program.between.elementwise:
            continue
        mask, value = idle.get(kind), values.get(node)
        if kind == "store" or (program.whole and kind.startswith("arg")) or mask is None or value is None:
            return np.asarray(False)
        every.append(value.exactly(mask).numpy())
    return reduce(np.logical_and, every) if every else np.asarray(False)


class Stretches:
    """The columns of each tile of `m` rows, in tiles of `n`: `along` are the labels of rows and of columns.

    `closed`: the tiles of rows that go along some columns are neighbours, and one that adds nothing goes along none.
    """

    def __init__(
        self, program: CascadeProgram, along: tuple[Sequence[Label], Sequence[Label]], tile: tuple[int, int],
        closed: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.frame, self.along, self.tile, self.closed = program, program.frame, along, tile, closed

    @cached_property
    def _cuts(self) -> dict[int, list[tuple[int, frozenset[fx.Node]]]] | None:
        """For each tile of rows the first columns of the tiles that add something, and the conditions that hold there.

        None where conditions are on other coordinates than those of one label of rows and one of columns.
        """
        rows, columns = self.along
        if len(rows) != 1 or len(columns) != 1 or not set(self.program.known.values()) <= {*rows, *columns}:
            return None
        blocks = {label: self.frame.extents[label] for label in self.frame.order}
        blocks |= {rows[0]: self.tile[0], columns[0]: self.tile[1]}
        found: dict[int, list[tuple[int, frozenset[fx.Node]]]] = {}
        for box, settled in kept(self.program, self.program.stages[0], blocks, self.program.known):
            found.setdefault(box[rows[0]][0] // self.tile[0], []).append((box[columns[0]][0], settled))
        return found

    @cached_property
    def conditions(self) -> frozenset[fx.Node]:
        """Choices that hold in some whole tile."""
        if self._cuts is None:
            return frozenset()
        return frozenset().union(*(settled for each in self._cuts.values() for _, settled in each))

    @cached_property
    def whole(self) -> Array:
        """(tiles, 4): where the columns of a tile begin, where conditions hold from and until, and where they end."""
        m, n = (size_of(self.frame, labels) for labels in self.along)
        step = self.tile[1]
        table = np.zeros((-(-m // self.tile[0]), 4), np.int32)
        if self._cuts is None:
            table[:] = (0, 0, n // step * step, n)
            return table
        table[:] = (0, 0, 0, 0 if self.closed else min(step, n))  # a tile that adds nothing
        for row, tiles in self._cuts.items():
            starts = [start for start, _ in tiles]
            clear = [start for start, settled in tiles if settled == self.conditions and start + step <= n]
            run = _longest(clear, step)
            begin, end = min(starts), min(max(starts) + step, n)
            table[row] = (begin, run[0], run[1], end) if run else (begin, begin, begin, end)
        before = table[:, 2] > table[:, 1]
        if (table[before, 1] > table[before, 0]).any() and not (table[before, 3] > table[before, 2]).any():
            table[~before, 1:3] = table[~before, 3:]  # one stretch with conditions will do
        return _closed(table, step, n) if self.closed else table

    def first(self) -> Tensor:
        """The first tile of rows that goes along each tile of columns."""
        return self._placed(_covered(self.whole, self.tile[1], size_of(self.frame, self.along[1])).argmax(0))

    @property
    def present(self) -> tuple[bool, bool, bool]:
        """Which of the three stretches some tile has."""
        first, second, third = (bool(each.any()) for each in np.diff(self.whole, axis=1).T > 0)
        return first, second, third

    def shared(self, shares: int) -> Tensor:
        """(shares, tiles, 4): the stretches of each share of the columns, whole tiles but for the last."""
        table, step = self.whole, self.tile[1]
        begin, end = table[:, :1], table[:, 3:]
        tiles = -(-(end - begin) // step)
        found = []
        for at in range(shares):
            start = np.minimum(begin + tiles * at // shares * step, end)
            stop = np.minimum(begin + tiles * (at + 1) // shares * step, end)
            found.append(np.clip(table, start, stop))
        return self._placed(np.stack(found))

    def _placed(self, table: Array) -> Tensor:
        """A table where kernels read it."""
        host, device = torch.from_numpy(np.ascontiguousarray(table, np.int32)), self.frame.device
        return made_aside(lambda: host.to(device), device)


def _longest(starts: Sequence[int], step: int) -> tuple[int, int] | None:
    """The longest run of neighbours."""
    best: tuple[int, int] | None = None
    begin = None
    for at, start in enumerate(starts):
        if begin is None or start != starts[at - 1] + step:
            begin = start
        if best is None or start + step - begin > best[1] - best[0]:
            best = (begin, start + step)
    return best


def _covered(table: Array, step: int, extent: int) -> Array:
    """(rows, columns): whether a tile of rows goes along a tile of columns."""
    columns = np.arange(-(-extent // step))
    return (columns >= table[:, :1] // step) & (columns < -(-table[:, 3:] // step))


def _closed(table: Array, step: int, extent: int) -> Array:
    """Stretches made longer until the tiles of rows along each tile of columns are neighbours."""
    while True:
        there = _covered(table, step, extent)
        between = np.maximum.accumulate(there, 0) & np.maximum.accumulate(there[::-1], 0)[::-1]
        if (between == there).all():
            return table
        table[:, 0] = between.argmax(1) * step
        table[:, 3] = np.maximum(
            table[:, 3], np.minimum((between.shape[1] - between[:, ::-1].argmax(1)) * step, extent)
        )

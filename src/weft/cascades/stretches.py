"""Which columns a tile of rows goes along, and where conditions on coordinates hold: from masks, once for a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx

from weft.base.cached import cached_property
from weft.cascades.frame import Frame, size_of
from weft.cascades.masks import kept
from weft.cascades.program import Program
from weft.gpu.common.driver import made_aside
from weft.spec import Label

Table: TypeAlias = "np.ndarray[Any, Any]"


class Stretches:
    """The columns of each tile of `m` rows, in tiles of `n`: `along` are the labels of rows and of columns.

    `closed`: the tiles of rows that go along some columns are neighbours, and one that adds nothing goes along none.
    """

    def __init__(
        self, program: Program, frame: Frame, known: Mapping[fx.Node, Label],
        along: tuple[Sequence[Label], Sequence[Label]], tile: tuple[int, int], closed: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.frame, self.known, self.along, self.tile = program, frame, known, along, tile
        self.closed = closed

    @cached_property
    def _cuts(self) -> dict[int, list[tuple[int, frozenset[fx.Node]]]] | None:
        """For each tile of rows the first columns of the tiles that add something, and the conditions that hold there.

        None where conditions are on other coordinates than those of one label of rows and one of columns.
        """
        rows, columns = self.along
        if len(rows) != 1 or len(columns) != 1 or not set(self.known.values()) <= {*rows, *columns}:
            return None
        blocks = {label: self.frame.extents[label] for label in self.frame.order}
        blocks |= {rows[0]: self.tile[0], columns[0]: self.tile[1]}
        found: dict[int, list[tuple[int, frozenset[fx.Node]]]] = {}
        for box, settled in kept(self.program, self.program.stages[0], self.frame, blocks, self.known):
            found.setdefault(box[rows[0]][0] // self.tile[0], []).append((box[columns[0]][0], settled))
        return found

    @cached_property
    def conditions(self) -> frozenset[fx.Node]:
        """Choices that hold in some whole tile."""
        if self._cuts is None:
            return frozenset()
        return frozenset().union(*(settled for each in self._cuts.values() for _, settled in each))

    @cached_property
    def whole(self) -> Table:
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

    def _placed(self, table: Table) -> Tensor:
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


def _covered(table: Table, step: int, extent: int) -> Table:
    """(rows, columns): whether a tile of rows goes along a tile of columns."""
    columns = np.arange(-(-extent // step))
    return (columns >= table[:, :1] // step) & (columns < -(-table[:, 3:] // step))


def _closed(table: Table, step: int, extent: int) -> Table:
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

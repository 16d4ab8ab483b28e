"""Tables of pairs: the product of two blocks in an algebra for which there is no matrix product.

    table[k, batch, row, column] = combine(left[batch, row, k], right[batch, k, column])

(or with the two exchanged, where A is on the right).

A part of that table is made that stays in cache, reduced over k, and the next part is reduced with it. Where a block
has few columns and many k the table lies the other way, k innermost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from weft.cpu.algebra import Operations

# Knobs, in bytes and elements; see `weft.cpu.model` for the machine that they were tried on.
TABLE_BYTES = 1 << 20  # of a part of the table at most: a core's second-level cache
LEAST_BYTES = 512 << 10  # and beside blocks so small that they are to leave room for others
LEAST_SUMS = 16  # along k in a part, where there are so many: each part is followed by a pass over its results
SHORT = 32  # columns under which rows of the table are too short, if there are more k


class Part(NamedTuple):
    """Extents of a part of the table of pairs; it has all columns."""

    batch: int
    rows: int
    sums: int
    columns: int

    @property
    def elements(self) -> int:
        return self.batch * self.rows * self.sums * self.columns

    @property
    def results(self) -> int:
        return self.batch * self.rows * self.columns


def room_for_aux(block_bytes: int) -> int:
    """Bytes for a part of the table beside blocks of so many."""
    return max(min(block_bytes // 2, TABLE_BYTES), LEAST_BYTES)


def part_of(batch: int, rows: int, sums: int, columns: int, itemsize: int) -> Part:
    """The part of such a table that is made at once."""
    room = room_for_aux(batch * (rows * sums + sums * columns + rows * columns) * itemsize) // itemsize
    along_k = min(sums, max(LEAST_SUMS, room // (rows * columns)))
    along_rows = min(rows, max(1, room // (along_k * columns)))
    return Part(min(batch, max(1, room // (along_k * along_rows * columns))), along_rows, along_k, columns)


class PairProduct:
    """The product of two blocks, reduced with an accumulator, in memory of one worker.

    `table` and `partial` hold a part and what it is reduced to; `table` is empty where `combine` makes its own.
    """

    def __init__(
        self,
        operations: Operations,
        a_left: bool,
        part: Part,
        sums_inner: bool,
        table: torch.Tensor,
        partial: torch.Tensor,
    ) -> None:
        self._operations = operations
        self._combine = operations.combining(a_left)
        self._part = part
        self._sums_inner = sums_inner
        self._table = table
        self._partial = partial

    def __call__(self, accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
        """(accumulator [rows, columns], left [rows, k], right [k, columns]), all behind a batch or none."""
        if accumulator.dim() == 2:
            accumulator, left, right = accumulator[None], left[None], right[None]
        reduce, fold = self._operations.reduce, self._operations.fold
        columns, dim = accumulator.shape[2], 3 if self._sums_inner else 0
        for b, batch in _steps(accumulator.shape[0], self._part.batch):
            for r, rows in _steps(accumulator.shape[1], self._part.rows):
                target = _part(accumulator, (b, r, 0), (batch, rows, columns))
                for k, sums in _steps(left.shape[2], self._part.sums):
                    table = self._combined(left, right, (b, r, k), (batch, rows, columns, sums))
                    if first and k == 0:
                        fold(table, dim, target)
                        continue
                    partial = _shaped(self._partial, (batch, rows, columns))
                    fold(table, dim, partial)
                    reduce(target, partial, target)

    def _combined(
        self, left: torch.Tensor, right: torch.Tensor, start: tuple[int, int, int], extents: tuple[int, int, int, int]
    ) -> torch.Tensor:
        """The table of the part that starts at (batch, row, k), of `extents` along batch, rows, columns and k."""
        (b, r, k), (batch, rows, columns, sums) = start, extents
        x, y = left.stride(), right.stride()
        x_start = left.storage_offset() + b * x[0] + r * x[1] + k * x[2]
        y_start = right.storage_offset() + b * y[0] + k * y[1]
        if self._sums_inner:
            shape = extents
            values = left.as_strided((batch, rows, 1, sums), (x[0], x[1], 0, x[2]), x_start)
            others = right.as_strided((batch, 1, columns, sums), (y[0], 0, y[2], y[1]), y_start)
        else:
            shape = (sums, batch, rows, columns)
            values = left.as_strided((sums, batch, rows, 1), (x[2], x[0], x[1], 0), x_start)
            others = right.as_strided((sums, batch, 1, columns), (y[1], y[0], 0, y[2]), y_start)
        table = _shaped(self._table, shape) if self._table.numel() else None
        return self._combine(values, others, table).expand(shape)


def _part(tensor: torch.Tensor, start: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    strides = tensor.stride()
    offset = sum(step * at for step, at in zip(strides, start, strict=True))
    return tensor.as_strided(shape, strides, int(tensor.storage_offset()) + offset)


def _shaped(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The beginning of `memory` in that shape."""
    return memory[: math.prod(shape)].view(shape)


def _steps(extent: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, extent) of the parts of a dimension."""
    for start in range(0, extent, step):
        yield start, min(step, extent - start)

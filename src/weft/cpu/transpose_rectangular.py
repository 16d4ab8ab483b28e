"""Rectangular matrices transposed in place on the CPU.

The decomposition of B. Catanzaro, A. Keller and M. Garland, "A decomposition for in-place matrix transposition", PPoPP
2014: transposing an m x n matrix permutes within each row and then within each column, so a few rows or columns at a
time suffice as workspace. With c = gcd(m, n), a = m / c and b = n / c their steps for a row-major matrix are

    rotate    x[i, j]      <- x[(i + j div b) mod m, j]                        where c > 1
    rows      x[i, d_i(j)] <- x[i, j],   d_i(j) = ((i + j div b) mod m + j m) mod n
    columns   x[i, j]      <- x[(j + q(i)) mod m, j],   q(i) = (i n - i div a) mod m

and the inverse steps in the opposite order transpose an n x m matrix seen as m x n. Of the two the one whose columns
are the shorter side is taken. Each step is a gather by one index for all blocks: what differs between blocks is a
rotation, done as they are read or written. Every element is moved twice, or three times where c > 1; where c is large
there is a better way, in `transpose_squares`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from weft.cpu.shuffle import WORDS
from weft.cpu.transpose_square import BLOCK, BUFFER_BYTES, LINE, in_workers, scale_, whole_
from weft.cpu.transpose_squares import cuts_into_squares, squares_
from weft.cpu.transpose_thin import thin_
from weft.planner.schedule import Scalar

LONGEST_ROW = 1 << 20  # bytes: longer matrices are cut across, if that makes panels
THICKEST = 1 << 16  # bytes: of 16 rows at least


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose dense row-major matrices (batch, rows, columns), scaled by `alpha`.

    Their strides are (any, columns * step, step); afterwards the same memory holds row-major matrices (batch, columns,
    rows). Workspace: up to 4 MiB for each worker, and 4 MiB of indices for all; where the shorter side is over 16 Ki
    elements, or over 64 KiB and the longer one over 1 MiB, these grow with the side.
    """
    _, rows, columns = matrices.shape
    if rows * columns * matrices.dtype.itemsize <= BUFFER_BYTES:
        whole_(matrices, alpha)
        return
    size = matrices.dtype.itemsize
    transpose = decomposed_
    if cuts_into_squares(rows, columns):
        transpose = squares_
    elif max(rows, columns) * size > LONGEST_ROW and min(rows, columns) * size <= THICKEST:
        transpose = thin_
    for matrix in matrices.view(WORDS[size]):
        transpose(matrix, alpha, matrices.dtype)


def decomposed_(matrix: torch.Tensor, alpha: Scalar, dtype: torch.dtype) -> None:
    """Transpose one dense row-major matrix of words that hold values of `dtype`, scaled by `alpha`."""
    rows, columns = matrix.shape
    m, n = sorted((rows, columns))
    step = matrix.stride(1)
    seen = matrix.as_strided((m, n), (n * step, step), int(matrix.storage_offset()))
    for at, each in enumerate(_steps(seen, forward=rows == m)):
        each.run(alpha if at == 0 else 1, dtype)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step over all blocks of `seen`: whole rows (elements move along dimension 1) or whole columns (0)."""

    seen: torch.Tensor  # (m, n) words
    dim: int
    spans: list[tuple[int, int]]  # of the blocks, in the other dimension
    index: torch.Tensor | None  # of the gather, the same for all blocks
    pitch: int  # a block that starts at s is rotated by s div pitch as well,
    written: bool  # as it is written, else as it is read
    groups: int = 1  # c: in rows past m - c, groups from m - i on have gone round; they are one place off

    def run(self, alpha: Scalar, dtype: torch.dtype) -> None:
        linear = self._linear(self.spans[0][1] - self.spans[0][0])

        def work(spans: Iterator[tuple[int, int]]) -> None:
            for start, stop in spans:
                block = self.seen.narrow(1 - self.dim, start, stop - start)
                by = start // self.pitch % self.seen.shape[self.dim]
                buffer = self._read(block, 0 if self.written else by)
                scale_(buffer, alpha, dtype)
                if self.written:
                    buffer = self._round(buffer, start, -1)
                if self.index is not None:
                    buffer = self._gathered(buffer, linear)
                if not self.written:
                    buffer = self._round(buffer, start, 1)
                self._write(block, buffer, by if self.written else 0)

        in_workers(work, self.spans, self.seen.numel() * self.seen.itemsize)

    def _linear(self, size: int) -> torch.Tensor | None:
        """The index into a flattened block of `size` rows or columns: torch is quickest with one such index."""
        if self.index is None:
            return None
        index = self.index.narrow(1 - self.dim, 0, size)
        width = index.shape[1]
        if self.dim == 1:
            return (index + torch.arange(size, device="cpu")[:, None] * width).view(-1)
        return (index * width + torch.arange(width, device="cpu")).view(-1)

    def _gathered(self, buffer: torch.Tensor, linear: torch.Tensor | None) -> torch.Tensor:
        if linear is None or linear.numel() != buffer.numel():  # the last block is smaller
            linear = self._linear(buffer.shape[1 - self.dim])
        assert linear is not None
        return torch.index_select(buffer.view(-1), 0, linear).view(buffer.shape)

    def _read(self, block: torch.Tensor, by: int) -> torch.Tensor:
        """buffer[t] = block[(t + by) mod extent], in a buffer of its own."""
        buffer = torch.empty(block.shape, dtype=block.dtype, device="cpu")
        rest = block.shape[self.dim] - by
        buffer.narrow(self.dim, 0, rest).copy_(block.narrow(self.dim, by, rest))
        buffer.narrow(self.dim, rest, by).copy_(block.narrow(self.dim, 0, by))
        return buffer

    def _write(self, block: torch.Tensor, buffer: torch.Tensor, by: int) -> None:
        """block[(t + by) mod extent] = buffer[t]"""
        rest = block.shape[self.dim] - by
        block.narrow(self.dim, by, rest).copy_(buffer.narrow(self.dim, 0, rest))
        block.narrow(self.dim, 0, by).copy_(buffer.narrow(self.dim, rest, by))

    def _round(self, buffer: torch.Tensor, start: int, places: int) -> torch.Tensor:
        """Move groups that have gone round by one place within themselves: their term mod m is m smaller."""
        m = self.seen.shape[0]
        stop = start + buffer.shape[0]
        if self.groups == 1 or stop <= m - self.groups + 1:
            return buffer
        groups = buffer.view(buffer.shape[0], self.groups, -1)
        gone = torch.arange(self.groups, device="cpu") >= m - torch.arange(start, stop, device="cpu")[:, None]
        return torch.where(gone[:, :, None], groups.roll(places, 2), groups).view(buffer.shape)


def _steps(seen: torch.Tensor, *, forward: bool) -> list[_Step]:
    """The steps in order: those of the paper forward, their inverses backward."""
    m, n = seen.shape
    c = math.gcd(m, n)
    i, j = torch.arange(m, device="cpu"), torch.arange(n, device="cpu")
    q = (i * n - i // (m // c)) % m
    p = (j // (n // c) + j % (n // c) * m) % n  # d_i(j) = (i + p(j)) mod n but for groups that have gone round
    height, width = min(max(BLOCK // n, 1), m), min(max(BLOCK // m, LINE // seen.itemsize), n)
    if forward:
        along_rows = _inverse(p)[(j - i[:height, None]) % n]
        along_columns = (q[:, None] + j[:width]) % m
    else:
        along_rows = (p + i[:height, None]) % n
        along_columns = _inverse(q)[(i[:, None] - j[:width]) % m]
    rows = _Step(seen, 1, _spans(m, height), along_rows, 1, written=forward, groups=c)
    columns = _Step(seen, 0, _spans(n, width), along_columns, 1, written=not forward)
    rotation = [_rotation(seen, n // c, width, forward=forward)] if c > 1 else []
    return [*rotation, rows, columns] if forward else [columns, rows, *rotation]


def _rotation(seen: torch.Tensor, group: int, width: int, *, forward: bool) -> _Step:
    """Columns rotated by one more for each `group` of them: several groups in a block, or blocks within a group."""
    m, n = seen.shape
    if group > width:
        spans = [(u + start, u + stop) for u in range(0, n, group) for start, stop in _spans(group, width)]
        return _Step(seen, 0, spans, None, group, written=not forward)
    width -= width % group
    turn = torch.arange(width, device="cpu") // group
    index = (torch.arange(m, device="cpu")[:, None] + (turn if forward else -turn)) % m
    return _Step(seen, 0, _spans(n, width), index, group, written=not forward)


def _spans(extent: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, extent)) for start in range(0, extent, size)]


def _inverse(permutation: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(permutation).scatter_(0, permutation, torch.arange(permutation.numel(), device="cpu"))

"""Rectangular matrices of which large squares can be cut, transposed in place on the CPU.

With c = gcd(rows, columns) a matrix of (a c) x (b c) is a x b squares. Each is transposed where it lies; that leaves
vectors of c elements in an order [a][c][b] that should be [b][c][a]. All columns of the V x c matrix of these V = a b c
vectors are permuted alike, so a few columns at a time are read, put in order and written back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from weft.cpu.transpose_square import BLOCK, LINE, in_workers, square_
from weft.planner.schedule import Scalar

LEAST_SQUARE = 64  # elements along its side: below, the vectors are short
MOST_VECTORS = 1 << 15


def cuts_into_squares(rows: int, columns: int) -> bool:
    c = math.gcd(rows, columns)
    return c >= LEAST_SQUARE and rows * columns // c <= MOST_VECTORS


def squares_(matrix: torch.Tensor, alpha: Scalar, dtype: torch.dtype) -> None:
    """Transpose one dense row-major matrix of words that hold values of `dtype`, scaled by `alpha`.

    Each element is moved twice. A worker takes two blocks of 64 Ki elements, or of a cache line for each vector.
    """
    rows, columns = matrix.shape
    step, base = matrix.stride(1), int(matrix.storage_offset())
    c = math.gcd(rows, columns)
    a, b = rows // c, columns // c
    for at in range(a):
        strip = matrix.as_strided((b, c, c), (c * step, columns * step, step), base + at * c * columns * step)
        square_(strip.view(dtype), alpha)
    count = a * b * c
    order = torch.arange(count, device="cpu").view(a, c, b).permute(2, 1, 0).reshape(-1)
    vectors = matrix.as_strided((count, c), (c * step, step), base)
    width = min(max(BLOCK // count, LINE // matrix.itemsize, 1), c)

    def work(starts: Iterator[int]) -> None:
        for start in starts:
            block = vectors[:, start : start + width]
            block.copy_(torch.index_select(block.contiguous(), 0, order))

    in_workers(work, range(0, c, width), matrix.numel() * matrix.itemsize)

"""Square matrices transposed in place on the CPU, tile by tile, and what all ways to transpose in place share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from weft.cpu.shuffle import WORDS, exchanged
from weft.cpu.workers import share, split
from weft.planner.schedule import Scalar
from weft.spec.permutation import scaling_type

BUFFER_BYTES = 1 << 18  # of a tile on its way; a worker has four such buffers at most
BLOCK = 1 << 16  # elements of a block of whole rows or columns, or
LINE = 64  # bytes of each of them, where that is more

T = TypeVar("T")


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) where they lie, any strides, scaled by `alpha`.

    A tile and its mirror image are read, transposed and written in each other's place, by one worker: every element
    is read once and written once.
    """
    batch, n, _ = matrices.shape
    size = matrices.dtype.itemsize
    seen = matrices.view(WORDS[size])
    if n * n * size <= BUFFER_BYTES:
        whole_(matrices, alpha)
        return
    tile = math.isqrt(BUFFER_BYTES // size)
    starts = range(0, n, tile)
    pairs = ((b, i, j) for b in range(batch) for i in starts for j in starts if i <= j)

    def work(pairs: Iterator[tuple[int, int, int]]) -> None:
        for b, i, j in pairs:
            upper, lower = seen[b, i : i + tile, j : j + tile], seen[b, j : j + tile, i : i + tile]
            mirrored = _turned(upper, alpha, matrices.dtype)
            if i != j:
                upper.copy_(_turned(lower, alpha, matrices.dtype))
            lower.copy_(mirrored)

    in_workers(work, pairs, seen.numel() * size)


def whole_(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Transpose matrices (batch, rows, columns), each of which fits into a buffer.

    Those that are not square lie dense and row-major, and so do their transposes afterwards.
    """
    batch, rows, columns = matrices.shape
    size = matrices.dtype.itemsize
    seen = matrices.view(WORDS[size])
    target = seen if rows == columns else transposed_view(seen)
    step = max(1, BUFFER_BYTES // (rows * columns * size))

    def work(firsts: Iterator[int]) -> None:
        for first in firsts:
            target[first : first + step].copy_(_turned(seen[first : first + step], alpha, matrices.dtype))

    in_workers(work, range(0, batch, step), seen.numel() * size)


def transposed_view(matrices: torch.Tensor) -> torch.Tensor:
    """The memory of dense row-major matrices (batch, rows, columns) as row-major matrices (batch, columns, rows)."""
    batch, rows, columns = matrices.shape
    step = matrices.stride(2)
    return matrices.as_strided(
        (batch, columns, rows), (matrices.stride(0), rows * step, step), int(matrices.storage_offset())
    )


def scale_(buffer: torch.Tensor, alpha: Scalar, dtype: torch.dtype) -> None:
    """Multiply a buffer of words, which hold values of `dtype`, by `alpha`."""
    if alpha != 1:
        values = buffer.view(dtype)
        values.copy_(values.to(scaling_type(dtype, dtype)).mul_(alpha))


def in_workers(work: Callable[[Iterator[T]], None], items: Iterable[T], size: int) -> None:
    """Run `work` on all items, in several threads where there are `size` bytes enough to be worth it."""
    workers, threads = split(torch.get_num_threads())
    if workers == 1 or size < 4 * BUFFER_BYTES:
        work(iter(items))
    else:
        share(work, items, workers, threads)


def _turned(block: torch.Tensor, alpha: Scalar, dtype: torch.dtype) -> torch.Tensor:
    """The transpose of a block (..., rows, columns) of words, scaled, in a buffer of its own."""
    buffer = block.contiguous() if not block.is_contiguous() else block.clone()
    scale_(buffer, alpha, dtype)
    rows, columns = block.shape[-2:]
    return exchanged(buffer.view(-1), rows, columns).view(*block.shape[:-2], columns, rows)

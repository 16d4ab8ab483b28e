"""Very long and thin matrices transposed in place on the CPU, cut across into panels that fit into a buffer.

A tall matrix of M panels of r rows and S columns: each panel is transposed in the buffer, which leaves M x S vectors of
r elements; these are moved to S x M along the cycles of that permutation. Rows that are left over stand behind all that
as S short vectors and are inserted last. A wide matrix takes the same way backwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.cpu.shuffle import exchanged
from weft.cpu.transpose_square import in_workers, scale_
from weft.planner.schedule import Scalar

PANEL = 1 << 20  # bytes


def thin_(matrix: torch.Tensor, alpha: Scalar, dtype: torch.dtype) -> None:
    """Transpose one dense row-major matrix of words that hold values of `dtype`, scaled by `alpha`.

    Each element is moved twice, or three times where rows are left over. Workspace: up to three panels of 1 MiB for
    each worker, and a byte for each vector.
    """
    rows, columns = matrix.shape
    short, long = sorted((rows, columns))
    memory = matrix.as_strided((rows * columns,), (matrix.stride(1),), int(matrix.storage_offset()))
    height = max(PANEL // (short * matrix.itemsize), 1)
    panels, left = divmod(long, height)
    full = memory[: short * panels * height]
    if rows == long:
        _turn_panels(memory, long, short, height, alpha, dtype, tall=True)
        _move_vectors(full.view(-1, height), panels, short)
        _insert(memory, short, panels * height, left)
    else:
        _extract(memory, short, panels * height, left)
        _move_vectors(full.view(-1, height), short, panels)
        _turn_panels(memory, long, short, height, alpha, dtype, tall=False)


def _turn_panels(
    memory: torch.Tensor, long: int, short: int, height: int, alpha: Scalar, dtype: torch.dtype, *, tall: bool
) -> None:
    """Transpose each panel where it lies: h x S where the matrix is tall, else S x h."""

    def work(firsts: Iterator[int]) -> None:
        for first in firsts:
            h = min(height, long - first)
            panel = memory[first * short : (first + h) * short]
            buffer = torch.empty(panel.shape, dtype=panel.dtype, device="cpu").copy_(panel)
            scale_(buffer, alpha, dtype)
            panel.copy_(exchanged(buffer, h, short) if tall else exchanged(buffer, short, h))

    in_workers(work, range(0, long, height), memory.numel() * memory.itemsize)


def _move_vectors(vectors: torch.Tensor, rows: int, columns: int) -> None:
    """Transpose a rows x columns matrix of vectors, cycle by cycle."""
    done = bytearray(rows * columns)
    for start in range(rows * columns):
        if done[start]:
            continue
        at, source = start, start % rows * columns + start // rows
        kept = vectors[start].clone() if source != start else None
        while source != start:
            vectors[at].copy_(vectors[source])
            done[at] = 1
            at, source = source, source % rows * columns + source // rows
        if kept is not None:
            vectors[at].copy_(kept)
        done[at] = 1


def _insert(memory: torch.Tensor, short: int, body: int, tail: int) -> None:
    """S bodies and behind them S tails -> each tail behind its body."""
    if not tail:
        return
    stretch_size = PANEL // memory.itemsize
    tails = memory[short * body :].clone().view(short, tail)
    for s in reversed(range(short)):
        end = s * (body + tail) + body
        for stop in range(body, 0, -stretch_size):
            size = min(stop, stretch_size)
            stretch = memory[s * body + stop - size : s * body + stop].clone()
            memory[end - body + stop - size : end - body + stop].copy_(stretch)
        memory[end : end + tail].copy_(tails[s])


def _extract(memory: torch.Tensor, short: int, body: int, tail: int) -> None:
    """The inverse: each tail behind its body -> S bodies and behind them S tails."""
    if not tail:
        return
    stretch_size = PANEL // memory.itemsize
    tails = torch.empty((short, tail), dtype=memory.dtype, device="cpu")
    for s in range(short):
        start = s * (body + tail)
        tails[s].copy_(memory[start + body : start + body + tail])
        for at in range(0, body, stretch_size):
            size = min(body - at, stretch_size)
            memory[s * body + at : s * body + at + size].copy_(memory[start + at : start + at + size].clone())
    memory[short * body :].copy_(tails.view(-1))

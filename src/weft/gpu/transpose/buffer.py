"""What goes out of a matrix into a buffer and comes back to another place of the same memory, on the GPU.

A buffer is filled and emptied by two launches; memory larger than the buffer takes its turns in an order in which
nothing is overwritten before it was read. The copies are permutations like any other (`permute`).
"""

from __future__ import annotations

from functools import lru_cache

import torch

from weft.gpu.permute import family as permute
from weft.gpu.permute.launch import PermuteLaunch
from weft.gpu.transpose.slide import slide_, slide_params
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Label, Layout, parse
from weft.spec.permutation import Permutation, canonical_modes

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def move(source: torch.Tensor, target: torch.Tensor, alpha: Scalar = 1) -> None:
    """target[...] = alpha * source[...], of the same shape; their memories are apart."""
    if source.numel() == 0:
        return
    if alpha == 1 and source.is_contiguous() and target.is_contiguous():
        target.copy_(source)
        return
    device = target_of("triton", source.device)
    _launch(_few_alignments(source), _few_alignments(target), alpha != 1, device)(source, None, target, alpha, 0)


def through_buffer_(matrices: torch.Tensor, buffer_bytes: int, alpha: Scalar) -> None:
    """Transpose dense matrices (batch, rows, columns), as many at a time as fit into the buffer; at least one."""
    batch, rows, columns = matrices.shape
    step, base = matrices.stride(2), int(matrices.storage_offset())
    if batch == 0:
        return
    together = _even(batch, max(buffer_bytes // (rows * columns * matrices.itemsize), 1))
    buffer = torch.empty((together, columns, rows), dtype=matrices.dtype, device=matrices.device)
    for start in range(0, batch, together):
        out = matrices[start : start + together]
        full = buffer[: out.shape[0]]
        move(out.mT, full, alpha)
        back = (matrices.stride(0), rows * step, step)
        move(full, matrices.as_strided(full.shape, back, base + start * matrices.stride(0)))


def close_(matrix: torch.Tensor, columns: int, buffer_bytes: int) -> None:
    """Move the first columns of a dense matrix together: they form a dense matrix afterwards, at the same address."""
    rows, pitch = matrix.shape
    _slide(matrix, rows, columns, pitch, columns, buffer_bytes, first_to_last=True)


def apart_(matrix: torch.Tensor, columns: int, buffer_bytes: int) -> None:
    """The inverse: what is a dense matrix of these columns becomes the first columns of `matrix`."""
    rows, pitch = matrix.shape
    _slide(matrix, rows, columns, columns, pitch, buffer_bytes, first_to_last=False)


def _slide(
    memory: torch.Tensor, rows: int, columns: int, pitch: int, new_pitch: int, buffer_bytes: int, *, first_to_last: bool
) -> None:
    """Rows of some columns, `pitch` elements apart, are moved to a pitch of `new_pitch`.

    First to last to a smaller pitch, last to first to a larger one: what is written then was read before. Rows longer
    than the buffer are cut. The first row stays where it is.
    """
    if pitch == new_pitch or rows < 2:
        return
    if _slid(memory, rows, columns, buffer_bytes, apart=not first_to_last):
        return
    step, base = memory.stride(1), int(memory.storage_offset())
    room = max(buffer_bytes // memory.itemsize, 1)
    width = min(columns, room)
    height = _even(rows - 1, room // width) if width == columns else 1
    buffer = torch.empty(height * width, dtype=memory.dtype, device=memory.device)
    blocks = [(i, j) for i in range(1, rows, height) for j in range(0, columns, width)]
    for i, j in blocks if first_to_last else reversed(blocks):
        shape = (min(height, rows - i), min(width, columns - j))
        full = buffer[: shape[0] * shape[1]].view(shape)
        move(memory.as_strided(shape, (pitch * step, step), base + (i * pitch + j) * step), full)
        move(full, memory.as_strided(shape, (new_pitch * step, step), base + (i * new_pitch + j) * step))


def _slid(memory: torch.Tensor, rows: int, columns: int, buffer_bytes: int, *, apart: bool) -> bool:
    """Move the rows by programs that work at once, where enough can."""
    seen = words_of(memory)
    pieces = seen[0].shape[1] // memory.shape[1]
    gap = memory.shape[1] - columns
    cuts = [
        slide_params(rows, columns * pieces, gap * pieces, words.stride(1), words.itemsize, buffer_bytes, apart=apart)
        for words in seen
    ]
    for words, cut in zip(seen, cuts, strict=True):
        if cut is None:
            return False
        slide_(words, cut)
    return True


def words_of(matrix: torch.Tensor) -> list[torch.Tensor]:
    """A matrix of elements as matrices of words of at most 8 bytes: one where its rows are contiguous, else two."""
    if matrix.itemsize <= 8:
        return [matrix.view(WORDS[matrix.itemsize])]
    pairs = torch.view_as_real(matrix).view(torch.int64)
    return [pairs.flatten(1)] if matrix.stride(1) == 1 else list(pairs.unbind(-1))


def _even(count: int, most: int) -> int:
    """How many of `count` to take at a time, at most `most`, so that all turns are nearly alike."""
    return -(-count // -(-count // most))


def _few_alignments(tensor: torch.Tensor) -> Layout:
    """The layout with an alignment of 16 bytes or of an element, so that kernels are compiled twice at most."""
    layout = Layout.of(tensor)
    return layout if layout.alignment == 16 else layout._replace(alignment=min(tensor.itemsize, 8))


@lru_cache(maxsize=512)
def _launch(source: Layout, target: Layout, scaled: bool, device: Target) -> PermuteLaunch:
    term = "abc"[: len(source.shape)]
    extents: dict[Label, int] = dict(zip(term, source.shape, strict=True))
    permutation = Permutation(
        modes=canonical_modes(parse(f"{term}->{term}"), source, None, target, extents),
        x=source,
        c=None,
        d=target,
        compute=source.dtype,
        scaled=scaled,
    )
    schedule, _ = permute.best(permutation, device)
    return permute.build(permutation, schedule, device)

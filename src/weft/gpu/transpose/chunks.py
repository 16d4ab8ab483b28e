"""Chunks of contiguous elements that change places within their memory, on the GPU.

x[A][q][B] becomes x[B][q][A], every element of it a chunk. One launch keeps the few chunks that must not be lost, a
second one moves all; where the kept ones would outgrow the workspace, a slice of all chunks at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from weft.errors import UnsupportedError
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.transpose.cycles import moves
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.spec import Layout

_WIDTH = 1024  # bytes of each chunk that a program moves: runs that memory likes
_BLOCK = 16384  # bytes that it holds in registers
_GROUPS = (16, 128)  # chunks that it moves: at least 16, for an eighth of all would have to be kept with less

_captured: dict[int, _Tables] = {}  # what graphs refer to, by address


class ChunkParams(NamedTuple):
    """All that the kernels take of how chunks lie and are shared out, as compile-time constants."""

    group: int  # chunks of a program
    width: int  # elements of each chunk, a power of two
    blocks: int  # programs side by side along a chunk
    span: int  # elements of a chunk that are moved
    pitch: int  # elements from one chunk to the next
    step: int  # from one element of a chunk to the next
    wide: bool  # offsets need 64 bits


class _Tables(NamedTuple):
    """`transpose_cycles.Moves` on a device."""

    targets: torch.Tensor
    sources: torch.Tensor
    kept: torch.Tensor


def exchange_(chunks: torch.Tensor, order: tuple[int, int, int], workspace: int) -> None:
    """Move chunks, the rows of a matrix of words of up to 8 bytes, from [A][q][B] to [B][q][A]; `order` is (A, q, B).

    Up to `workspace` bytes are allocated for kept chunks, but always enough for a word of each. The tables of a
    permutation, 8 bytes for each chunk, stay in the device's memory until those of 8 others were needed, and for good
    once a captured graph uses them. `UnsupportedError` where a graph is captured and they are not there yet.
    """
    size = chunks.itemsize
    width = min(_WIDTH // size, _power_of_two(chunks.shape[1]))
    group = min(max(_BLOCK // (width * size), _GROUPS[0]), _GROUPS[1])
    tables = _tables(*order, group, chunks.device)
    _hold(tables)
    if not tables.targets.numel():
        return
    kept, length = tables.kept.numel(), chunks.shape[1]
    slice_width = length
    if kept * length * size > workspace:
        room = max(workspace // (kept * size), 1)
        slice_width = room // width * width or _power_of_two(room + 1) // 2
        width = min(width, slice_width)
    buffer = torch.empty(kept * slice_width, dtype=chunks.dtype, device=chunks.device)
    target = target_of("triton", chunks.device)
    for start in range(0, length, slice_width):
        part = chunks[:, start : start + slice_width]
        keep, move = _launches(Layout.of(part), group, width, kept, tables.targets.numel(), target)
        if kept:
            keep((part, tables.kept, buffer), 0, 0)
        move((part, tables.targets, tables.sources, buffer), 0, 0)


@lru_cache(maxsize=8)
def _tables(outer: int, middle: int, inner: int, group: int, device: torch.device) -> _Tables:
    if _capturing(device):
        raise UnsupportedError("a matrix of this shape must be transposed once before that is captured in a graph")
    source = np.arange(outer * middle * inner).reshape(outer, middle, inner).transpose(2, 1, 0).reshape(-1)
    return _Tables(*(torch.from_numpy(table).to(device) for table in moves(source, group)))


def _hold(tables: _Tables) -> None:
    """Keep the tables' memory for what is being launched, though they may be dropped before it has run."""
    device = tables.targets.device
    if device.type != "cuda":
        return
    if _capturing(device):
        _captured[tables.targets.data_ptr()] = tables
        return
    for table in tables:
        table.record_stream(torch.cuda.current_stream(device))


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=512)
def _launches(
    part: Layout, group: int, width: int, kept: int, moved: int, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(keeping, moving)"""
    from weft.gpu.transpose.kernel import chunks_kernel, keep_kernel

    chunks, span = part.shape
    pitch, step = part.strides
    blocks = -(-span // width)
    wide = max(chunks * pitch + width * step, kept * span + width) >= 2**31
    cut = ChunkParams(group, width, blocks, span, pitch, step, wide)
    words, numbers = Layout.contiguous((kept, span), part.dtype), Layout.contiguous((moved,), torch.int32)
    constants = {"PARAMS": cut}
    warps = 4
    keep = KernelLaunch(
        keep_kernel, (part, numbers, words), constants, False, target, kept // group * blocks, warps, stages=1
    )
    move = KernelLaunch(
        chunks_kernel,
        (part, numbers, numbers, words),
        constants,
        False,
        target,
        moved // group * blocks,
        warps,
        stages=1,
    )
    return keep, move


def _power_of_two(extent: int) -> int:
    return 1 << max(extent - 1, 0).bit_length()

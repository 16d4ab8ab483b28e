"""Matrices transposed in place on the GPU.

Square ones: each element is read once and written once, nothing is allocated. Others: those that fit into the
workspace go out transposed and come back; larger ones are taken apart into squares or panels, see `transpose_way`, and
their elements are moved two to six times.

Workspace of a call: for matrices of B bytes in all at most max(8 MiB, min(B / 8, 32 MiB)), free again when it returns.
Beside it tables of 8 bytes for each chunk that changes places, rarely more than 8 MiB, stay for the next matrix of the
same shape; those of the last 8 shapes do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from weft.gpu.common.hardware import LINE, VECTOR
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.transpose import way as transpose_way
from weft.gpu.transpose.buffer import WORDS, apart_, close_, move, through_buffer_, words_of
from weft.gpu.transpose.chunks import exchange_
from weft.gpu.transpose.way import Way, workspace_bytes
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Layout

# Rows and columns of a tile and warps of its program, by bytes of an element, as they were fastest on an H200. Large
# tiles are for runs of two lines and more; they are for matrices of many, and where each access takes 16 bytes, for an
# address of each is too much to hold.
_LARGE = {1: (64, 8), 2: (128, 16), 4: (64, 8), 8: (64, 8), 16: (16, 4)}
_SMALL = {1: (64, 8), 2: (64, 8), 4: (32, 4), 8: (32, 4), 16: (16, 4)}
_ON_LINES = {2: (128, 8)}  # where rows begin with lines, fewer warps are waited for
_MANY = 8  # tiles along a side


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) where they lie, any strides, scaled by `alpha`; no workspace.

    Each element is read once and written once. Scaling complex matrices is not supported on the GPU yet.
    """
    _squares(matrices[None], alpha)


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose dense row-major matrices (batch, rows, columns), scaled by `alpha`.

    Their strides are (any, columns * step, step); afterwards the same memory holds row-major matrices (batch, columns,
    rows). Workspace as said above. Scaling complex matrices is not supported on the GPU yet.
    """
    _, rows, columns = matrices.shape
    seen = matrices if alpha != 1 or matrices.itemsize > 8 else matrices.view(WORDS[matrices.itemsize])
    workspace = workspace_bytes(seen.numel() * seen.itemsize)
    if rows * columns * seen.itemsize <= workspace:
        through_buffer_(seen, workspace, alpha)
        return
    way = transpose_way.choose(rows, columns, seen.itemsize, workspace)
    for matrix in seen:
        _taken_apart(matrix, way, workspace, alpha)


def _taken_apart(matrix: torch.Tensor, way: Way, workspace: int, alpha: Scalar) -> None:
    """Transpose one dense row-major matrix."""
    rows, columns = matrix.shape
    buffer = workspace - (matrix.numel() - way.rows * way.columns) * matrix.itemsize

    # (1) Keep what lies outside the main part, transposed, and close the gaps it leaves.
    low = _transposed(matrix[way.rows :], alpha) if way.rows < rows else None
    right = _transposed(matrix[: way.rows, way.columns :], alpha) if way.columns < columns else None
    close_(matrix[: way.rows], way.columns, buffer)

    # (2) Transpose the main part, which lies dense now.
    main = _dense(matrix, way.rows, way.columns)
    side = way.side
    if way.kind == "squares":
        down, across = way.rows // side, way.columns // side
        _squares(main.unflatten(0, (down, side)).unflatten(2, (across, side)).transpose(1, 2), alpha)
        _exchange(main, side, (down, side, across), buffer)
    elif way.kind == "row panels":
        through_buffer_(main.unflatten(0, (-1, side)), buffer, alpha)
        _exchange(main, side, (way.rows // side, 1, columns), buffer)
    else:
        panels = way.columns // side
        _exchange(main, side, (rows, 1, panels), buffer)
        through_buffer_(_dense(matrix, panels * rows, side).unflatten(0, (panels, rows)), buffer, alpha)

    # (3) Make room for what was kept and put it there.
    result = _dense(matrix, columns, rows)
    apart_(result[: way.columns], way.rows, buffer)
    if low is not None:
        move(low, result[:, way.rows :])
    if right is not None:
        move(right, result[way.columns :, : way.rows])


def _transposed(matrix: torch.Tensor, alpha: Scalar) -> torch.Tensor:
    """A transposed copy."""
    result = torch.empty(matrix.shape[::-1], dtype=matrix.dtype, device=matrix.device)
    move(matrix.T, result, alpha)
    return result


def _dense(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The first elements of a dense row-major matrix as another one."""
    step = matrix.stride(1)
    return matrix.as_strided((rows, columns), (columns * step, step), int(matrix.storage_offset()))


def _exchange(main: torch.Tensor, side: int, order: tuple[int, int, int], buffer: int) -> None:
    """Move the chunks of `side` elements of a dense matrix."""
    chunks = _dense(main, main.numel() // side, side)
    for words in words_of(chunks):
        exchange_(words, order, buffer)


def _squares(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Transpose square matrices (outer batch, inner batch, n, n) where they lie, any strides."""
    if matrices.shape[-1] == 1 and alpha == 1:
        return
    if matrices.itemsize > 8:
        matrices = torch.view_as_real(matrices)  # five dimensions: an element is two words
    seen = matrices if alpha != 1 else matrices.view(WORDS[matrices.itemsize])
    target = target_of("triton", matrices.device)
    _square_launch(Layout.of(seen), alpha != 1, target)((seen,), alpha, 0)


@lru_cache(maxsize=512)
def _square_launch(matrices: Layout, scaled: bool, target: Target) -> KernelLaunch:
    from weft.gpu.transpose.kernel import square_kernel

    outer, inner, n, _, *pair = matrices.shape
    dtype = matrices.dtype
    words = pair[0] if pair else 1
    size = dtype.itemsize * words
    tile, warps = _ON_LINES.get(size, _LARGE[size]) if _are_whole(matrices, LINE) else _LARGE[size]
    if n < _MANY * tile or not _are_whole(matrices, VECTOR):
        tile, warps = _SMALL[size]
    tiles = -(-n // tile)
    tiles += tiles % 2
    scale = torch.float64 if dtype is torch.float64 else torch.float32
    if not dtype.is_floating_point:
        scale = torch.int64
    reach = sum(stride * (extent + tile) for stride, extent in zip(matrices.strides, matrices.shape, strict=True))
    constants: dict[str, Any] = {
        "N": n,
        "TILES": tiles,
        "TILE": tile,
        "INNER": inner,
        "STRIDES": matrices.strides[:4],
        "WORDS": words,
        "SCALE": TRITON_TYPES[scale] if scaled else None,
        "WIDE": reach >= 2**31,
    }
    programs = outer * inner * (tiles // 2) * (tiles + 1)
    real = scale.is_floating_point
    return KernelLaunch(square_kernel, (matrices,), constants, real, target, programs, warps, stages=1)


def _are_whole(matrices: Layout, size: int) -> bool:
    """Whether all rows, or all columns, begin `size` bytes apart or multiples of it, and are made of accesses of 16."""
    unit = max(size // matrices.dtype.itemsize, 1)
    jumps = [
        stride for stride, extent in zip(matrices.strides, matrices.shape, strict=True) if extent > 1 and stride != 1
    ]
    whole = all(jump % unit == 0 for jump in jumps) and matrices.shape[3] * matrices.dtype.itemsize % VECTOR == 0
    return whole and 1 in matrices.strides[2:] and matrices.alignment == VECTOR

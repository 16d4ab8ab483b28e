"""Matrices transposed in place on the GPU.

Square ones: tiles and their mirror images change places, each element is read once and written once, nothing is
allocated. Others: those that fit into the workspace go out transposed and come back; larger ones are decomposed into
squares or panels, see `schedule`, and their elements are moved two to six times.

Workspace of a call: for matrices of B bytes in all at most max(8 MiB, min(B / 8, 32 MiB)), free again when it returns.
Beside it tables of 8 bytes for each super-element that changes places, rarely more than 8 MiB, stay for the next matrix
of the same shape; those of the last 8 shapes do.
"""

from __future__ import annotations

import torch

from weft.gpu.permute.words import WORDS
from weft.gpu.transpose.launch import as_words, transpose_squares_
from weft.gpu.transpose.padding import insert_padding_, remove_padding_
from weft.gpu.transpose.schedule import TransposeSchedule, best, workspace_bytes
from weft.gpu.transpose.super_elements import move_super_elements_
from weft.gpu.transpose.workspace import copy, transpose_via_workspace_
from weft.planner.schedule import Scalar


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose square matrices (batch, n, n) where they lie, any strides, scaled by `alpha`; no workspace.

    Each element is read once and written once. Scaling complex matrices is not supported on the GPU yet.
    """
    transpose_squares_(matrices[None], alpha)


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Transpose dense row-major matrices (batch, rows, columns), scaled by `alpha`.

    Their strides are (any, columns * step, step); afterwards the same memory holds row-major matrices (batch, columns,
    rows). Workspace as said above. Scaling complex matrices is not supported on the GPU yet.
    """
    _, rows, columns = matrices.shape
    seen = matrices if alpha != 1 or matrices.itemsize > 8 else matrices.view(WORDS[matrices.itemsize])
    workspace = workspace_bytes(seen.numel() * seen.itemsize)
    if rows * columns * seen.itemsize <= workspace:
        transpose_via_workspace_(seen, workspace, alpha)
        return
    schedule = best(rows, columns, seen.itemsize, workspace)
    for matrix in seen:
        decomposed_(matrix, schedule, workspace, alpha)


def decomposed_(matrix: torch.Tensor, schedule: TransposeSchedule, workspace: int, alpha: Scalar) -> None:
    """Transpose one dense row-major matrix in stages."""
    rows, columns = matrix.shape
    main_rows, main_columns, side = schedule.rows, schedule.columns, schedule.side
    room = workspace - (matrix.numel() - main_rows * main_columns) * matrix.itemsize

    # (1) Keep what lies outside the main part, transposed, and take out the padding that it is.
    below = _transposed(matrix[main_rows:], alpha) if main_rows < rows else None
    right = _transposed(matrix[:main_rows, main_columns:], alpha) if main_columns < columns else None
    remove_padding_(matrix[:main_rows], main_columns, room)

    # (2) Transpose the main part, which lies dense now.
    main = _dense(matrix, main_rows, main_columns)
    if schedule.kind == "squares":
        down, across = main_rows // side, main_columns // side
        transpose_squares_(main.unflatten(0, (down, side)).unflatten(2, (across, side)).transpose(1, 2), alpha)
        _move_super_elements(main, side, (down, side, across), room)
    elif schedule.kind == "row panels":
        transpose_via_workspace_(main.unflatten(0, (-1, side)), room, alpha)
        _move_super_elements(main, side, (main_rows // side, 1, columns), room)
    else:
        panels = main_columns // side
        _move_super_elements(main, side, (rows, 1, panels), room)
        transpose_via_workspace_(_dense(matrix, panels * rows, side).unflatten(0, (panels, rows)), room, alpha)

    # (3) Make room for what was kept and put it there.
    result = _dense(matrix, columns, rows)
    insert_padding_(result[:main_columns], main_rows, room)
    if below is not None:
        copy(below, result[:, main_rows:])
    if right is not None:
        copy(right, result[main_columns:, :main_rows])


def _transposed(matrix: torch.Tensor, alpha: Scalar) -> torch.Tensor:
    """A transposed copy."""
    result = torch.empty(matrix.shape[::-1], dtype=matrix.dtype, device=matrix.device)
    copy(matrix.T, result, alpha)
    return result


def _dense(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The first elements of a dense row-major matrix as another one."""
    step = matrix.stride(1)
    return matrix.as_strided((rows, columns), (columns * step, step), int(matrix.storage_offset()))


def _move_super_elements(main: torch.Tensor, side: int, order: tuple[int, int, int], workspace: int) -> None:
    """Move the super-elements of `side` elements of a dense matrix."""
    for words in as_words(_dense(main, main.numel() // side, side)):
        move_super_elements_(words, order, workspace)

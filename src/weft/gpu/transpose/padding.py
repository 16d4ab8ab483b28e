"""Padding behind rows that is taken out or put in within their memory: the leading dimension of a matrix changes.

Rows *slide* where padding is little in all (data sliding: J. Gómez-Luna et al., ICPP 2015). All elements, numbered
without the padding, are cut into segments of equal length, one for each program. A program moves its segment tile by
tile, beginning at the end that the segment moves towards, so it overwrites only what it has read. What another program
would overwrite of a segment lies at one of its ends and is saved in the workspace beforehand: as many elements as the
segment travels, which grows from row to row. Programs then need not wait for one another.

Elsewhere rows go out into the workspace and come back, in an order in which nothing is overwritten before it was read.
"""

from __future__ import annotations

import torch

from weft.gpu.transpose.launch import as_words, slide_launches
from weft.gpu.transpose.params import SlideParams, slide_params
from weft.gpu.transpose.workspace import copy, evenly
from weft.planner.target import target_of
from weft.spec import Layout


def remove_padding_(matrix: torch.Tensor, columns: int, workspace: int) -> None:
    """Move the first columns of a dense matrix together: they form a dense matrix afterwards, at the same address."""
    if not _slid(matrix, columns, workspace, insert=False):
        _move_rows(matrix, columns, matrix.shape[1], columns, workspace)


def insert_padding_(matrix: torch.Tensor, columns: int, workspace: int) -> None:
    """The inverse: what is a dense matrix of these columns becomes the first columns of `matrix`."""
    if not _slid(matrix, columns, workspace, insert=True):
        _move_rows(matrix, columns, columns, matrix.shape[1], workspace)


def slide_(words: torch.Tensor, params: SlideParams) -> None:
    """Slide the rows that begin with the first word of `words`."""
    saved = torch.empty(params.saved, dtype=words.dtype, device=words.device)
    save, slide = slide_launches(Layout.of(words).alignment, words.dtype, params, target_of("triton", words.device))
    save((words, saved), 0, 0)
    slide((words, saved), 0, 0)


def _slid(matrix: torch.Tensor, columns: int, workspace: int, *, insert: bool) -> bool:
    """Slide the rows, where enough programs can; False where they cannot, and nothing was moved."""
    rows, pitch = matrix.shape
    if pitch == columns or rows < 2:  # the first row stays where it is
        return True
    found = []
    for words in as_words(matrix):
        each = words.shape[1] // pitch  # words of an element
        params = slide_params(
            rows, columns * each, (pitch - columns) * each, words.stride(1), words.itemsize, workspace, insert=insert
        )
        if params is None:
            return False
        found.append((words, params))
    for words, params in found:
        slide_(words, params)
    return True


def _move_rows(matrix: torch.Tensor, columns: int, pitch: int, new_pitch: int, workspace: int) -> None:
    """Move rows of some columns, `pitch` elements apart, to a pitch of `new_pitch`, by way of the workspace.

    First to last to a smaller pitch, last to first to a larger one: what is written then was read before. Rows longer
    than the workspace are cut.
    """
    rows, step, base = matrix.shape[0], matrix.stride(1), int(matrix.storage_offset())
    room = max(workspace // matrix.itemsize, 1)
    width = min(columns, room)
    height = evenly(rows - 1, room // width) if width == columns else 1
    buffer = torch.empty(height * width, dtype=matrix.dtype, device=matrix.device)
    blocks = [(i, j) for i in range(1, rows, height) for j in range(0, columns, width)]
    for i, j in blocks if new_pitch < pitch else reversed(blocks):
        shape = (min(height, rows - i), min(width, columns - j))
        full = buffer[: shape[0] * shape[1]].view(shape)
        copy(matrix.as_strided(shape, (pitch * step, step), base + (i * pitch + j) * step), full)
        copy(full, matrix.as_strided(shape, (new_pitch * step, step), base + (i * new_pitch + j) * step))

"""Rows that close up or move apart within their memory, on the GPU, each element moved once.

The elements of all rows, numbered without the gaps, are cut into stretches of equal length, one for each program. It
moves its stretch tile by tile from the end that leads, so it overwrites only what it has read. What another program
would overwrite lies at one end of its stretch and is kept in a buffer beforehand: as much as its elements travel,
which grows from row to row. So this is for gaps that are small in all; for others there is `transpose_buffer`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from weft.gpu.common.launch import KernelLaunch
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.spec import Layout

MOST_PROGRAMS = 528  # four on each processor of an H200
LEAST_PROGRAMS = 132
_TILE = 8192  # bytes


class SlideParams(NamedTuple):
    """All that the kernels take, as compile-time constants; in words."""

    columns: int  # of a row that are moved
    gap: int  # between rows, where they lie apart
    total: int  # in all rows
    reach: int  # from the first to the last word, with gaps where there are such beforehand
    step: int  # from one word to the next
    apart: bool  # rows move apart; else they close up
    programs: int
    stretch: int  # words of a program: whole tiles
    more: int  # each stretch keeps so many words more than the one before
    tile: int
    blocks: int  # programs that keep what one stretch needs
    wide: bool  # offsets need 64 bits

    @property
    def kept(self) -> int:
        """Words to be kept."""
        return self.more * (self.programs * (self.programs + 1) // 2)


def slide_params(
    rows: int, columns: int, gap: int, step: int, itemsize: int, buffer_bytes: int, *, apart: bool
) -> SlideParams | None:
    """How rows are shared out; None where too few programs could work, for what they would have to keep."""
    total = rows * columns
    tile = _TILE // itemsize
    fitting = 2 * buffer_bytes // max(rows * gap * itemsize, 1)
    for programs in (min(MOST_PROGRAMS, fitting), min(MOST_PROGRAMS, fitting) * 3 // 4):
        if programs < LEAST_PROGRAMS:
            return None
        stretch = -(-total // (programs * tile)) * tile
        programs = -(-total // stretch)
        more = -(-stretch * gap // columns)
        reach = total if apart else total + (rows - 1) * gap
        wide = (total + rows * gap + stretch) * step >= 2**31
        blocks = -(-programs * more // tile)
        cut = SlideParams(columns, gap, total, reach, step, apart, programs, stretch, more, tile, blocks, wide)
        if cut.kept * itemsize <= buffer_bytes:
            return cut
    return None


def slide_(words: torch.Tensor, params: SlideParams) -> None:
    """Move the rows that begin with the first word of `words` as `cut` says."""
    kept = torch.empty(params.kept, dtype=words.dtype, device=words.device)
    keep, move = _launches(Layout.of(words).alignment, words.dtype, params, target_of("triton", words.device))
    keep((words, kept), 0, 0)
    move((words, kept), 0, 0)


@lru_cache(maxsize=256)
def _launches(
    alignment: int, dtype: torch.dtype, params: SlideParams, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(keeping, moving)"""
    from weft.gpu.transpose.kernel import keep_ends_kernel, slide_kernel

    words = Layout((params.reach,), (params.step,), dtype, alignment)
    layouts, constants = (words, Layout.contiguous((params.kept,), dtype)), {"PARAMS": params}
    ends = params.programs * params.blocks
    keep = KernelLaunch(keep_ends_kernel, layouts, constants, False, target, ends, 4, stages=1)
    return keep, KernelLaunch(slide_kernel, layouts, constants, False, target, params.programs, 4, stages=1)

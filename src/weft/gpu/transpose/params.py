"""What the kernels take, as compile-time constants. All lengths are in words, of up to 8 bytes."""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.gpu.common.hardware import SM_COUNT
from weft.spec import Layout

LEAST_SLIDING, MOST_SLIDING = SM_COUNT, 4 * SM_COUNT  # programs that slide rows at once
_SLIDE_BYTES = 8192  # of a tile


class SquareParams(NamedTuple):
    n: int  # rows and columns
    tiles: int  # along a side, even: an odd number is counted one more
    tile: int  # rows and columns of a tile
    inner: int  # matrices along the inner of two batch dimensions
    strides: tuple[int, ...]  # (outer batch, inner batch, row, column)
    words: int  # of an element, contiguous
    wide: bool  # offsets need 64 bits

    @property
    def pairs(self) -> int:
        """Tiles on and above the diagonal, each with its mirror image."""
        return self.tiles // 2 * (self.tiles + 1)


class CycleParams(NamedTuple):
    group: int  # super-elements of a program
    width: int  # words of each that it moves, a power of two
    parts: int  # programs side by side along a super-element
    span: int  # words of a super-element that are moved
    pitch: int  # from one super-element to the next
    step: int  # from one word to the next
    wide: bool  # offsets need 64 bits


class SlideParams(NamedTuple):
    columns: int  # of a row without padding
    padding: int  # behind each row
    total: int  # in all rows without padding
    reach: int  # from the first to the last word, as they lie beforehand
    step: int  # from one word to the next
    insert: bool  # padding is put in, else taken out
    programs: int
    segment: int  # words of a program: whole tiles
    growth: int  # each segment saves so many words more than the one before
    tile: int
    parts: int  # programs that save what one segment needs
    wide: bool  # offsets need 64 bits

    @property
    def saved(self) -> int:
        """Words to be saved."""
        return self.growth * (self.programs * (self.programs + 1) // 2)


def square_params(matrices: Layout, tile: int) -> SquareParams:
    """Of matrices (outer batch, inner batch, n, n), with a last dimension of words where elements are two."""
    _, inner, n, _, *words = matrices.shape
    tiles = -(-n // tile)
    # Lanes may overhang the extents by a tile before they are masked.
    reach = sum(stride * (extent + tile) for stride, extent in zip(matrices.strides, matrices.shape, strict=True))
    return SquareParams(n, tiles + tiles % 2, tile, inner, matrices.strides[:4], math.prod(words), reach >= 2**31)


def cycle_params(part: Layout, group: int, width: int, saved: int) -> CycleParams:
    """Of a part of all super-elements, the rows of a matrix, of which so many are saved."""
    count, span = part.shape
    pitch, step = part.strides
    wide = max(count * pitch + width * step, saved * span + width) >= 2**31
    return CycleParams(group, width, -(-span // width), span, pitch, step, wide)


def slide_params(
    rows: int, columns: int, padding: int, step: int, itemsize: int, workspace: int, *, insert: bool
) -> SlideParams | None:
    """How rows are shared out; None where too few programs could work, for what they would have to save."""
    total = rows * columns
    tile = _SLIDE_BYTES // itemsize
    fitting = 2 * workspace // max(rows * padding * itemsize, 1)
    for programs in (min(MOST_SLIDING, fitting), min(MOST_SLIDING, fitting) * 3 // 4):
        if programs < LEAST_SLIDING:
            return None
        segment = -(-total // (programs * tile)) * tile
        programs = -(-total // segment)
        growth = -(-segment * padding // columns)
        reach = total if insert else total + (rows - 1) * padding
        wide = (total + rows * padding + segment) * step >= 2**31
        parts = -(-programs * growth // tile)
        params = SlideParams(columns, padding, total, reach, step, insert, programs, segment, growth, tile, parts, wide)
        if params.saved * itemsize <= workspace:
            return params
    return None

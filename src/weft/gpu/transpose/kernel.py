"""Kernels that move elements within one memory: square matrices, super-elements along cycles, and rows that slide.

A program has all that it overwrites in registers before it writes anything, and no other program reads it, so nothing
races. Of a square matrix each program exchanges a tile with its mirror image; a tile on the diagonal is its own mirror
image and is exchanged with itself. Of super-elements each program moves a group (`cycles`), of rows that slide each
moves a segment (`padding`). What another program would overwrite of theirs a launch before saves in a workspace.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_math import to_type
from weft.gpu.common.device import pdl_begin, scalar


@triton.jit
def upper_tile(program, PARAMS: tl.constexpr):
    """(matrix, row, column) of the tile on or above the diagonal that a program exchanges with its mirror image.

    Rows `first` and `tiles` - 1 - `first` of the upper triangle have `tiles` + 1 tiles together, so the triangle folds
    into a rectangle of `tiles` / 2 rows.
    """
    matrix = program // PARAMS.pairs
    first = program % PARAMS.pairs // (PARAMS.tiles + 1)
    second = program % PARAMS.pairs % (PARAMS.tiles + 1)
    upper = second > first
    row = tl.where(upper, first, PARAMS.tiles - 1 - first)
    column = tl.where(upper, second - 1, PARAMS.tiles - 1 - second)
    return matrix, row, column


@triton.jit
def transpose_tile(tile):
    """A tile's transpose; a third dimension, of words, stays innermost."""
    if len(tile.shape) == 3:
        return tl.trans(tile, 1, 0, 2)
    else:
        return tl.trans(tile)


@triton.jit(do_not_specialize=["alpha", "beta"])
def square_kernel(
    x,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: every kernel of weft takes two scalars
    PARAMS: tl.constexpr,  # SquareParams
    SCALE: tl.constexpr,  # what alpha is applied in, None where it is not
):
    pdl_begin()
    # (1) Find the pair of tiles.
    matrix, row, column = upper_tile(tl.program_id(0), PARAMS)

    # (2) Load the tile and its mirror image, each along its rows.
    #     Lanes go along the rows by themselves, but where only the words of an element lie together: then along the
    #     first dimension.
    TILE: tl.constexpr = PARAMS.tile
    lane = tl.arange(0, TILE)
    if PARAMS.words > 1:
        across, down = lane[:, None], lane[None, :]
    else:
        across, down = lane[None, :], lane[:, None]
    i, j = row * TILE + down, column * TILE + across
    mirror_i, mirror_j = column * TILE + down, row * TILE + across
    if PARAMS.wide:
        matrix, i, j = matrix.to(tl.int64), i.to(tl.int64), j.to(tl.int64)
        mirror_i, mirror_j = mirror_i.to(tl.int64), mirror_j.to(tl.int64)
    base = x + matrix // PARAMS.inner * PARAMS.strides[0] + matrix % PARAMS.inner * PARAMS.strides[1]
    here = base + i * PARAMS.strides[2] + j * PARAMS.strides[3]
    there = base + mirror_i * PARAMS.strides[2] + mirror_j * PARAMS.strides[3]
    mask = (i < PARAMS.n) & (j < PARAMS.n)
    mirror_mask = (mirror_i < PARAMS.n) & (mirror_j < PARAMS.n)
    if PARAMS.words > 1:
        word = tl.arange(0, PARAMS.words)[None, None, :]
        here, mask = here[:, :, None] + word, mask[:, :, None]
        there, mirror_mask = there[:, :, None] + word, mirror_mask[:, :, None]
    tile = tl.load(here, mask=mask, other=0)
    mirror = tl.load(there, mask=mirror_mask, other=0)
    if SCALE is not None:
        factor = scalar(alpha, SCALE)
        tile = to_type(tile.to(SCALE) * factor, tile.dtype)
        mirror = to_type(mirror.to(SCALE) * factor, mirror.dtype)

    # (3) Store each where the other was, once all of both has been loaded.
    tl.debug_barrier()
    tl.store(there, transpose_tile(tile), mask=mirror_mask)
    if row != column:
        tl.store(here, transpose_tile(mirror), mask=mask)


@triton.jit(do_not_specialize=["alpha", "beta"])
def save_kernel(
    x,  # super-elements
    numbers,  # (saved super-elements,): which ones, -1 where there is none
    saved,  # (saved super-elements, span)
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # CycleParams
):
    pdl_begin()
    program = tl.program_id(0)
    entry = program // PARAMS.parts * PARAMS.group + tl.arange(0, PARAMS.group)
    column = program % PARAMS.parts * PARAMS.width + tl.arange(0, PARAMS.width)
    number = tl.load(numbers + entry)
    mask = (number >= 0)[:, None] & (column < PARAMS.span)[None, :]
    if PARAMS.wide:
        number = number.to(tl.int64)
    value = tl.load(x + number[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step, mask=mask, other=0)
    tl.store(saved + entry[:, None] * PARAMS.span + column[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["alpha", "beta"])
def cycle_kernel(
    x,  # super-elements
    targets,  # (moves,): see `CycleTables`
    sources,  # (moves,)
    saved,  # (saved super-elements, span)
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # CycleParams
):
    pdl_begin()
    # (1) Find the group of super-elements, and the columns of them that this program moves.
    program = tl.program_id(0)
    move = program // PARAMS.parts * PARAMS.group + tl.arange(0, PARAMS.group)
    column = program % PARAMS.parts * PARAMS.width + tl.arange(0, PARAMS.width)
    target = tl.load(targets + move)
    source = tl.load(sources + move)
    mask = (target >= 0)[:, None] & (column < PARAMS.span)[None, :]
    is_saved = source < 0
    number = -1 - source
    if PARAMS.wide:
        target, source = target.to(tl.int64), source.to(tl.int64)

    # (2) Load what each is to become, from where it lies or from what was saved.
    lying = x + source[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step
    aside = saved + number[:, None] * PARAMS.span + column[None, :]
    value = tl.load(tl.where(is_saved[:, None], aside, lying), mask=mask, other=0)

    # (3) Store it, once all of the group has been loaded.
    tl.debug_barrier()
    tl.store(x + target[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step, value, mask=mask)


@triton.jit
def segment_of(program, PARAMS: tl.constexpr):
    """(first index of a program's segment, end, first saved address, saved words, their place in the workspace)."""
    start = program * PARAMS.segment
    end = tl.minimum(start + PARAMS.segment, PARAMS.total)
    if PARAMS.insert:
        return start, end, start, program * PARAMS.growth, PARAMS.growth * (program * (program - 1) // 2)
    else:
        return start, end, end, (program + 1) * PARAMS.growth, PARAMS.growth * (program * (program + 1) // 2)


@triton.jit(do_not_specialize=["alpha", "beta"])
def save_ends_kernel(
    x,  # rows
    saved,
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # SlideParams
):
    pdl_begin()
    part = tl.program_id(0)
    program = part // PARAMS.parts
    if PARAMS.wide:
        program = program.to(tl.int64)
    _, _, first, size, place = segment_of(program, PARAMS)
    lane = part % PARAMS.parts * PARAMS.tile + tl.arange(0, PARAMS.tile)
    mask = (lane < size) & (first + lane < PARAMS.reach)
    tl.store(saved + place + lane, tl.load(x + (first + lane) * PARAMS.step, mask=mask, other=0), mask=mask)


@triton.jit
def load_sliding(x, saved, at, start, end, first, size, place, PARAMS: tl.constexpr):
    """The words of a tile, numbered without padding, from where they lie or from what was saved."""
    if PARAMS.insert:
        source = at
        is_saved = at - start < size
    else:
        source = at + at // PARAMS.columns * PARAMS.padding
        is_saved = source >= end
    pointer = tl.where(is_saved, saved + place + (source - first), x + source * PARAMS.step)
    return tl.load(pointer, mask=(at >= start) & (at < end), other=0)


@triton.jit(do_not_specialize=["alpha", "beta"])
def slide_kernel(
    x,  # rows
    saved,
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # SlideParams
):
    pdl_begin()
    # (1) Find the segment of this program. Where padding is taken out the last segment goes first: either way the
    #     programs before this one overwrite what it needs, unless that was saved.
    program = tl.program_id(0)
    if not PARAMS.insert:
        program = PARAMS.programs - 1 - program
    if PARAMS.wide:
        program = program.to(tl.int64)
    start, end, first, size, place = segment_of(program, PARAMS)
    lane = tl.arange(0, PARAMS.tile)

    # (2) Go through it tile by tile, from the end that leads. The next tile is loaded before this one is stored:
    #     nothing that is stored now lies ahead.
    TILES: tl.constexpr = PARAMS.segment // PARAMS.tile
    at = start + (TILES - 1 if PARAMS.insert else 0) * PARAMS.tile + lane
    value = load_sliding(x, saved, at, start, end, first, size, place, PARAMS)
    for _ in range(TILES):
        ahead = at - PARAMS.tile if PARAMS.insert else at + PARAMS.tile
        following = load_sliding(x, saved, ahead, start, end, first, size, place, PARAMS)
        tl.debug_barrier()
        target = at + at // PARAMS.columns * PARAMS.padding if PARAMS.insert else at
        tl.store(x + target * PARAMS.step, value, mask=at < end)
        at = ahead
        value = following

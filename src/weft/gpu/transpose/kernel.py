"""What is moved within one memory: square matrices by pairs of tiles, and chunks along the cycles of a permutation.

A program has all that it overwrites in registers before it writes anything, and no other program reads it, so nothing
races. Of a square matrix each program exchanges a tile with its mirror image; a tile on the diagonal is its own mirror
image and is exchanged with itself. Of chunks each program moves a group, and those that two groups need are kept in a
workspace beforehand (`transpose_cycles`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import scalar
from weft.gpu.common.pdl import pdl_begin


@triton.jit(do_not_specialize=["alpha", "beta"])
def square_kernel(
    x,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: every kernel of weft takes two scalars
    N: tl.constexpr,  # rows and columns
    TILES: tl.constexpr,  # along a side, even: an odd number is counted one more
    TILE: tl.constexpr,
    INNER: tl.constexpr,  # matrices along the inner of two batch dimensions
    STRIDES: tl.constexpr,  # (outer batch, inner batch, row, column), in words
    WORDS: tl.constexpr,  # of an element, contiguous
    SCALE: tl.constexpr,  # what alpha is applied in, None where it is not
    WIDE: tl.constexpr,
):
    pdl_begin()
    # (1) Find the pair of tiles. Rows `first` and TILES - 1 - first of the upper triangle have TILES + 1 tiles
    #     together, so the triangle folds into a rectangle of TILES / 2 rows.
    program = tl.program_id(0)
    pairs: tl.constexpr = TILES // 2 * (TILES + 1)
    matrix = program // pairs
    first = program % pairs // (TILES + 1)
    second = program % pairs % (TILES + 1)
    upper = second > first
    row = tl.where(upper, first, TILES - 1 - first)
    column = tl.where(upper, second - 1, TILES - 1 - second)

    # (2) Read the tile and its mirror image, each along its rows.
    #     Lanes go along the rows by themselves, but where only the words of an element lie together: then along the
    #     first dimension.
    lane = tl.arange(0, TILE)
    if WORDS > 1:
        across, down = lane[:, None], lane[None, :]
    else:
        across, down = lane[None, :], lane[:, None]
    i, j = row * TILE + down, column * TILE + across
    mirror_i, mirror_j = column * TILE + down, row * TILE + across
    if WIDE:
        matrix, i, j = matrix.to(tl.int64), i.to(tl.int64), j.to(tl.int64)
        mirror_i, mirror_j = mirror_i.to(tl.int64), mirror_j.to(tl.int64)
    base = x + matrix // INNER * STRIDES[0] + matrix % INNER * STRIDES[1]
    here = base + i * STRIDES[2] + j * STRIDES[3]
    there = base + mirror_i * STRIDES[2] + mirror_j * STRIDES[3]
    mask = (i < N) & (j < N)
    mirror_mask = (mirror_i < N) & (mirror_j < N)
    if WORDS > 1:
        word = tl.arange(0, WORDS)[None, None, :]
        here, mask = here[:, :, None] + word, mask[:, :, None]
        there, mirror_mask = there[:, :, None] + word, mirror_mask[:, :, None]
    tile = tl.load(here, mask=mask, other=0)
    mirror = tl.load(there, mask=mirror_mask, other=0)
    if SCALE is not None:
        factor = scalar(alpha, SCALE)
        tile = (tile.to(SCALE) * factor).to(tile.dtype)
        mirror = (mirror.to(SCALE) * factor).to(mirror.dtype)

    # (3) Write each where the other was, once all of both has been read.
    tl.debug_barrier()
    tl.store(there, turned(tile), mask=mirror_mask)
    if row != column:
        tl.store(here, turned(mirror), mask=mask)


@triton.jit
def turned(tile):
    """A tile's transpose; a third dimension, of words, stays innermost."""
    if len(tile.shape) == 3:
        return tl.trans(tile, 1, 0, 2)
    else:
        return tl.trans(tile)


@triton.jit(do_not_specialize=["alpha", "beta"])
def keep_kernel(
    x,  # chunks
    numbers,  # (kept chunks,): which chunks, -1 where there is none
    kept,  # (kept chunks, SPAN)
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # transpose_chunks.ChunkCut
):
    pdl_begin()
    block = tl.program_id(0)
    chunk = block // PARAMS.blocks * PARAMS.group + tl.arange(0, PARAMS.group)
    column = block % PARAMS.blocks * PARAMS.width + tl.arange(0, PARAMS.width)
    number = tl.load(numbers + chunk)
    mask = (number >= 0)[:, None] & (column < PARAMS.span)[None, :]
    if PARAMS.wide:
        number = number.to(tl.int64)
    value = tl.load(x + number[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step, mask=mask, other=0)
    tl.store(kept + chunk[:, None] * PARAMS.span + column[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["alpha", "beta"])
def chunks_kernel(
    x,  # chunks
    targets,  # (moves,): see `transpose_cycles.Moves`
    sources,  # (moves,)
    kept,  # (kept chunks, SPAN)
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # transpose_chunks.ChunkCut
):
    pdl_begin()
    # (1) Find the group of chunks, and the columns of them that this program moves.
    block = tl.program_id(0)
    move = block // PARAMS.blocks * PARAMS.group + tl.arange(0, PARAMS.group)
    column = block % PARAMS.blocks * PARAMS.width + tl.arange(0, PARAMS.width)
    target = tl.load(targets + move)
    source = tl.load(sources + move)
    mask = (target >= 0)[:, None] & (column < PARAMS.span)[None, :]
    is_kept = source < 0
    number = -1 - source
    if PARAMS.wide:
        target, source = target.to(tl.int64), source.to(tl.int64)

    # (2) Read what each chunk is to become, where it lies or from what was kept.
    lying = x + source[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step
    aside = kept + number[:, None] * PARAMS.span + column[None, :]
    value = tl.load(tl.where(is_kept[:, None], aside, lying), mask=mask, other=0)

    # (3) Write it, once all of the group has been read.
    tl.debug_barrier()
    tl.store(x + target[:, None] * PARAMS.pitch + column[None, :] * PARAMS.step, value, mask=mask)


@triton.jit
def stretch(program, PARAMS: tl.constexpr):
    """(first index of a program's stretch, end, first kept address, kept elements, their place in the buffer)."""
    start = program * PARAMS.stretch
    end = tl.minimum(start + PARAMS.stretch, PARAMS.total)
    if PARAMS.apart:
        return start, end, start, program * PARAMS.more, PARAMS.more * (program * (program - 1) // 2)
    else:
        return start, end, end, (program + 1) * PARAMS.more, PARAMS.more * (program * (program + 1) // 2)


@triton.jit(do_not_specialize=["alpha", "beta"])
def keep_ends_kernel(
    x,  # rows
    kept,
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # transpose_slide.SlideCut
):
    pdl_begin()
    block = tl.program_id(0)
    program = block // PARAMS.blocks
    if PARAMS.wide:
        program = program.to(tl.int64)
    _, _, first, size, place = stretch(program, PARAMS)
    lane = block % PARAMS.blocks * PARAMS.tile + tl.arange(0, PARAMS.tile)
    mask = (lane < size) & (first + lane < PARAMS.reach)
    tl.store(kept + place + lane, tl.load(x + (first + lane) * PARAMS.step, mask=mask, other=0), mask=mask)


@triton.jit
def slide_tile(x, kept, at, start, end, first, size, place, PARAMS: tl.constexpr):
    """A tile's elements, numbered without gaps, from where they lie or from what was kept."""
    if PARAMS.apart:
        source = at
        is_kept = at - start < size
    else:
        source = at + at // PARAMS.columns * PARAMS.gap
        is_kept = source >= end
    pointer = tl.where(is_kept, kept + place + (source - first), x + source * PARAMS.step)
    return tl.load(pointer, mask=(at >= start) & (at < end), other=0)


@triton.jit(do_not_specialize=["alpha", "beta"])
def slide_kernel(
    x,  # rows
    kept,
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # transpose_slide.SlideCut
):
    pdl_begin()
    # (1) Find the stretch of this program. Where rows close up, the last stretch goes first: either way the programs
    #     before this one overwrite what it needs, unless that was kept.
    program = tl.program_id(0)
    if not PARAMS.apart:
        program = PARAMS.programs - 1 - program
    if PARAMS.wide:
        program = program.to(tl.int64)
    start, end, first, size, place = stretch(program, PARAMS)
    lane = tl.arange(0, PARAMS.tile)

    # (2) Go through it tile by tile, from the end that leads. The next tile is read before this one is written:
    #     nothing that is written now lies ahead.
    TILES: tl.constexpr = PARAMS.stretch // PARAMS.tile
    at = start + (TILES - 1 if PARAMS.apart else 0) * PARAMS.tile + lane
    value = slide_tile(x, kept, at, start, end, first, size, place, PARAMS)
    for _ in range(TILES):
        ahead = at - PARAMS.tile if PARAMS.apart else at + PARAMS.tile
        following = slide_tile(x, kept, ahead, start, end, first, size, place, PARAMS)
        tl.debug_barrier()
        target = at + at // PARAMS.columns * PARAMS.gap if PARAMS.apart else at
        tl.store(x + target * PARAMS.step, value, mask=at < end)
        at = ahead
        value = following

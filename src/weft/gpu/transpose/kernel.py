"""Kernels that move elements within one memory: tiles of square matrices, and slots along cycles.

A program has all that it overwrites in registers before it writes anything, and no other program reads it, so nothing
races. Of a square matrix each program exchanges a tile with its mirror image; a tile on the diagonal is its own mirror
image and is exchanged with itself. Of slots each program moves a group; what another program would overwrite of that a
launch before saves in a workspace.
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


@triton.jit
def slot_pointer(x, saved, number, word, PARAMS: tl.constexpr):
    """Addresses of words of slots, those of negative numbers where they are saved: -1 first."""
    if PARAMS.wide:
        number = number.to(tl.int64)
    place = number // PARAMS.per_row * PARAMS.row + number % PARAMS.per_row * PARAMS.slot
    lying = x + place[:, None] + word[None, :] * PARAMS.step
    aside = saved + (-1 - number)[:, None] * PARAMS.span + word[None, :]
    return tl.where((number < 0)[:, None], aside, lying)


@triton.jit(do_not_specialize=["alpha", "beta"])
def move_kernel(
    x,
    saved,  # (saved slots, span)
    moves,  # (moves, 2): the slot that is written and the one that it becomes, alike where there is none
    alpha: tl.int64,  # not used, as beta
    beta: tl.int64,
    PARAMS: tl.constexpr,  # MoveParams
):
    pdl_begin()
    # (1) Find the group of slots, and the words of them that this program moves.
    program = tl.program_id(0)
    move = program // PARAMS.parts * PARAMS.group + tl.arange(0, PARAMS.group)
    word = program % PARAMS.parts * PARAMS.width + tl.arange(0, PARAMS.width)
    target = tl.load(moves + 2 * move)
    source = tl.load(moves + 2 * move + 1)
    mask = (target != source)[:, None] & (word < PARAMS.span)[None, :]

    # (2) Store what each is to become, once all of the group has been loaded.
    value = tl.load(slot_pointer(x, saved, source, word, PARAMS), mask=mask, other=0)
    tl.debug_barrier()
    tl.store(slot_pointer(x, saved, target, word, PARAMS), value, mask=mask)

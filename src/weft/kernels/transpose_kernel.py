"""Square matrices transposed where they lie: each program exchanges a tile with its mirror image.

Both tiles are in registers before either is written, and no other program touches them, so nothing races; a tile on the
diagonal is its own mirror image and is exchanged with itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.device import scalar


@triton.jit(do_not_specialize=["alpha", "beta"])
def square_kernel(
    x,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: every kernel of weft takes two scalars
    N: tl.constexpr,  # rows and columns
    TILES: tl.constexpr,  # along a side, even: an odd number is counted one more
    TILE: tl.constexpr,
    STRIDES: tl.constexpr,  # (batch, row, column), in elements
    SCALE: tl.constexpr,  # what alpha is applied in, None where it is not
    WIDE: tl.constexpr,
):
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
    lane = tl.arange(0, TILE)
    i = (row * TILE + lane)[:, None]
    j = (column * TILE + lane)[None, :]
    mirror_i = (column * TILE + lane)[:, None]
    mirror_j = (row * TILE + lane)[None, :]
    if WIDE:
        matrix, i, j = matrix.to(tl.int64), i.to(tl.int64), j.to(tl.int64)
        mirror_i, mirror_j = mirror_i.to(tl.int64), mirror_j.to(tl.int64)
    here = x + matrix * STRIDES[0] + i * STRIDES[1] + j * STRIDES[2]
    there = x + matrix * STRIDES[0] + mirror_i * STRIDES[1] + mirror_j * STRIDES[2]
    mask = (i < N) & (j < N)
    mirror_mask = (mirror_i < N) & (mirror_j < N)
    tile = tl.load(here, mask=mask, other=0)
    mirror = tl.load(there, mask=mirror_mask, other=0)
    if SCALE is not None:
        factor = scalar(alpha, SCALE)
        tile = (tile.to(SCALE) * factor).to(tile.dtype)
        mirror = (mirror.to(SCALE) * factor).to(mirror.dtype)

    # (3) Write each where the other was, once all of both has been read.
    tl.debug_barrier()
    tl.store(there, tl.trans(tile), mask=mirror_mask)
    if row != column:
        tl.store(here, tl.trans(mirror), mask=mask)

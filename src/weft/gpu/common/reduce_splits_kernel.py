"""The second kernel of split sums: it adds the partial sums of every tile of D in a fixed order and finishes it."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.addresses import batch_offset, dim_mask, lane_offsets
from weft.gpu.common.device import finish
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.common.tiles import splits_of, tile_coords


@triton.jit
def subtile_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of some rows of an output tile: (batch tile, m tile, n tile, rows, columns). They are a
    matrix, along what the tensor does not have of one row or column."""
    batch_block, m_block, n_block, rows, columns = place
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    BATCH: tl.constexpr = PARAMS.batch
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = batch_offset(batch_block, BATCH, TENSOR, WIDE)
    if M.present[TENSOR]:
        offsets = offsets + lane_offsets(m_block, rows, M, TENSOR, WIDE)[:, None]
    if N.present[TENSOR]:
        offsets = offsets + lane_offsets(n_block, columns, N, TENSOR, WIDE)[None, :]
    elif not M.present[TENSOR]:
        offsets = offsets + (rows * 0)[:, None]
    return offsets


@triton.jit
def subtile_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The mask of the elements that exist in a subtile."""
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    if M.present[TENSOR] and N.present[TENSOR]:
        return dim_mask(place[1], place[3], M)[:, None] & dim_mask(place[2], place[4], N)[None, :]
    elif M.present[TENSOR]:
        return dim_mask(place[1], place[3], M)[:, None]
    elif N.present[TENSOR]:
        return dim_mask(place[2], place[4], N)[None, :]
    else:
        return place[0] >= 0


@triton.jit(do_not_specialize=["alpha", "beta"])
def reduce_splits_kernel(
    partials,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,
    beta: tl.int64,
    pointers,
    PARAMS: tl.constexpr,
    ROWS: tl.constexpr,  # of an output tile that one program takes: there are few tiles, and programs should be many
    COLUMNS: tl.constexpr,  # the same
    STORED: tl.constexpr,  # rows and columns of a partial, which may be fewer than those of an output tile
    STREAM_K: tl.constexpr,  # tells how many partials each output tile has; None where all have as many
    OP: tl.constexpr,  # KernelOperation
):
    """Add the partials of some rows and columns of an output tile, first to last, and finish them.

    Nothing past the end of D is read.
    """
    pdl_begin()
    REDUCE: tl.constexpr = OP.reduce
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    ACROSS: tl.constexpr = N.tile // COLUMNS
    SUBTILES: tl.constexpr = M.tile // ROWS * ACROSS
    block = tl.program_id(0) // SUBTILES
    if PARAMS.wide_index:
        block = block.to(tl.int64)
    rows = tl.program_id(0) % SUBTILES // ACROSS * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % ACROSS * COLUMNS + tl.arange(0, COLUMNS)
    batch_block, m_block, n_block = tile_coords(block, M.blocks, N.blocks, PARAMS.group)
    place = (batch_block, m_block, n_block, rows, columns)
    inside = subtile_mask(place, PARAMS, 3)
    HEIGHT: tl.constexpr = STORED[0]
    WIDTH: tl.constexpr = STORED[1]
    here = partials + block.to(tl.int64) * (HEIGHT * WIDTH) + rows[:, None] * WIDTH + columns[None, :]
    acc = tl.load(here, mask=inside)
    count = PARAMS.splits
    if STREAM_K is not None:
        count = splits_of(block, STREAM_K)
    for _ in tl.range(1, count, loop_unroll_factor=4):
        here += PARAMS.blocks * HEIGHT * WIDTH
        if REDUCE is None:
            acc += tl.load(here, mask=inside)
        else:
            acc = REDUCE(acc, tl.load(here, mask=inside)).to(acc.dtype)
    finish(acc, (c, d, pointers), (alpha, beta), place, PARAMS, subtile_offsets, subtile_mask, OP)

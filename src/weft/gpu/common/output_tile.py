"""Where a tile of D lies, how it is finished and stored, and where a partial sum of it goes."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import batch_offset, finish, spread_mask, spread_offsets


@triton.jit
def block_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of an output tile, (batch, m, n), every axis as a dimension of its own."""
    batch_block, m_block, n_block = place
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    BATCH: tl.constexpr = PARAMS.batch
    RANK: tl.constexpr = len(PARAMS.stored)
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = spread_offsets(m_block, M, TENSOR, RANK, WIDE) + spread_offsets(n_block, N, TENSOR, RANK, WIDE)
    return offsets + batch_offset(batch_block, BATCH, TENSOR, WIDE)


@triton.jit
def block_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    RANK: tl.constexpr = len(PARAMS.stored)
    return spread_mask(place[1], M, TENSOR, RANK) & spread_mask(place[2], N, TENSOR, RANK)


@triton.jit
def store_block(
    acc, tensors, factors, place, PARAMS: tl.constexpr, functions, RESULT: tl.constexpr, AUX: tl.constexpr
):
    """See the output tile (batch, m, n) with every axis as a dimension of its own, apply C and the epilogue, store it
    in D's order. `tensors`, `factors` and `functions` are those of `finish`."""
    STORED: tl.constexpr = PARAMS.stored
    finish(
        tl.reshape(acc, STORED), tensors, factors, place, PARAMS, block_offsets, block_mask, functions, RESULT, AUX
    )


@triton.jit
def partial_offsets(program, PARAMS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Where some columns of a program's split-K partial lie in the workspace: tile after tile, row after row."""
    rows = tl.arange(0, PARAMS.m.tile)[:, None]
    columns = FIRST + tl.arange(0, COLUMNS)[None, :]
    return tl.cast(program, tl.int64) * (PARAMS.m.tile * PARAMS.n.tile) + rows * PARAMS.n.tile + columns

"""Where a tile of D lies, how it is finished and stored, and where a partial sum of it goes."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import batch_offset, finish, spread_mask, spread_offsets


@triton.jit
def block_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a block of D, (batch, m, n), every axis as a dimension of its own."""
    batch_block, m_block, n_block = place
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    BATCH: tl.constexpr = CUT.batch
    RANK: tl.constexpr = len(CUT.stored)
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = spread_offsets(m_block, M, TENSOR, RANK, WIDE) + spread_offsets(n_block, N, TENSOR, RANK, WIDE)
    return offsets + batch_offset(batch_block, BATCH, TENSOR, WIDE)


@triton.jit
def block_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    RANK: tl.constexpr = len(CUT.stored)
    return spread_mask(place[1], M, TENSOR, RANK) & spread_mask(place[2], N, TENSOR, RANK)


@triton.jit
def store_block(
    acc, c, d, pointers, alpha, beta, batch_block, m_block, n_block, CUT: tl.constexpr,
    C_FN: tl.constexpr, EPILOGUE: tl.constexpr, REDUCE: tl.constexpr, RESULT: tl.constexpr, AUX: tl.constexpr,
):  # fmt: skip
    """See the block with every axis as a dimension of its own, apply C and the epilogue, store it in D's order."""
    STORED: tl.constexpr = CUT.stored
    finish(
        tl.reshape(acc, STORED), c, d, pointers, alpha, beta, (batch_block, m_block, n_block), CUT, block_offsets,
        block_mask, C_FN, EPILOGUE, REDUCE, RESULT, AUX,
    )  # fmt: skip


@triton.jit
def part_offsets(program, CUT: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Where some columns of a program's part of a split sum lie in the workspace: tile after tile, row after row."""
    rows = tl.arange(0, CUT.m.tile)[:, None]
    columns = FIRST + tl.arange(0, COLUMNS)[None, :]
    return tl.cast(program, tl.int64) * (CUT.m.tile * CUT.n.tile) + rows * CUT.n.tile + columns

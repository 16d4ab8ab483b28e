"""The direct kernel on matrix instructions: operands gathered where they lie, one block of D per program.

With few blocks and a long k the sum is split: each program leaves its part in a workspace, and a second kernel adds the
parts in a fixed order and finishes the block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.device import (
    batch_offset,
    finish,
    lane_offsets,
    load_tile,
    side_mask,
    side_offsets,
    spread_mask,
    spread_offsets,
)


@triton.jit
def locate(program, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The block of D of a program, (batch, m, n), from the numbers of blocks along m and n. Programs take groups of
    `GROUP` rows of blocks, so that those that run together share operands in L2."""
    batch_block = program // (ROWS * COLUMNS)
    within = program % (ROWS * COLUMNS)
    first = within // (GROUP * COLUMNS) * GROUP
    height = tl.minimum(ROWS - first, GROUP)
    m_block = first + within % (GROUP * COLUMNS) % height
    n_block = within % (GROUP * COLUMNS) // height
    return batch_block, m_block, n_block


@triton.jit
def block_offsets(batch_block, m_block, n_block, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets of a block of C or D, every axis as a dimension of its own."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    BATCH: tl.constexpr = CUT.batch
    STORED: tl.constexpr = CUT.stored
    RANK: tl.constexpr = len(STORED)
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = spread_offsets(m_block, M, TENSOR, RANK, WIDE) + spread_offsets(n_block, N, TENSOR, RANK, WIDE)
    return tl.broadcast_to(offsets + batch_offset(batch_block, BATCH, TENSOR, WIDE), STORED)


@triton.jit
def store_block(
    acc, c, d, alpha, beta, batch_block, m_block, n_block,
    CUT: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr,
):  # fmt: skip
    """See the block with every axis as a dimension of its own, apply C and the epilogue, store it in D's order."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    STORED: tl.constexpr = CUT.stored
    RANK: tl.constexpr = len(STORED)
    value = tl.reshape(acc, STORED)
    mask = tl.broadcast_to(spread_mask(m_block, M, 4, RANK) & spread_mask(n_block, N, 4, RANK), STORED)
    offsets_c = 0
    if c is not None:
        offsets_c = block_offsets(batch_block, m_block, n_block, CUT, 2)
    value = finish(value, c, alpha, beta, offsets_c, mask, C_FN, EPILOGUE, RESULT)
    tl.store(d + block_offsets(batch_block, m_block, n_block, CUT, 3), value, mask=mask)


@triton.jit
def part_offsets(program, CUT: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Where some columns of a program's part of a split sum lie in the workspace: tile after tile, row after row."""
    rows = tl.arange(0, CUT.m.tile)[:, None]
    columns = FIRST + tl.arange(0, COLUMNS)[None, :]
    return tl.cast(program, tl.int64) * (CUT.m.tile * CUT.n.tile) + rows * CUT.n.tile + columns


@triton.jit(do_not_specialize=["alpha", "beta"])
def matrix_kernel(
    a,
    b,
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    parts,  # None where it is not
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    CUT: tl.constexpr,  # matrix.MatrixCut
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    K_OF_A: tl.constexpr = CUT.k_of_a
    BATCH: tl.constexpr = CUT.batch
    rows = tl.arange(0, M.tile)
    columns = tl.arange(0, N.tile)
    depth = tl.arange(0, K.tile)

    # (1) Find this program's block of D and its share of the sum.
    program = tl.program_id(0)
    if CUT.wide_index:
        program = program.to(tl.int64)
    batch_block, m_block, n_block = locate(program % CUT.blocks, M.blocks, N.blocks, CUT.group)
    first_step = 0
    last_step = K.blocks
    if CUT.splits > 1:
        first_step = program // CUT.blocks * CUT.steps
        last_step = tl.minimum(first_step + CUT.steps, K.blocks)

    # (2) Fix the rows of A and the columns of B that it needs.
    a_rows = a + batch_offset(batch_block, BATCH, 0, CUT.wide[0])
    a_rows += side_offsets(m_block, rows, M, 0, CUT.wide[0])
    b_columns = b + batch_offset(batch_block, BATCH, 1, CUT.wide[1])
    b_columns += side_offsets(n_block, columns, N, 1, CUT.wide[1])
    row_mask = side_mask(m_block, rows, M)
    column_mask = side_mask(n_block, columns, N)

    TILE: tl.constexpr = (M.tile, N.tile)
    acc = tl.zeros(TILE, dtype=ACCUMULATE)
    for step in range(first_step, last_step):
        k_block = step.to(tl.int64) if CUT.wide_index else step
        # (3.1) Load a TILE_M x TILE_K tile of A and a TILE_K x TILE_N tile of B, each along its own contiguous mode.
        a_depth = side_offsets(k_block, depth, K_OF_A, 0, CUT.wide[0])
        b_depth = side_offsets(k_block, depth, K, 1, CUT.wide[1])
        a_mask = side_mask(k_block, depth, K_OF_A)
        b_mask = side_mask(k_block, depth, K)
        x = load_tile(a_rows[:, None] + a_depth[None, :], row_mask, a_mask, M.exact, K.exact)
        y = load_tile(b_columns[None, :] + b_depth[:, None], b_mask, column_mask, K.exact, N.exact)

        # (3.2) Apply the functions in the product type. What lies past the end of k must stay zero.
        x = x.to(PRODUCT)
        y = y.to(PRODUCT)
        if A_FN is not None:
            x = A_FN(x).to(PRODUCT)
            if not K.exact:
                x = tl.where(a_mask[None, :], x, 0)
        if B_FN is not None:
            y = B_FN(y).to(PRODUCT)
            if not K.exact:
                y = tl.where(b_mask[:, None], y, 0)

        # (3.3) Bring A's order of k to B's where they differ.
        if CUT.swap_k:
            OUTER: tl.constexpr = K_OF_A.axes[0].tile
            INNER: tl.constexpr = K_OF_A.axes[1].tile
            x = tl.reshape(tl.permute(tl.reshape(x, (M.tile, OUTER, INNER)), (0, 2, 1)), (M.tile, K.tile))

        # (3.4) Multiply and accumulate.
        if CUT.widen:
            x = x.to(ACCUMULATE)
            y = y.to(ACCUMULATE)
        acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)

    # (4) Leave the part, or finish the block.
    if CUT.splits > 1:
        tl.store(parts + part_offsets(program, CUT, 0, N.tile), acc)
    else:
        store_block(acc, c, d, alpha, beta, batch_block, m_block, n_block, CUT, C_FN, EPILOGUE, RESULT)


@triton.jit
def strip_offsets(batch_block, m_block, n_block, rows, columns, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in C or D of some rows of a block."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = lane_offsets(m_block, rows, M, TENSOR, WIDE)[:, None]
    offsets += lane_offsets(n_block, columns, N, TENSOR, WIDE)[None, :]
    return offsets + batch_offset(batch_block, BATCH, TENSOR, WIDE)


@triton.jit(do_not_specialize=["alpha", "beta"])
def combine_kernel(
    parts,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,
    beta: tl.int64,
    CUT: tl.constexpr,
    ROWS: tl.constexpr,  # of a block that one program takes: there are few blocks, and programs should be many
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    RESULT: tl.constexpr,
):
    """Add the parts of some rows of a block of D, first to last, and finish them."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    STRIPS: tl.constexpr = M.tile // ROWS
    block = tl.program_id(0) // STRIPS
    if CUT.wide_index:
        block = block.to(tl.int64)
    rows = tl.program_id(0) % STRIPS * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, N.tile)
    here = parts + block.to(tl.int64) * (M.tile * N.tile) + rows[:, None] * N.tile + columns[None, :]
    acc = tl.load(here)
    for _ in tl.range(1, CUT.splits, loop_unroll_factor=4):
        here += CUT.blocks * M.tile * N.tile
        acc += tl.load(here)
    batch_block, m_block, n_block = locate(block, M.blocks, N.blocks, CUT.group)
    mask = side_mask(m_block, rows, M)[:, None] & side_mask(n_block, columns, N)[None, :]
    offsets_c = 0
    if c is not None:
        offsets_c = strip_offsets(batch_block, m_block, n_block, rows, columns, CUT, 2)
    value = finish(acc, c, alpha, beta, offsets_c, mask, C_FN, EPILOGUE, RESULT)
    tl.store(d + strip_offsets(batch_block, m_block, n_block, rows, columns, CUT, 3), value, mask=mask)

"""The direct kernel on matrix instructions: operands gathered where they lie, one block of D per program.

With few blocks and a long k the sum is split: each program leaves its part in a workspace, and a second kernel adds the
parts in a fixed order and finishes the block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import (
    batch_offset,
    finish,
    gathered,
    gathered_step,
    lane_offsets,
    load_tile,
    side_mask,
    side_offsets,
    spread_mask,
    spread_offsets,
    tf32_digits,
)
from weft.gpu.common.pdl import follow
from weft.gpu.common.smem_order import in_registers, meet
from weft.gpu.common.split_k import shares_of


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
    C_FN: tl.constexpr, EPILOGUE: tl.constexpr, REDUCE: tl.constexpr, RESULT: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """See the block with every axis as a dimension of its own, apply C and the epilogue, store it in D's order."""
    STORED: tl.constexpr = CUT.stored
    finish(
        tl.reshape(acc, STORED), c, d, pointers, alpha, beta, (batch_block, m_block, n_block), CUT, block_offsets,
        block_mask, C_FN, EPILOGUE, REDUCE, RESULT, BESIDE,
    )  # fmt: skip


@triton.jit
def tile_offsets(
    place, OUTER: tl.constexpr, K: tl.constexpr, BATCH: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets in a tensor of a tile of an operand, its block (batch, outer, k), rows along its own side."""
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if OUTER.present[TENSOR]:
        offsets = offsets + side_offsets(place[1], tl.arange(0, OUTER.tile), OUTER, TENSOR, WIDE)[:, None]
    if K.present[TENSOR]:
        offsets = offsets + side_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[None, :]
    return offsets


@triton.jit
def tile_mask(place, OUTER: tl.constexpr, K: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    mask = place[0] >= 0
    if OUTER.present[TENSOR] and not OUTER.exact:
        mask = mask & side_mask(place[1], tl.arange(0, OUTER.tile), OUTER)[:, None]
    if K.present[TENSOR] and not K.exact:
        mask = mask & side_mask(place[2], tl.arange(0, K.tile), K)[None, :]
    return mask


@triton.jit
def a_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of A, its block (batch, m, k)."""
    M: tl.constexpr = CUT.m
    K: tl.constexpr = CUT.k_of_a
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    return tile_offsets(place, M, K, BATCH, TENSOR, WIDE)


@triton.jit
def a_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = CUT.m
    K: tl.constexpr = CUT.k_of_a
    return tile_mask(place, M, K, TENSOR)


@triton.jit
def b_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, its block (batch, n, k)."""
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if N.present[TENSOR]:
        offsets = offsets + side_offsets(place[1], tl.arange(0, N.tile), N, TENSOR, WIDE)[None, :]
    if K.present[TENSOR]:
        offsets = offsets + side_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[:, None]
    return offsets


@triton.jit
def b_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    mask = place[0] >= 0
    if N.present[TENSOR] and not N.exact:
        mask = mask & side_mask(place[1], tl.arange(0, N.tile), N)[None, :]
    if K.present[TENSOR] and not K.exact:
        mask = mask & side_mask(place[2], tl.arange(0, K.tile), K)[:, None]
    return mask


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
    pointers,  # of operands of functions and of further results; None where there are none
    CUT: tl.constexpr,  # matrix.MatrixCut
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    BESIDE: tl.constexpr,  # beside.Beside
):
    follow()
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    BESIDE_A: tl.constexpr = BESIDE.a
    BESIDE_B: tl.constexpr = BESIDE.b
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

    # Where something is computed of A, it is stored in shared memory before B, see `in_turn`. In more than one step
    # loads run ahead in shared memory, and a function of nothing but A is applied to what is read from there.
    A_COMPUTED: tl.constexpr = A_FN is not None or CUT.turned[0] or CUT.swap_k
    B_COMPUTED: tl.constexpr = B_FN is not None or CUT.turned[1]
    HELD: tl.constexpr = A_COMPUTED and K.blocks == 1
    IN_TURN: tl.constexpr = HELD or (B_COMPUTED and (CUT.masked[0] or CUT.swap_k))
    TILE: tl.constexpr = (M.tile, N.tile)
    acc = tl.zeros(TILE, dtype=ACCUMULATE)
    beside_a = gathered(pointers, (batch_block, m_block, 0), BESIDE_A, CUT, a_offsets, a_mask)
    beside_b = gathered(pointers, (batch_block, n_block, 0), BESIDE_B, CUT, b_offsets, b_mask)
    for step in range(first_step, last_step):
        k_block = step.to(tl.int64) if CUT.wide_index else step
        # (3.1) Load a TILE_M x TILE_K tile of A and a TILE_K x TILE_N tile of B, each along its own contiguous mode.
        a_depth = side_offsets(k_block, depth, K_OF_A, 0, CUT.wide[0])
        b_depth = side_offsets(k_block, depth, K, 1, CUT.wide[1])
        a_inside = side_mask(k_block, depth, K_OF_A)
        b_inside = side_mask(k_block, depth, K)
        x = load_tile(a_rows[:, None] + a_depth[None, :], row_mask, a_inside, M.exact, K.exact)
        y = load_tile(b_columns[None, :] + b_depth[:, None], b_inside, column_mask, K.exact, N.exact)

        # (3.2) Apply A's function in the product type. Products past the end of k must stay zero.
        x = x.to(PRODUCT)
        if A_FN is not None:
            place_a = (batch_block, m_block, k_block)
            x = A_FN(x, *gathered_step(beside_a, pointers, place_a, BESIDE_A, K, CUT, a_offsets, a_mask)).to(PRODUCT)
            if CUT.masked[0]:
                x = tl.where(a_inside[None, :], x, 0)
        if CUT.turned[0]:
            x = tf32_digits(x)

        # (3.3) Bring A's order of k to B's where they differ.
        if CUT.swap_k:
            OUTER: tl.constexpr = K_OF_A.axes[0].tile
            INNER: tl.constexpr = K_OF_A.axes[1].tile
            x = tl.reshape(tl.permute(tl.reshape(x, (M.tile, OUTER, INNER)), (0, 2, 1)), (M.tile, K.tile))
        if HELD:
            x = in_registers(x)
        if IN_TURN:
            meet()

        # (3.4) Apply B's function.
        y = y.to(PRODUCT)
        if B_FN is not None:
            place_b = (batch_block, n_block, k_block)
            y = B_FN(y, *gathered_step(beside_b, pointers, place_b, BESIDE_B, K, CUT, b_offsets, b_mask)).to(PRODUCT)
            if CUT.masked[1]:
                y = tl.where(b_inside[:, None], y, 0)
        if CUT.turned[1]:
            y = tf32_digits(y)
        if HELD:
            y = in_registers(y)

        # (3.5) Multiply and accumulate.
        if CUT.widen:
            x = x.to(ACCUMULATE)
            y = y.to(ACCUMULATE)
        # fp8 products of one step may be added with fewer digits, those of different steps may not.
        if CUT.apart:
            acc += tl.dot(x, y, input_precision=PRECISION, out_dtype=ACCUMULATE)
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=K.tile, out_dtype=ACCUMULATE)

    # (4) Leave the part, or finish the block.
    if CUT.splits > 1:
        tl.store(parts + part_offsets(program, CUT, 0, N.tile), acc)
    else:
        store_block(
            acc, c, d, pointers, alpha, beta, batch_block, m_block, n_block, CUT, C_FN, EPILOGUE, None, RESULT, BESIDE
        )  # fmt: skip


@triton.jit
def strip_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of some rows of a block: (batch block, m block, n block, rows, columns)."""
    batch_block, m_block, n_block, rows, columns = place
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = batch_offset(batch_block, BATCH, TENSOR, WIDE)
    if M.present[TENSOR]:
        offsets = offsets + lane_offsets(m_block, rows, M, TENSOR, WIDE)[:, None]
    if N.present[TENSOR]:
        offsets = offsets + lane_offsets(n_block, columns, N, TENSOR, WIDE)[None, :]
    return offsets


@triton.jit
def strip_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    if M.present[TENSOR] and N.present[TENSOR]:
        return side_mask(place[1], place[3], M)[:, None] & side_mask(place[2], place[4], N)[None, :]
    elif M.present[TENSOR]:
        return side_mask(place[1], place[3], M)[:, None]
    elif N.present[TENSOR]:
        return side_mask(place[2], place[4], N)[None, :]
    else:
        return place[0] >= 0


@triton.jit(do_not_specialize=["alpha", "beta"])
def combine_kernel(
    parts,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,
    beta: tl.int64,
    pointers,
    CUT: tl.constexpr,
    ROWS: tl.constexpr,  # of a block that one program takes: there are few blocks, and programs should be many
    COLUMNS: tl.constexpr,  # the same
    STORED: tl.constexpr,  # rows and columns of a part, which may be fewer than those of a block
    FEWER: tl.constexpr,  # parts of the last block; 0 where it has as many as others
    STREAM: tl.constexpr,  # stream.Stream, which tells how many parts each block has; None where all have as many
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    REDUCE: tl.constexpr,  # of an algebra, None where parts are added
    RESULT: tl.constexpr,
    BESIDE: tl.constexpr,
):
    """Add the parts of some rows and columns of a block of D, first to last, and finish them. What lies past the end of
    D is not read."""
    follow()
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    ACROSS: tl.constexpr = N.tile // COLUMNS
    STRIPS: tl.constexpr = M.tile // ROWS * ACROSS
    block = tl.program_id(0) // STRIPS
    if CUT.wide_index:
        block = block.to(tl.int64)
    rows = tl.program_id(0) % STRIPS // ACROSS * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % ACROSS * COLUMNS + tl.arange(0, COLUMNS)
    batch_block, m_block, n_block = locate(block, M.blocks, N.blocks, CUT.group)
    place = (batch_block, m_block, n_block, rows, columns)
    inside = strip_mask(place, CUT, 3)
    HEIGHT: tl.constexpr = STORED[0]
    WIDTH: tl.constexpr = STORED[1]
    here = parts + block.to(tl.int64) * (HEIGHT * WIDTH) + rows[:, None] * WIDTH + columns[None, :]
    acc = tl.load(here, mask=inside)
    count = CUT.splits
    if FEWER > 0:
        count = tl.where(block == CUT.blocks - 1, FEWER, CUT.splits)
    elif STREAM is not None:
        count = shares_of(block, STREAM)
    for _ in tl.range(1, count, loop_unroll_factor=4):
        here += CUT.blocks * HEIGHT * WIDTH
        if REDUCE is None:
            acc += tl.load(here, mask=inside)
        else:
            acc = REDUCE(acc, tl.load(here, mask=inside)).to(acc.dtype)
    finish(
        acc, c, d, pointers, alpha, beta, place, CUT, strip_offsets, strip_mask, C_FN, EPILOGUE, REDUCE, RESULT, BESIDE
    )  # fmt: skip

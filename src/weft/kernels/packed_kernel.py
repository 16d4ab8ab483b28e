"""The kernel for packed operands: boxes through the tensor memory accelerator, tensor cores, D in its own order.

Programs stay and take one block of D after the other, so that the loads of the next block run while the last is stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.matrix_kernel import locate, store_block


@triton.jit
def load_box(boxes, batch_block, outer, inner, BATCHED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One box of an operand, as a matrix; batches are one more dimension in front."""
    if BATCHED:
        return tl.reshape(boxes.load([batch_block, outer, inner]), (ROWS, COLUMNS))
    else:
        return boxes.load([outer, inner])


@triton.jit(do_not_specialize=["alpha", "beta"])
def packed_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N)
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    CUT: tl.constexpr,  # packed.PackedCut
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    TILE_M: tl.constexpr = CUT.tile[0]
    TILE_N: tl.constexpr = CUT.tile[1]
    TILE_K: tl.constexpr = CUT.tile[2]
    TILE: tl.constexpr = (TILE_M, TILE_N)
    BATCHED: tl.constexpr = CUT.batched
    for block in tl.range(tl.program_id(0), CUT.blocks, CUT.programs, flatten=CUT.flatten):
        # (1) Find the block of D.
        batch_block, m_block, n_block = locate(block, CUT.rows, CUT.columns, CUT.group)
        row = (m_block * TILE_M).to(tl.int32)
        column = (n_block * TILE_N).to(tl.int32)

        # (2) Multiply box by box; what a box reads past the end of k is zero.
        acc = tl.zeros(TILE, dtype=ACCUMULATE)
        for step in range(CUT.steps):
            depth = step * TILE_K
            if CUT.a_along_k:
                x = load_box(a, batch_block, row, depth, BATCHED, TILE_M, TILE_K)
            else:
                x = load_box(a, batch_block, depth, row, BATCHED, TILE_K, TILE_M).T
            if CUT.b_along_k:
                y = load_box(b, batch_block, column, depth, BATCHED, TILE_N, TILE_K).T
            else:
                y = load_box(b, batch_block, depth, column, BATCHED, TILE_K, TILE_N)
            acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)

        # (3) Finish the block in two halves: what they are staged in fits beside the operands' boxes.
        halves = tl.permute(tl.reshape(acc, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        store_block(left, c, d, alpha, beta, batch_block, m_block, 2 * n_block, CUT, C_FN, EPILOGUE, RESULT)
        store_block(right, c, d, alpha, beta, batch_block, m_block, 2 * n_block + 1, CUT, C_FN, EPILOGUE, RESULT)

"""The kernel that reads its operands in boxes through the tensor memory accelerator, and stores D in its own order.

Programs stay and take one task after the other, so that the loads of the next run while the last is stored. A task is
a block of D, or one share of its sum: then its part goes to a workspace and `combine_kernel` adds the parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.device import axis_start, gathered, gathered_step, side_mask
from weft.kernels.matrix_kernel import a_mask, a_offsets, b_mask, b_offsets, locate, part_offsets, store_block


@triton.jit
def box_start(
    batch_block, outer_block, k_block, BATCH: tl.constexpr, OUTER: tl.constexpr, K: tl.constexpr,
    DIMENSIONS: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """First index of a box along one dimension of its operand."""
    ROLE: tl.constexpr = DIMENSIONS[AT][0]
    AXIS: tl.constexpr = DIMENSIONS[AT][1]
    if ROLE == 0:
        return tl.cast(axis_start(batch_block, BATCH, AXIS), tl.int32)
    elif ROLE == 1:
        return tl.cast(axis_start(outer_block, OUTER, AXIS), tl.int32)
    else:
        return tl.cast(axis_start(k_block, K, AXIS), tl.int32)


@triton.jit
def load_box(
    boxes, batch_block, outer_block, k_block, BATCH: tl.constexpr, OUTER: tl.constexpr, K: tl.constexpr,
    DIMENSIONS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One box of an operand, as a matrix: it has one index along every dimension but two."""
    RANK: tl.constexpr = len(DIMENSIONS)
    y = box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 2)
    x = box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 1)
    if RANK == 2:
        return boxes.load([y, x])
    else:
        z = box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 3)
        if RANK == 3:
            box = boxes.load([z, y, x])
        else:
            w = box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 4)
            if RANK == 4:
                box = boxes.load([w, z, y, x])
            else:
                v = box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 5)
                box = boxes.load([v, w, z, y, x])
        return tl.reshape(box, (ROWS, COLUMNS))


@triton.jit(do_not_specialize=["alpha", "beta"])
def boxes_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N)
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    parts,  # None where it is not
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    CUT: tl.constexpr,  # boxes.BoxesCut
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
    BATCH: tl.constexpr = CUT.batch
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    A_BOX: tl.constexpr = CUT.a_box
    B_BOX: tl.constexpr = CUT.b_box
    BESIDE_A: tl.constexpr = BESIDE.a
    BESIDE_B: tl.constexpr = BESIDE.b
    TILE: tl.constexpr = (M.tile, N.tile)
    depth = tl.arange(0, K.tile)
    for task in tl.range(tl.program_id(0), CUT.blocks * CUT.splits, CUT.programs, flatten=CUT.flatten):
        # (1) Find the block of D, and the share of its sum.
        batch_block, m_block, n_block = locate(task % CUT.blocks, M.blocks, N.blocks, CUT.group)
        first_step = task // CUT.blocks * CUT.steps

        # (2) Multiply box by box; what a box reads past the end of a mode is zero.
        acc = tl.zeros(TILE, dtype=ACCUMULATE)
        beside_a = gathered(pointers, (batch_block, m_block, 0), BESIDE_A, CUT, a_offsets, a_mask)
        beside_b = gathered(pointers, (batch_block, n_block, 0), BESIDE_B, CUT, b_offsets, b_mask)
        for step in range(CUT.steps):
            k_block = first_step + step
            if CUT.a_along_k:
                x = load_box(a, batch_block, m_block, k_block, BATCH, M, K, A_BOX, M.tile, K.tile)
            else:
                x = load_box(a, batch_block, m_block, k_block, BATCH, M, K, A_BOX, K.tile, M.tile).T
            if CUT.b_along_k:
                y = load_box(b, batch_block, n_block, k_block, BATCH, N, K, B_BOX, N.tile, K.tile).T
            else:
                y = load_box(b, batch_block, n_block, k_block, BATCH, N, K, B_BOX, K.tile, N.tile)

            # (3) Apply the functions in the product type. What lies past the end of k must stay zero.
            if A_FN is not None:
                at = (batch_block, m_block, k_block)
                x = A_FN(x, *gathered_step(beside_a, pointers, at, BESIDE_A, K, CUT, a_offsets, a_mask)).to(PRODUCT)
                if not K.exact:
                    x = tl.where(side_mask(k_block, depth, K)[None, :], x, 0)
            if B_FN is not None:
                at = (batch_block, n_block, k_block)
                y = B_FN(y, *gathered_step(beside_b, pointers, at, BESIDE_B, K, CUT, b_offsets, b_mask)).to(PRODUCT)
                if not K.exact:
                    y = tl.where(side_mask(k_block, depth, K)[:, None], y, 0)
            if CUT.widen:
                x = x.to(ACCUMULATE)
                y = y.to(ACCUMULATE)
            # fp8 products of one step may be added with fewer digits, those of different steps may not.
            acc = tl.dot(x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=K.tile, out_dtype=ACCUMULATE)

        # (4) Leave the part or finish the block, in two halves: what those are staged in fits beside the boxes.
        halves = tl.permute(tl.reshape(acc, (M.tile, 2, N.tile // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        if CUT.splits > 1:
            tl.store(parts + part_offsets(task, CUT, 0, N.tile // 2), left)
            tl.store(parts + part_offsets(task, CUT, N.tile // 2, N.tile // 2), right)
        else:
            HALVES: tl.constexpr = CUT.halves
            store_block(
                left, c, d, pointers, alpha, beta, batch_block, m_block, 2 * n_block, HALVES,
                C_FN, EPILOGUE, None, RESULT, BESIDE,
            )  # fmt: skip
            store_block(
                right, c, d, pointers, alpha, beta, batch_block, m_block, 2 * n_block + 1, HALVES,
                C_FN, EPILOGUE, None, RESULT, BESIDE,
            )  # fmt: skip

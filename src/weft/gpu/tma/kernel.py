"""The kernel that reads its operands in boxes through the tensor memory accelerator, and stores D in its own order.

Programs stay and take one task after the other, so that the loads of the next run while the last is stored. A task is
a block of D, or one share of its sum: then its part goes to a workspace and `combine_kernel` adds the parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import axis_start, gathered, gathered_step, side_mask
from weft.gpu.common.operand_tile import a_mask, a_offsets, b_mask, b_offsets
from weft.gpu.common.output_tile import part_offsets, store_block
from weft.gpu.common.pdl import come_after
from weft.gpu.common.rasterization import locate


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


@triton.jit
def load_operand(
    boxes, batch_block, outer_block, k_block, BATCH: tl.constexpr, OUTER: tl.constexpr, K: tl.constexpr,
    DIMENSIONS: tl.constexpr, ALONG_K: tl.constexpr,
):  # fmt: skip
    """One box of an operand, rows along its own side and columns along k."""
    if ALONG_K:
        return load_box(boxes, batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, OUTER.tile, K.tile)
    else:
        return load_box(boxes, batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, K.tile, OUTER.tile).T


@triton.jit
def multiply_part(
    acc, x, b, pointers, aux_b, batch_block, n_block, k_block, CUT: tl.constexpr, PART: tl.constexpr,
    B_FN: tl.constexpr, PRODUCT: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr,
    AUX_B: tl.constexpr,
):  # fmt: skip
    """Add the product of a box of A, in the type it is multiplied in, and the box of B for one part of the block."""
    BATCH: tl.constexpr = CUT.batch
    N: tl.constexpr = PART.n
    K: tl.constexpr = CUT.k
    B_BOX: tl.constexpr = CUT.b_box
    y = load_operand(b, batch_block, n_block, k_block, BATCH, N, K, B_BOX, CUT.b_along_k).T
    if B_FN is not None:
        at = (batch_block, n_block, k_block)
        y = B_FN(y, *gathered_step(aux_b, pointers, at, AUX_B, K, PART, b_offsets, b_mask)).to(PRODUCT)
        if CUT.masked:
            y = tl.where(side_mask(k_block, tl.arange(0, K.tile), K)[:, None], y, 0)
    if CUT.widen:
        y = y.to(ACCUMULATE)
    # fp8 products of one step may be added with fewer digits, those of different steps may not.
    return tl.dot(x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=K.tile, out_dtype=ACCUMULATE)


@triton.jit
def halves(acc):
    """The left and the right half of a matrix."""
    ROWS: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def leave_piece(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT: tl.constexpr,
    PIECE: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr, AUX: tl.constexpr,
):  # fmt: skip
    """Leave some columns as a share of a split sum, or finish them."""
    if CUT.splits > 1:
        tl.store(parts + part_offsets(task, CUT, PIECE.first, PIECE.n.tile), acc)
    else:
        store_block(
            acc, c, d, pointers, alpha, beta, batch_block, m_block, n_block, PIECE, C_FN, EPILOGUE, None, RESULT, AUX
        )  # fmt: skip


@triton.jit
def leave_two(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT: tl.constexpr,
    PART: tl.constexpr, AT: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr,
    AUX: tl.constexpr,
):  # fmt: skip
    """The same of columns that two pieces hold, the first of them number `AT`."""
    LEFT: tl.constexpr = PART.pieces[AT]
    RIGHT: tl.constexpr = PART.pieces[AT + 1]
    left, right = halves(acc)
    leave_piece(
        left, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, LEFT,
        C_FN, EPILOGUE, RESULT, AUX,
    )  # fmt: skip
    leave_piece(
        right, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, RIGHT,
        C_FN, EPILOGUE, RESULT, AUX,
    )  # fmt: skip


@triton.jit
def leave_part(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT: tl.constexpr,
    PART: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr, AUX: tl.constexpr,
):  # fmt: skip
    """The same of an accumulator, piece by piece: what a piece is staged in fits beside the boxes."""
    if len(PART.pieces) == 1:
        WHOLE: tl.constexpr = PART.pieces[0]
        leave_piece(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, WHOLE,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
    elif len(PART.pieces) == 2:
        leave_two(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, PART, 0,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
    else:
        left, right = halves(acc)
        leave_two(
            left, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, PART, 0,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
        leave_two(
            right, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, PART, 2,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip


@triton.jit(do_not_specialize=["alpha", "beta"])
def boxes_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    parts,  # shares of split sums; None where they are whole
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    CUT: tl.constexpr,  # boxes_cut.BoxesCut
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    AUX: tl.constexpr,  # beside.Beside
):
    come_after()
    BATCH: tl.constexpr = CUT.batch
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    A_BOX: tl.constexpr = CUT.a_box
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b
    FIRST: tl.constexpr = CUT.parts[0]
    SECOND: tl.constexpr = CUT.parts[-1]
    TWO: tl.constexpr = len(CUT.parts) == 2
    TILE: tl.constexpr = (M.tile, FIRST.n.tile)
    TILE_REST: tl.constexpr = (M.tile, SECOND.n.tile)
    for task in tl.range(tl.program_id(0), CUT.blocks * CUT.splits, CUT.programs, flatten=CUT.flatten):
        # (1) Find the block of D, and the share of its sum.
        batch_block, m_block, n_block = locate(task % CUT.blocks, M.blocks, N.blocks, CUT.group)
        first_step = task // CUT.blocks * CUT.steps

        # (2) Multiply box by box; what a box reads past the end of a mode is zero.
        acc = tl.zeros(TILE, dtype=ACCUMULATE)
        aux_a = gathered(pointers, (batch_block, m_block, 0), AUX_A, CUT, a_offsets, a_mask)
        aux_b = gathered(pointers, (batch_block, n_block, 0), AUX_B, FIRST, b_offsets, b_mask)
        if TWO:
            acc_rest = tl.zeros(TILE_REST, dtype=ACCUMULATE)
            aux_rest = gathered(pointers, (batch_block, n_block, 0), AUX_B, SECOND, b_offsets, b_mask)
        for step in range(CUT.steps):
            k_block = first_step + step
            x = load_operand(a, batch_block, m_block, k_block, BATCH, M, K, A_BOX, CUT.a_along_k)

            # (3) Apply the functions in the product type. What lies past the end of k must stay zero.
            if A_FN is not None:
                at = (batch_block, m_block, k_block)
                x = A_FN(x, *gathered_step(aux_a, pointers, at, AUX_A, K, CUT, a_offsets, a_mask)).to(PRODUCT)
                if CUT.masked:
                    x = tl.where(side_mask(k_block, tl.arange(0, K.tile), K)[None, :], x, 0)
            if CUT.widen:
                x = x.to(ACCUMULATE)
            if A_FN is not None and B_FN is not None and (TWO or (CUT.masked and len(AUX_A) > 0)):
                # x goes to the matrix units through shared memory. Without this barrier the one that x needs stands
                # between the stores of y and their fence for these units, which then may read what is not there.
                tl.debug_barrier()
            acc = multiply_part(
                acc, x, b, pointers, aux_b, batch_block, n_block, k_block, CUT, FIRST,
                B_FN, PRODUCT, ACCUMULATE, PRECISION, AUX_B,
            )  # fmt: skip
            if TWO:
                acc_rest = multiply_part(
                    acc_rest, x, b_rest, pointers, aux_rest, batch_block, n_block, k_block, CUT, SECOND,
                    B_FN, PRODUCT, ACCUMULATE, PRECISION, AUX_B,
                )  # fmt: skip

        # (4) Leave the share, or finish the block.
        leave_part(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, FIRST,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
        if TWO:
            leave_part(
                acc_rest, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, SECOND,
                C_FN, EPILOGUE, RESULT, AUX,
            )  # fmt: skip

"""The kernel that reads its operands in boxes through the tensor memory accelerator, and stores D in its own order.

Programs stay and take one task after the other, so that the loads of the next run while the last is stored. A task is
a block of D, or one share of its sum: then its part goes to a workspace and `combine_kernel` adds the parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import axis_start, dim_mask, gathered, gathered_step
from weft.gpu.common.operand_tile import a_mask, a_offsets, b_mask, b_offsets
from weft.gpu.common.output_tile import partial_offsets, store_block
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.rasterization import tile_coords


@triton.jit
def tma_coords(
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
    y = tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 2)
    x = tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 1)
    if RANK == 2:
        return boxes.load([y, x])
    else:
        z = tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 3)
        if RANK == 3:
            box = boxes.load([z, y, x])
        else:
            w = tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 4)
            if RANK == 4:
                box = boxes.load([w, z, y, x])
            else:
                v = tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, RANK - 5)
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
    acc, x, b, pointers, aux_b, batch_block, n_block, k_block, PARAMS: tl.constexpr, PART: tl.constexpr,
    B_FN: tl.constexpr, PRODUCT: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr,
    AUX_B: tl.constexpr,
):  # fmt: skip
    """Add the product of a box of A, in the type it is multiplied in, and the box of B for one part of the block."""
    BATCH: tl.constexpr = PARAMS.batch
    N: tl.constexpr = PART.n
    K: tl.constexpr = PARAMS.k
    B_BOX: tl.constexpr = PARAMS.b_box
    y = load_operand(b, batch_block, n_block, k_block, BATCH, N, K, B_BOX, PARAMS.b_along_k).T
    if B_FN is not None:
        at = (batch_block, n_block, k_block)
        y = B_FN(y, *gathered_step(aux_b, pointers, at, AUX_B, K, PART, b_offsets, b_mask)).to(PRODUCT)
        if PARAMS.masked:
            y = tl.where(dim_mask(k_block, tl.arange(0, K.tile), K)[:, None], y, 0)
    if PARAMS.widen:
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
def store_subtile(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS: tl.constexpr,
    PIECE: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr, AUX: tl.constexpr,
):  # fmt: skip
    """Leave some columns as a share of a split sum, or finish them."""
    if PARAMS.splits > 1:
        tl.store(parts + partial_offsets(task, PARAMS, PIECE.first, PIECE.n.tile), acc)
    else:
        store_block(
            acc, c, d, pointers, alpha, beta, batch_block, m_block, n_block, PIECE, C_FN, EPILOGUE, None, RESULT, AUX
        )  # fmt: skip


@triton.jit
def leave_two(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS: tl.constexpr,
    PART: tl.constexpr, AT: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr,
    AUX: tl.constexpr,
):  # fmt: skip
    """The same of columns that two pieces hold, the first of them number `AT`."""
    LEFT: tl.constexpr = PART.pieces[AT]
    RIGHT: tl.constexpr = PART.pieces[AT + 1]
    left, right = halves(acc)
    store_subtile(
        left, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, LEFT,
        C_FN, EPILOGUE, RESULT, AUX,
    )  # fmt: skip
    store_subtile(
        right, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, RIGHT,
        C_FN, EPILOGUE, RESULT, AUX,
    )  # fmt: skip


@triton.jit
def leave_part(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS: tl.constexpr,
    PART: tl.constexpr, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, RESULT: tl.constexpr, AUX: tl.constexpr,
):  # fmt: skip
    """The same of an accumulator, piece by piece: what a piece is staged in fits beside the boxes."""
    if len(PART.pieces) == 1:
        WHOLE: tl.constexpr = PART.pieces[0]
        store_subtile(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, WHOLE,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
    elif len(PART.pieces) == 2:
        leave_two(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, PART, 0,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
    else:
        left, right = halves(acc)
        leave_two(
            left, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, PART, 0,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
        leave_two(
            right, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, PART, 2,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip


@triton.jit(do_not_specialize=["alpha", "beta"])
def tma_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    parts,  # shares of split sums; None where they are whole
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # boxes_cut.BoxesCut
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
    pdl_wait()
    BATCH: tl.constexpr = PARAMS.batch
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    A_BOX: tl.constexpr = PARAMS.a_box
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b
    FIRST: tl.constexpr = PARAMS.parts[0]
    SECOND: tl.constexpr = PARAMS.parts[-1]
    TWO: tl.constexpr = len(PARAMS.parts) == 2
    TILE: tl.constexpr = (M.tile, FIRST.n.tile)
    TILE_REST: tl.constexpr = (M.tile, SECOND.n.tile)
    for task in tl.range(tl.program_id(0), PARAMS.blocks * PARAMS.splits, PARAMS.programs, flatten=PARAMS.flatten):
        # (1) Find the block of D, and the share of its sum.
        batch_block, m_block, n_block = tile_coords(task % PARAMS.blocks, M.blocks, N.blocks, PARAMS.group)
        first_step = task // PARAMS.blocks * PARAMS.steps

        # (2) Multiply box by box; what a box reads past the end of a mode is zero.
        acc = tl.zeros(TILE, dtype=ACCUMULATE)
        aux_a = gathered(pointers, (batch_block, m_block, 0), AUX_A, PARAMS, a_offsets, a_mask)
        aux_b = gathered(pointers, (batch_block, n_block, 0), AUX_B, FIRST, b_offsets, b_mask)
        if TWO:
            acc_rest = tl.zeros(TILE_REST, dtype=ACCUMULATE)
            aux_rest = gathered(pointers, (batch_block, n_block, 0), AUX_B, SECOND, b_offsets, b_mask)
        for step in range(PARAMS.steps):
            k_block = first_step + step
            x = load_operand(a, batch_block, m_block, k_block, BATCH, M, K, A_BOX, PARAMS.a_along_k)

            # (3) Apply the functions in the product type. What lies past the end of k must stay zero.
            if A_FN is not None:
                at = (batch_block, m_block, k_block)
                x = A_FN(x, *gathered_step(aux_a, pointers, at, AUX_A, K, PARAMS, a_offsets, a_mask)).to(PRODUCT)
                if PARAMS.masked:
                    x = tl.where(dim_mask(k_block, tl.arange(0, K.tile), K)[None, :], x, 0)
            if PARAMS.widen:
                x = x.to(ACCUMULATE)
            if A_FN is not None and B_FN is not None and (TWO or (PARAMS.masked and len(AUX_A) > 0)):
                # x goes to the matrix units through shared memory. Without this barrier the one that x needs stands
                # between the stores of y and their fence for these units, which then may read what is not there.
                tl.debug_barrier()
            acc = multiply_part(
                acc, x, b, pointers, aux_b, batch_block, n_block, k_block, PARAMS, FIRST,
                B_FN, PRODUCT, ACCUMULATE, PRECISION, AUX_B,
            )  # fmt: skip
            if TWO:
                acc_rest = multiply_part(
                    acc_rest, x, b_rest, pointers, aux_rest, batch_block, n_block, k_block, PARAMS, SECOND,
                    B_FN, PRODUCT, ACCUMULATE, PRECISION, AUX_B,
                )  # fmt: skip

        # (4) Leave the share, or finish the block.
        leave_part(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, FIRST,
            C_FN, EPILOGUE, RESULT, AUX,
        )  # fmt: skip
        if TWO:
            leave_part(
                acc_rest, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, PARAMS, SECOND,
                C_FN, EPILOGUE, RESULT, AUX,
            )  # fmt: skip

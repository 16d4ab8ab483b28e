"""The direct kernel off the matrix units: multiply and sum lane by lane, for any real number type.

It serves what has nothing to share in a matrix instruction: matrix-vector, dot, outer and elementwise products,
reductions of one operand, many tiny products in a batch; and integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.device import finish, spread_mask, spread_offsets


@triton.jit
def load_spread(
    pointer, block, step, R: tl.constexpr, K: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr
):
    """One operand's values for a tile of D and k, with extent 1 along every axis that the operand does not have."""
    offsets = spread_offsets(block, R, TENSOR, RANK, WIDE) + spread_offsets(step, K, TENSOR, RANK, WIDE)
    mask = spread_mask(block, R, TENSOR, RANK) & spread_mask(step, K, TENSOR, RANK)
    return tl.load(pointer + offsets, mask=mask, other=0)


@triton.jit(do_not_specialize=["alpha", "beta"])
def vector_kernel(
    a,
    b,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    CUT: tl.constexpr,  # vector.VectorCut
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    R: tl.constexpr = CUT.r
    K: tl.constexpr = CUT.k
    RANK: tl.constexpr = len(CUT.tile)

    # (1) Find this program's block of D. Every axis of the tile, of D and of k, is a dimension of its own.
    block = tl.program_id(0)
    if CUT.wide_index:
        block = block.to(tl.int64)

    TILE: tl.constexpr = CUT.tile
    acc = tl.zeros(TILE, dtype=ACCUMULATE)
    for step in range(0, K.blocks):
        k_block = step.to(tl.int64) if CUT.wide_index else step
        # (2.1) Load both operands, each along the axes it has, and apply the functions in the product type.
        x = load_spread(a, block, k_block, R, K, 0, RANK, CUT.wide[0]).to(PRODUCT)
        y = load_spread(b, block, k_block, R, K, 1, RANK, CUT.wide[1]).to(PRODUCT)
        if A_FN is not None:
            x = A_FN(x).to(PRODUCT)
        if B_FN is not None:
            y = B_FN(y).to(PRODUCT)

        # (2.2) Multiply in the accumulator's type; what lies past the end of k counts nothing.
        product = x.to(ACCUMULATE) * y.to(ACCUMULATE)
        if not K.exact:
            product = tl.where(spread_mask(k_block, K, 4, RANK), product, 0)
        acc += product

    # (3) Sum over the axes of k, apply C and the epilogue, store.
    K_RANK: tl.constexpr = CUT.k_rank
    for axis in tl.static_range(K_RANK):
        acc = tl.sum(acc, axis=RANK - 1 - axis)
    STORED: tl.constexpr = RANK - K_RANK
    mask = tl.broadcast_to(spread_mask(block, R, 4, STORED), acc.shape)
    offsets_c = 0
    if c is not None:
        offsets_c = spread_offsets(block, R, 2, STORED, CUT.wide[2])
    value = finish(acc, c, alpha, beta, offsets_c, mask, C_FN, EPILOGUE, RESULT)
    offsets_d = tl.broadcast_to(spread_offsets(block, R, 3, STORED, CUT.wide[3]), acc.shape)
    tl.store(d + offsets_d, value, mask=mask)

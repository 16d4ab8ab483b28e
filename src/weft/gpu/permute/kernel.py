"""The permutation kernels: one block of D per program, read along the source's run and written along D's.

Both runs are axes of the tile. It is loaded in the order of the source and stored in that of D; between them it passes
once through shared memory. One kernel makes one permutation, the other makes two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import load_or_zero, scalar, spread_mask, spread_offsets
from weft.gpu.common.pdl import pdl_begin


@triton.jit
def turned(value, TURN: tl.constexpr):
    """A block of at most four dimensions in another order of them."""
    if len(TURN) == 4:
        value = tl.permute(value, (TURN[0], TURN[1], TURN[2], TURN[3]))
    elif len(TURN) == 3:
        value = tl.permute(value, (TURN[0], TURN[1], TURN[2]))
    elif len(TURN) == 2:
        value = tl.permute(value, (TURN[0], TURN[1]))
    return value


@triton.jit
def move_block(
    block,
    x,
    c,
    d,
    alpha,
    beta,
    PARAMS: tl.constexpr,
    FN: tl.constexpr,
    COMPUTE: tl.constexpr,
    SCALE: tl.constexpr,
    RESULT: tl.constexpr,
    CONJUGATE: tl.constexpr,
):
    """One block of a permutation; parameters are those of `permute_kernel`."""
    R: tl.constexpr = PARAMS.r
    W: tl.constexpr = PARAMS.w
    TILE: tl.constexpr = PARAMS.tile
    TURN: tl.constexpr = PARAMS.turn
    RANK: tl.constexpr = len(TILE)
    if PARAMS.wide_index:
        block = block.to(tl.int64)

    # (1) Read the block, each element of the source once, and see it in D's order.
    value = load_or_zero(x + spread_offsets(block, R, 0, RANK, PARAMS.wide[0]), spread_mask(block, R, 0, RANK))
    value = turned(value, TURN)

    # (2) Apply the function, the scaling and what is added.
    if FN is not None:
        value = FN(value.to(COMPUTE))
    value = tl.broadcast_to(value, TILE)
    offsets_d = tl.broadcast_to(spread_offsets(block, W, 3, RANK, PARAMS.wide[3]), TILE)
    if CONJUGATE:
        value = tl.where(offsets_d % 2 == 1, -value, value)
    if SCALE is not None:
        value = value.to(SCALE) * scalar(alpha, SCALE)
        if c is not None:
            offsets_c = spread_offsets(block, W, 2, RANK, PARAMS.wide[2])
            addend = load_or_zero(c + offsets_c, spread_mask(block, W, 2, RANK))
            value += addend.to(SCALE) * scalar(beta, SCALE)

    # (3) Write it.
    mask = tl.broadcast_to(spread_mask(block, W, 4, RANK), TILE)
    tl.store(d + offsets_d, value.to(RESULT), mask=mask)


@triton.jit(do_not_specialize=["alpha", "beta"])
def permute_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    PARAMS: tl.constexpr,  # params.PermuteParams
    FN: tl.constexpr,
    COMPUTE: tl.constexpr,  # what the function sees
    SCALE: tl.constexpr,  # what alpha and beta are applied in, None where they are not
    RESULT: tl.constexpr,
    CONJUGATE: tl.constexpr,  # values are pairs of reals along the innermost mode; the second is negated
):
    pdl_begin()
    move_block(tl.program_id(0), x, c, d, alpha, beta, PARAMS, FN, COMPUTE, SCALE, RESULT, CONJUGATE)


@triton.jit(do_not_specialize=["alpha", "beta"])
def permute_pair_kernel(
    x,
    d,
    y,  # source and result of the second permutation
    e,
    alpha: tl.int64,  # neither is applied
    beta: tl.int64,
    COUNT: tl.constexpr,  # blocks of the first
    X_PARAMS: tl.constexpr,  # params.PermuteParams
    X_FN: tl.constexpr,
    X_COMPUTE: tl.constexpr,
    X_RESULT: tl.constexpr,
    Y_PARAMS: tl.constexpr,  # the same of the second
    Y_FN: tl.constexpr,
    Y_COMPUTE: tl.constexpr,
    Y_RESULT: tl.constexpr,
):
    """Two permutations that know nothing of one another: the blocks of the first, then those of the second."""
    pdl_begin()
    block = tl.program_id(0)
    if block < COUNT:
        move_block(block, x, None, d, alpha, beta, X_PARAMS, X_FN, X_COMPUTE, None, X_RESULT, False)
    else:
        move_block(block - COUNT, y, None, e, alpha, beta, Y_PARAMS, Y_FN, Y_COMPUTE, None, Y_RESULT, False)

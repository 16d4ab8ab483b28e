"""The permutation kernels: one tile per program, loaded in the order of X and stored in that of D.

Between the two the tile passes through shared memory once, so that both sides are touched in long runs. One kernel
makes one permutation, the other makes two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_math import to_type
from weft.gpu.common.device import ANY, load_or_zero, pdl_begin, scalar, spread_mask, spread_offsets


@triton.jit
def permute_dims(tile, ORDER: tl.constexpr):
    """A tile of at most four dimensions with these in another order."""
    if len(ORDER) == 4:
        tile = tl.permute(tile, (ORDER[0], ORDER[1], ORDER[2], ORDER[3]))
    elif len(ORDER) == 3:
        tile = tl.permute(tile, (ORDER[0], ORDER[1], ORDER[2]))
    elif len(ORDER) == 2:
        tile = tl.permute(tile, (ORDER[0], ORDER[1]))
    return tile


@triton.jit
def permute_tile(
    at, x, c, d, alpha, beta, PARAMS: tl.constexpr, FN: tl.constexpr, COMPUTE: tl.constexpr, RESULT: tl.constexpr,
    SCALE: tl.constexpr, CONJUGATE: tl.constexpr,
):  # fmt: skip
    """The tile at `at` (see `common.device`) of a permutation; parameters are those of `permute_kernel`."""
    LOAD: tl.constexpr = PARAMS.load
    STORE: tl.constexpr = PARAMS.store
    TILE: tl.constexpr = PARAMS.tile
    ORDER: tl.constexpr = PARAMS.order
    RANK: tl.constexpr = len(TILE)

    # (1) Load the tile, each element of X once, and permute its dimensions to D's order.
    value = load_or_zero(x + spread_offsets(at, LOAD, 0, RANK, PARAMS.wide[0]), spread_mask(at, LOAD, 0, RANK))
    value = permute_dims(value, ORDER)

    # (2) Apply the function and the scaling, and add C.
    if FN is not None:
        value = FN(value.to(COMPUTE))
    value = tl.broadcast_to(value, TILE)
    offsets_d = tl.broadcast_to(spread_offsets(at, STORE, 3, RANK, PARAMS.wide[3]), TILE)
    mask = tl.broadcast_to(spread_mask(at, STORE, ANY, RANK), TILE)
    if CONJUGATE:
        value = tl.where(offsets_d % 2 == 1, -value, value)
    if SCALE is not None:
        value = value.to(SCALE) * scalar(alpha, SCALE)
        if c is not None:
            offsets_c = spread_offsets(at, STORE, 2, RANK, PARAMS.wide[2])
            addend = load_or_zero(c + offsets_c, spread_mask(at, STORE, 2, RANK))
            value += addend.to(SCALE) * scalar(beta, SCALE)

    # (3) Store it.
    tl.store(d + offsets_d, to_type(value, RESULT), mask=mask)


@triton.jit
def tile_place(block, PARAMS: tl.constexpr):
    """The place of tile number `block`, see `common.device`."""
    return block.to(tl.int64) if PARAMS.wide_index else block


@triton.jit(do_not_specialize=["alpha", "beta"])
def permute_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    PARAMS: tl.constexpr,  # PermuteParams
    FN: tl.constexpr,
    COMPUTE: tl.constexpr,  # what the function sees
    RESULT: tl.constexpr,
    SCALE: tl.constexpr,  # what alpha and beta are applied in, None where they are not
    CONJUGATE: tl.constexpr,  # values are pairs of reals along the innermost mode; the second is negated
):
    """D = alpha * fn(X permuted) + beta * C."""
    pdl_begin()
    at = tile_place(tl.program_id(0), PARAMS)
    permute_tile(at, x, c, d, alpha, beta, PARAMS, FN, COMPUTE, RESULT, SCALE, CONJUGATE)


@triton.jit(do_not_specialize=["alpha", "beta"])
def permute_pair_kernel(
    x,
    d,
    y,  # source and result of the second permutation
    e,
    alpha: tl.int64,  # neither is applied
    beta: tl.int64,
    COUNT: tl.constexpr,  # tiles of the first
    X_PARAMS: tl.constexpr,  # PermuteParams
    X_FN: tl.constexpr,
    X_COMPUTE: tl.constexpr,
    X_RESULT: tl.constexpr,
    Y_PARAMS: tl.constexpr,  # the same of the second
    Y_FN: tl.constexpr,
    Y_COMPUTE: tl.constexpr,
    Y_RESULT: tl.constexpr,
):
    """Two independent permutations: the tiles of the first, then those of the second."""
    pdl_begin()
    block = tl.program_id(0)
    if block < COUNT:
        at = tile_place(block, X_PARAMS)
        permute_tile(at, x, None, d, alpha, beta, X_PARAMS, X_FN, X_COMPUTE, X_RESULT, None, False)
    else:
        at = tile_place(block - COUNT, Y_PARAMS)
        permute_tile(at, y, None, e, alpha, beta, Y_PARAMS, Y_FN, Y_COMPUTE, Y_RESULT, None, False)

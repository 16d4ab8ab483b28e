"""The direct kernel off the matrix units: multiply and sum lane by lane, for any real number type.

It serves what has nothing to share in a matrix instruction: matrix-vector, dot, outer and elementwise products,
reductions of one operand, many tiny products in a batch; and integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import ANY, finish, gathered, gathered_step, load_or_zero, spread_mask, spread_offsets
from weft.gpu.common.pdl import pdl_begin


@triton.jit
def tile_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of D and k, (D's tile, k's tile): 1 long along axes that the tensor has not."""
    R: tl.constexpr = PARAMS.r
    K: tl.constexpr = PARAMS.k
    RANK: tl.constexpr = len(PARAMS.tile)
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return spread_offsets(place[0], R, TENSOR, RANK, WIDE) + spread_offsets(place[1], K, TENSOR, RANK, WIDE)


@triton.jit
def tile_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    R: tl.constexpr = PARAMS.r
    K: tl.constexpr = PARAMS.k
    RANK: tl.constexpr = len(PARAMS.tile)
    return spread_mask(place[0], R, TENSOR, RANK) & spread_mask(place[1], K, TENSOR, RANK)


@triton.jit
def stored_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The same of D's tile alone."""
    R: tl.constexpr = PARAMS.r
    RANK: tl.constexpr = len(PARAMS.tile) - PARAMS.k_rank
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return spread_offsets(place[0], R, TENSOR, RANK, WIDE)


@triton.jit
def stored_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    R: tl.constexpr = PARAMS.r
    RANK: tl.constexpr = len(PARAMS.tile) - PARAMS.k_rank
    return spread_mask(place[0], R, TENSOR, RANK)


@triton.jit
def factors_at(
    operands, known, pointers, at, PARAMS: tl.constexpr, functions, PRODUCT: tl.constexpr, AUX: tl.constexpr
):
    """Tiles of A and of B at (D's tile, k's tile), their functions applied in the product type.

    `operands` are (A, B), `known` what the functions take that does not move along k, `functions` (a_fn, b_fn).
    """
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b
    A_FN: tl.constexpr = functions[0]
    B_FN: tl.constexpr = functions[1]
    x = load_or_zero(operands[0] + tile_offsets(at, PARAMS, 0), tile_mask(at, PARAMS, 0)).to(PRODUCT)
    y = load_or_zero(operands[1] + tile_offsets(at, PARAMS, 1), tile_mask(at, PARAMS, 1)).to(PRODUCT)
    if A_FN is not None:
        x = A_FN(x, *gathered_step(known[0], pointers, at, AUX_A, K, PARAMS, tile_offsets, tile_mask)).to(PRODUCT)
    if B_FN is not None:
        y = B_FN(y, *gathered_step(known[1], pointers, at, AUX_B, K, PARAMS, tile_offsets, tile_mask)).to(PRODUCT)
    return x, y


@triton.jit
def reduce_step(
    acc, x, y, k_block, PARAMS: tl.constexpr, COMBINE: tl.constexpr, REDUCE: tl.constexpr, IDENTITY: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The accumulator with the products of a step along k; what lies past the end of k counts nothing."""
    K: tl.constexpr = PARAMS.k
    RANK: tl.constexpr = len(PARAMS.tile)
    if COMBINE is None:
        product = x.to(ACCUMULATE) * y.to(ACCUMULATE)
    else:
        product = COMBINE(x.to(ACCUMULATE), y.to(ACCUMULATE)).to(ACCUMULATE)
    if not K.exact:
        product = tl.where(spread_mask(k_block, K, ANY, RANK), product, tl.full((), IDENTITY, ACCUMULATE))
    if REDUCE is None:
        acc += product
    else:
        acc = REDUCE(acc, product).to(ACCUMULATE)
    return acc


@triton.jit
def sum_over_axes(acc, PARAMS: tl.constexpr, REDUCE: tl.constexpr, OVER_AXIS: tl.constexpr):
    """The accumulator without its axes of k, which are the last."""
    RANK: tl.constexpr = len(PARAMS.tile)
    K_RANK: tl.constexpr = PARAMS.k_rank
    for axis in tl.static_range(K_RANK):
        if REDUCE is None:
            acc = tl.sum(acc, axis=RANK - 1 - axis)
        else:
            acc = OVER_AXIS(acc, RANK - 1 - axis)
    return acc


@triton.jit(do_not_specialize=["alpha", "beta"])
def simt_kernel(
    a,
    b,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # SimtParams
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    AUX: tl.constexpr,  # AuxParams
    COMBINE: tl.constexpr,  # of an algebra; None for products
    REDUCE: tl.constexpr,  # and for sums
    IDENTITY: tl.constexpr,  # of sums
    OVER_AXIS: tl.constexpr,  # `semiring.algebra.over_axis` of REDUCE
):
    """D = reduce over k of combine(A, B), lane by lane."""
    pdl_begin()
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b

    # (1) Find this program's output tile. Every axis of the tile, of D and of k, is a dimension of its own.
    block = tl.program_id(0)
    if PARAMS.wide_index:
        block = block.to(tl.int64)

    TILE: tl.constexpr = PARAMS.tile
    acc = tl.full(TILE, IDENTITY, dtype=ACCUMULATE)
    aux_a = gathered(pointers, (block, 0), AUX_A, PARAMS, tile_offsets, tile_mask)
    aux_b = gathered(pointers, (block, 0), AUX_B, PARAMS, tile_offsets, tile_mask)
    for step in range(0, K.blocks):
        k_block = step.to(tl.int64) if PARAMS.wide_index else step
        # (2.1) Load both operands, each along the axes it has, and apply the functions in the product type.
        x, y = factors_at(
            (a, b), (aux_a, aux_b), pointers, (block, k_block), PARAMS, (A_FN, B_FN), PRODUCT, AUX
        )  # fmt: skip

        # (2.2) Multiply in the accumulator's type, and add.
        acc = reduce_step(acc, x, y, k_block, PARAMS, COMBINE, REDUCE, IDENTITY, ACCUMULATE)

    # (3) Sum over the axes of k, apply C and the epilogue, store.
    acc = sum_over_axes(acc, PARAMS, REDUCE, OVER_AXIS)
    finish(
        acc, (c, d, pointers), (alpha, beta), (block,), PARAMS, stored_offsets, stored_mask, (C_FN, EPILOGUE, REDUCE),
        RESULT, AUX,
    )  # fmt: skip

"""The kernel at hand off the matrix units: products and sums lane by lane, in any algebra, for any extents.

A tile has two axes of D and one of k. An operand is loaded along the axes that it moves along, and spread over the
others in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.at_hand.device import block_of, inside, spread_mask, spread_offsets
from weft.gpu.common.device import finish, gathered, gathered_step, load_or_zero
from weft.gpu.common.pdl import pdl_begin


@triton.jit
def tile_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of D and k."""
    AXES: tl.constexpr = PARAMS.axes
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return spread_offsets(place[0], place[1], AXES, TENSOR, 3, WIDE)


@triton.jit
def tile_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    AXES: tl.constexpr = PARAMS.axes
    return spread_mask(place[0], place[1], AXES, TENSOR, 3)


@triton.jit
def stored_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The same of D's tile alone."""
    AXES: tl.constexpr = PARAMS.stored
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return spread_offsets(place[0], place[1], AXES, TENSOR, 2, WIDE)


@triton.jit
def stored_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    AXES: tl.constexpr = PARAMS.stored
    return spread_mask(place[0], place[1], AXES, TENSOR, 2)


@triton.jit
def factors_at(
    operands, known, pointers, place, PARAMS: tl.constexpr, functions, PRODUCT: tl.constexpr, AUX: tl.constexpr
):
    """Tiles of A and of B, their functions applied in the product type; of B nothing where it is left out."""
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b
    A_FN: tl.constexpr = functions[0]
    B_FN: tl.constexpr = functions[1]
    x = load_or_zero(operands[0] + tile_offsets(place, PARAMS, 0), tile_mask(place, PARAMS, 0)).to(PRODUCT)
    if A_FN is not None:
        x = A_FN(x, *gathered_step(known[0], pointers, place, AUX_A, K, PARAMS, tile_offsets, tile_mask)).to(PRODUCT)
    y = x
    if operands[1] is not None:
        y = load_or_zero(operands[1] + tile_offsets(place, PARAMS, 1), tile_mask(place, PARAMS, 1)).to(PRODUCT)
        if B_FN is not None:
            beside = gathered_step(known[1], pointers, place, AUX_B, K, PARAMS, tile_offsets, tile_mask)
            y = B_FN(y, *beside).to(PRODUCT)
    return x, y


@triton.jit
def reduce_step(
    acc, x, y, exists, ALONE: tl.constexpr, COMBINE: tl.constexpr, REDUCE: tl.constexpr, IDENTITY: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The accumulator with the products of a step along k; what lies past the end of k counts nothing."""
    if ALONE:
        product = x.to(ACCUMULATE)
    elif COMBINE is None:
        product = x.to(ACCUMULATE) * y.to(ACCUMULATE)
    else:
        product = COMBINE(x.to(ACCUMULATE), y.to(ACCUMULATE)).to(ACCUMULATE)
    product = tl.where(exists, product, tl.full((), IDENTITY, ACCUMULATE))
    if REDUCE is None:
        acc += product
    else:
        acc = REDUCE(acc, product).to(ACCUMULATE)
    return acc


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def lanes_kernel(
    a,
    b,  # None where A's values are reduced alone
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    numbers,  # extents, strides and all that follows from them, see `axes` and `params`
    PARAMS: tl.constexpr,  # HandParams
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
    AXES: tl.constexpr = PARAMS.axes  # outer, two of D, k
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b

    # (1) Find this program's output tile and its part of the reduction.
    left, r1_block = block_of(tl.program_id(0), numbers, AXES, 2)
    left, r0_block = block_of(left, numbers, AXES, 1)
    split, outer = block_of(left, numbers, AXES, 0)
    first_step = split * numbers[0]
    last_step = tl.minimum(first_step + numbers[0], numbers[1])
    r0 = r0_block * AXES[1].tile
    r1 = r1_block * AXES[2].tile
    tile = ((outer, r0, r1, 0), numbers)

    TILE: tl.constexpr = PARAMS.tile
    acc = tl.full(TILE, IDENTITY, dtype=ACCUMULATE)
    known = (
        gathered(pointers, tile, AUX_A, PARAMS, tile_offsets, tile_mask),
        gathered(pointers, tile, AUX_B, PARAMS, tile_offsets, tile_mask),
    )
    for step in range(first_step, last_step):
        place = ((outer, r0, r1, step * K.tile), numbers)
        # (2.1) Load both operands, each along the axes it has, and apply the functions in the product type.
        x, y = factors_at((a, b), known, pointers, place, PARAMS, (A_FN, B_FN), PRODUCT, AUX)
        # (2.2) Multiply in the accumulator's type, and add.
        exists = inside(step * K.tile, numbers, AXES, 3, 3)
        acc = reduce_step(acc, x, y, exists, b is None, COMBINE, REDUCE, IDENTITY, ACCUMULATE)

    # (3) Reduce over the lanes of k, apply C and the epilogue, store; a part of a reduction goes to its workspace.
    if REDUCE is None:
        acc = tl.sum(acc, axis=K.place)
    else:
        acc = OVER_AXIS(acc, K.place)
    d += split.to(tl.int64) * numbers[2] * PARAMS.axes[0].runs[3].divisor
    finish(
        acc, (c, d, pointers), (alpha, beta), tile, PARAMS, stored_offsets, stored_mask, (C_FN, EPILOGUE, REDUCE),
        RESULT, AUX,
    )  # fmt: skip

"""The direct kernel off the matrix units: multiply and sum lane by lane, for any real number type.

It serves what has nothing to share in a matrix instruction: matrix-vector, dot, outer and elementwise products,
reductions of one operand, many tiny products in a batch; and integers. Every axis of the tile, of D and of k, is a
dimension of its own: an operand is loaded along the axes that it has, and spread over the others in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common import device
from weft.gpu.common.device import ANY, pdl_begin


@triton.jit
def tile_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of D and k, (D's tile, k's tile): 1 long along axes that the tensor has not."""
    RANK: tl.constexpr = len(PARAMS.tile)
    offsets = device.spread_offsets(place[0], PARAMS.r, TENSOR, RANK, PARAMS.wide[TENSOR])
    return offsets + device.spread_offsets(place[1], PARAMS.k, TENSOR, RANK, PARAMS.wide[TENSOR])


@triton.jit
def tile_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    RANK: tl.constexpr = len(PARAMS.tile)
    return device.spread_mask(place[0], PARAMS.r, TENSOR, RANK) & device.spread_mask(place[1], PARAMS.k, TENSOR, RANK)


@triton.jit
def stored_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of D's tile alone."""
    RANK: tl.constexpr = len(PARAMS.tile) - PARAMS.k_rank
    return device.spread_offsets(place[0], PARAMS.r, TENSOR, RANK, PARAMS.wide[TENSOR])


@triton.jit
def stored_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    RANK: tl.constexpr = len(PARAMS.tile) - PARAMS.k_rank
    return device.spread_mask(place[0], PARAMS.r, TENSOR, RANK)


@triton.jit
def factors_at(operands, known, pointers, at, PARAMS: tl.constexpr, OP: tl.constexpr):
    """Tiles of A and of B at (D's tile, k's tile), their functions applied in the product type.

    `operands` are (A, B), `known` what the functions take that does not move along k.
    """
    PRODUCT: tl.constexpr = OP.product
    x = device.load_or_zero(operands[0] + tile_offsets(at, PARAMS, 0), tile_mask(at, PARAMS, 0)).to(PRODUCT)
    y = device.load_or_zero(operands[1] + tile_offsets(at, PARAMS, 1), tile_mask(at, PARAMS, 1)).to(PRODUCT)
    if OP.a_fn is not None:
        beside = device.gathered_step(known[0], pointers, at, OP.aux.a, PARAMS.k, PARAMS, tile_offsets, tile_mask)
        x = OP.a_fn(x, *beside).to(PRODUCT)
    if OP.b_fn is not None:
        beside = device.gathered_step(known[1], pointers, at, OP.aux.b, PARAMS.k, PARAMS, tile_offsets, tile_mask)
        y = OP.b_fn(y, *beside).to(PRODUCT)
    return x, y


@triton.jit
def reduce_step(acc, x, y, k_at, PARAMS: tl.constexpr, OP: tl.constexpr):
    """The accumulator with the products of a step along k; past the end of k nothing."""
    RANK: tl.constexpr = len(PARAMS.tile)
    ACCUMULATE: tl.constexpr = OP.accumulate
    if OP.combine is None:
        product = x.to(ACCUMULATE) * y.to(ACCUMULATE)
    else:
        product = OP.combine(x.to(ACCUMULATE), y.to(ACCUMULATE)).to(ACCUMULATE)
    if not PARAMS.k.exact:
        product = tl.where(device.spread_mask(k_at, PARAMS.k, ANY, RANK), product, tl.full((), OP.identity, ACCUMULATE))
    if OP.reduce is None:
        acc += product
    else:
        acc = OP.reduce(acc, product).to(ACCUMULATE)
    return acc


@triton.jit
def sum_over_axes(acc, PARAMS: tl.constexpr, OVER_AXIS: tl.constexpr):
    """The accumulator without its axes of k, the last one first."""
    K: tl.constexpr = PARAMS.k
    for i in tl.static_range(len(K.axes)):
        if K.axes[len(K.axes) - 1 - i].place >= 0:
            if OVER_AXIS is None:
                acc = tl.sum(acc, axis=K.axes[len(K.axes) - 1 - i].place)
            else:
                acc = OVER_AXIS(acc, K.axes[len(K.axes) - 1 - i].place)
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
    OP: tl.constexpr,  # KernelOperation
    OVER_AXIS: tl.constexpr,  # `operation.over_axis` of its reduce
):
    """D = reduce over k of combine(A, B), lane by lane."""
    pdl_begin()

    # (1) Find this program's output tile.
    block = tl.program_id(0)
    place = block.to(tl.int64) if PARAMS.wide_index else block

    acc = tl.full(PARAMS.tile, OP.identity, dtype=OP.accumulate)
    aux_a = device.gathered(pointers, (place, 0), OP.aux.a, PARAMS, tile_offsets, tile_mask)
    aux_b = device.gathered(pointers, (place, 0), OP.aux.b, PARAMS, tile_offsets, tile_mask)
    for step in range(0, PARAMS.k.blocks):
        k_at = step.to(tl.int64) if PARAMS.wide_index else step
        # (2.1) Load both operands, each along the axes it has, and apply the functions in the product type.
        x, y = factors_at((a, b), (aux_a, aux_b), pointers, (place, k_at), PARAMS, OP)
        # (2.2) Multiply in the accumulator's type, and add.
        acc = reduce_step(acc, x, y, k_at, PARAMS, OP)

    # (3) Sum over the axes of k, apply C and the epilogue, store.
    acc = sum_over_axes(acc, PARAMS, OVER_AXIS)
    device.finish(acc, (c, d, pointers), (alpha, beta), (place,), PARAMS, stored_offsets, stored_mask, OP)

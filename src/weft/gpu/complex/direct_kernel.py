"""The kernel of complex products where the operands lie: each element is read as a pair, and multiplied in registers.

An output tile is two accumulators, of real and of imaginary parts. Where k goes one by one they are added to lane by
lane, else four real products of tiles are added by matrix instructions. D is written interleaved.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import ANY, pdl_begin
from weft.gpu.common.tiles import a_mask, a_offsets, b_mask, b_offsets, block_mask, block_offsets, settled, tile_coords
from weft.gpu.complex.parts import finish_parts, load_parts, store_parts


@triton.jit
def multiply_add(re, im, a, b, place, k_block, PARAMS: tl.constexpr, OP: tl.constexpr):
    """Both accumulators of an output tile with the products of one step along k added."""
    TILE_K: tl.constexpr = PARAMS.k.tile
    TILE_A: tl.constexpr = (PARAMS.m.tile, TILE_K)
    TILE_B: tl.constexpr = (TILE_K, PARAMS.n.tile)
    A_KIND: tl.constexpr = OP.a_kind
    B_KIND: tl.constexpr = OP.b_kind
    PRODUCT: tl.constexpr = OP.compute
    PRECISION: tl.constexpr = OP.precision
    # (2.1) Load a TILE_M x TILE_K tile of A and a TILE_K x TILE_N tile of B, both parts of each.
    at_a = (place[0], place[1], k_block)
    at_b = (place[0], place[2], k_block)
    offsets_a = tl.broadcast_to(a_offsets(at_a, PARAMS, 0), TILE_A)
    offsets_b = tl.broadcast_to(b_offsets(at_b, PARAMS, 1), TILE_B)
    x_re, x_im = load_parts(a, offsets_a, tl.broadcast_to(a_mask(at_a, PARAMS, ANY), TILE_A), A_KIND, 2)
    y_re, y_im = load_parts(b, offsets_b, tl.broadcast_to(b_mask(at_b, PARAMS, ANY), TILE_B), B_KIND, 2)
    x_re = x_re.to(PRODUCT)
    x_im = (-x_im if OP.conjugate[0] else x_im).to(PRODUCT)
    y_re = y_re.to(PRODUCT)
    y_im = (-y_im if OP.conjugate[1] else y_im).to(PRODUCT)

    # (2.2) Add the four products.
    if TILE_K == 1:
        re += x_re * y_re
        im += x_re * y_im
        re -= x_im * y_im
        im += x_im * y_re
    elif PARAMS.apart:
        re += tl.dot(x_re, y_re, input_precision=PRECISION, out_dtype=PRODUCT)
        im += tl.dot(x_re, y_im, input_precision=PRECISION, out_dtype=PRODUCT)
        re -= tl.dot(x_im, y_im, input_precision=PRECISION, out_dtype=PRODUCT)
        im += tl.dot(x_im, y_re, input_precision=PRECISION, out_dtype=PRODUCT)
    else:
        re = tl.dot(x_re, y_re, re, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_re, y_im, im, input_precision=PRECISION, out_dtype=PRODUCT)
        re = tl.dot(-x_im, y_im, re, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_im, y_re, im, input_precision=PRECISION, out_dtype=PRODUCT)
    return settled(re), settled(im)


@triton.jit(do_not_specialize=["alpha", "alpha_im", "beta", "beta_im"])
def complex_direct_kernel(
    a,
    b,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    alpha_im: tl.int64,
    beta: tl.int64,
    beta_im: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # GettParams
    OP: tl.constexpr,  # ComplexOperation
    UNROLLED: tl.constexpr,  # steps along k that are written out
):
    """D = epilogue(alpha * sum over k of A * B + beta * c_fn(C)), one output tile for each program."""
    pdl_begin()
    TILE: tl.constexpr = (PARAMS.m.tile, PARAMS.n.tile)
    STORED: tl.constexpr = PARAMS.stored
    STEPS: tl.constexpr = PARAMS.k.blocks
    D_KIND: tl.constexpr = OP.d_kind

    # (1) Find this program's output tile.
    program = tl.program_id(0)
    if PARAMS.wide_index:
        program = program.to(tl.int64)
    place = tile_coords(program, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)

    # (2) Sum over k.
    re = tl.zeros(TILE, dtype=OP.compute)
    im = tl.zeros(TILE, dtype=OP.compute)
    if PARAMS.k.tile == 1 and STEPS <= UNROLLED:
        for step in tl.static_range(STEPS):
            k_block = program * 0 + step
            re, im = multiply_add(re, im, a, b, place, k_block, PARAMS, OP)
    else:
        for step in range(STEPS):
            k_block = step.to(tl.int64) if PARAMS.wide_index else step
            re, im = multiply_add(re, im, a, b, place, k_block, PARAMS, OP)

    # (3) See every axis of the tile as a dimension of its own; scale, add C, apply the epilogue and store.
    re, im = finish_parts(
        tl.reshape(re, STORED), tl.reshape(im, STORED), (c, pointers), (alpha, alpha_im, beta, beta_im), place, PARAMS,
        OP, block_offsets, block_mask, ANY,
    )  # fmt: skip
    mask = tl.broadcast_to(block_mask(place, PARAMS, ANY), STORED)
    offsets = tl.broadcast_to(block_offsets(place, PARAMS, 3), STORED)
    store_parts(d, re, im, offsets, mask, OP.result, D_KIND, len(STORED))

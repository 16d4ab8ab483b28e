"""The kernel of complex products where the operands lie: each element is read as a pair, and multiplied in registers.

A block of D is two accumulators, of real and of imaginary parts. Where k goes one by one they are added to lane by
lane, else four real products of tiles are added by matrix instructions. D is written as pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import ANY, scalar
from weft.gpu.common.operand_tile import a_mask, a_offsets, b_mask, b_offsets
from weft.gpu.common.output_tile import block_mask, block_offsets
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.common.rasterization import tile_coords
from weft.gpu.complex.pairs_kernel import applied, aux_parts, ended, read_pair, store_pair, times


@triton.jit
def added(
    re, im, a, b, place, k_block, PARAMS: tl.constexpr, KINDS: tl.constexpr, CONJUGATE: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Both accumulators of a block of D with the products of one block of k added."""
    TILE_K: tl.constexpr = PARAMS.k.tile
    TILE_A: tl.constexpr = (PARAMS.m.tile, TILE_K)
    TILE_B: tl.constexpr = (TILE_K, PARAMS.n.tile)
    KIND_OF_A: tl.constexpr = KINDS[0]
    KIND_OF_B: tl.constexpr = KINDS[1]
    # (1) Load a TILE_M x TILE_K tile of A and a TILE_K x TILE_N tile of B, both parts of each.
    at_a = (place[0], place[1], k_block)
    at_b = (place[0], place[2], k_block)
    offsets_a = tl.broadcast_to(a_offsets(at_a, PARAMS, 0), TILE_A)
    offsets_b = tl.broadcast_to(b_offsets(at_b, PARAMS, 1), TILE_B)
    x_re, x_im = read_pair(a, offsets_a, tl.broadcast_to(a_mask(at_a, PARAMS, ANY), TILE_A), KIND_OF_A, 2)
    y_re, y_im = read_pair(b, offsets_b, tl.broadcast_to(b_mask(at_b, PARAMS, ANY), TILE_B), KIND_OF_B, 2)
    x_re = x_re.to(PRODUCT)
    x_im = (-x_im if CONJUGATE[0] else x_im).to(PRODUCT)
    y_re = y_re.to(PRODUCT)
    y_im = (-y_im if CONJUGATE[1] else y_im).to(PRODUCT)

    # (2) Add the four products.
    if TILE_K == 1:
        re += x_re * y_re
        im += x_re * y_im
        re -= x_im * y_im
        im += x_im * y_re
    else:
        re = tl.dot(x_re, y_re, re, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_re, y_im, im, input_precision=PRECISION, out_dtype=PRODUCT)
        re = tl.dot(-x_im, y_im, re, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_im, y_re, im, input_precision=PRECISION, out_dtype=PRODUCT)
    return re, im


@triton.jit
def finish_pair(
    re, im, c, d, pointers, alpha, alpha_im, beta, beta_im, place, PARAMS: tl.constexpr, KINDS: tl.constexpr,
    C_FN: tl.constexpr, C_COMPLEX: tl.constexpr, EPILOGUE: tl.constexpr, PARTS: tl.constexpr, AUX: tl.constexpr,
    PRODUCT: tl.constexpr, RESULT: tl.constexpr,
):  # fmt: skip
    """Scale a block of D, add C, apply the epilogue and store, every axis of the block as a dimension of its own."""
    STORED: tl.constexpr = PARAMS.stored
    RANK: tl.constexpr = len(PARAMS.stored)
    KIND_OF_C: tl.constexpr = KINDS[2]
    KIND_OF_D: tl.constexpr = KINDS[3]
    re = tl.reshape(re, STORED)
    im = tl.reshape(im, STORED)
    re, im = times(re, im, scalar(alpha, PRODUCT), scalar(alpha_im, PRODUCT))
    mask = tl.broadcast_to(block_mask(place, PARAMS, ANY), STORED)
    if c is not None:
        offsets_c = tl.broadcast_to(block_offsets(place, PARAMS, 2), STORED)
        c_re, c_im = read_pair(c, offsets_c, mask, KIND_OF_C, RANK)
        c_re = c_re.to(PRODUCT)
        c_im = c_im.to(PRODUCT)
        if C_FN is not None:
            AUX_C: tl.constexpr = AUX.c
            aux_c = aux_parts(pointers, place, AUX_C, PARAMS, RANK, block_offsets, block_mask)
            c_re, c_im = applied(C_FN, C_COMPLEX, False, c_re, c_im, aux_c)
            c_re = c_re.to(PRODUCT)
            c_im = c_im.to(PRODUCT)
        c_re, c_im = times(c_re, c_im, scalar(beta, PRODUCT), scalar(beta_im, PRODUCT))
        re += c_re
        im += c_im
    if EPILOGUE is not None:
        re, im = ended(re, im, pointers, place, EPILOGUE, False, PARTS, AUX, PARAMS, STORED, block_offsets, block_mask)
    offsets_d = tl.broadcast_to(block_offsets(place, PARAMS, 3), STORED)
    store_pair(d, re, im, offsets_d, mask, RESULT, KIND_OF_D, RANK)


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
    PARAMS: tl.constexpr,  # gett.params.GettParams
    KINDS: tl.constexpr,  # how A, B, C and D are accessed, see `pairs`
    CONJUGATE: tl.constexpr,  # A, B
    PRODUCT: tl.constexpr,  # real type of products and sums
    RESULT: tl.constexpr,  # and of D
    PRECISION: tl.constexpr,
    UNROLLED: tl.constexpr,  # the loop over k, so that all its loads may go ahead
    C_FN: tl.constexpr,
    C_COMPLEX: tl.constexpr,  # whether that yields complex values
    EPILOGUE: tl.constexpr,
    PARTS: tl.constexpr,  # of its results, see `pairs.parts_of`
    AUX: tl.constexpr,  # aux_operands.AuxParams
):
    pdl_begin()
    TILE: tl.constexpr = (PARAMS.m.tile, PARAMS.n.tile)
    STEPS: tl.constexpr = PARAMS.k.blocks

    # (1) Find this program's block of D.
    program = tl.program_id(0)
    if PARAMS.wide_index:
        program = program.to(tl.int64)
    place = tile_coords(program, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)

    # (2) Sum over k.
    re = tl.zeros(TILE, dtype=PRODUCT)
    im = tl.zeros(TILE, dtype=PRODUCT)
    if UNROLLED:
        for step in tl.static_range(STEPS):
            k_block = program * 0 + step
            re, im = added(re, im, a, b, place, k_block, PARAMS, KINDS, CONJUGATE, PRODUCT, PRECISION)
    else:
        for step in range(STEPS):
            k_block = step.to(tl.int64) if PARAMS.wide_index else step
            re, im = added(re, im, a, b, place, k_block, PARAMS, KINDS, CONJUGATE, PRODUCT, PRECISION)

    # (3) Scale, add C, apply the epilogue and store.
    finish_pair(
        re, im, c, d, pointers, alpha, alpha_im, beta, beta_im, place, PARAMS, KINDS, C_FN, C_COMPLEX, EPILOGUE, PARTS,
        AUX, PRODUCT, RESULT,
    )  # fmt: skip

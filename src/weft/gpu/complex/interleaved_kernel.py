"""The kernel that moves interleaved complex numbers and computes with them: one block of D for each program.

It is the permutation kernel for complex elements: read along the source's run, written along D's, each element as its
real and its imaginary part.

    X, or the products of parts that it holds  ->  (1) parts, in D's order  ->  (2) functions, alpha, C
                                               ->  (3) D: elements, 2x2 real matrices, or planes of parts
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import ANY, pdl_begin, spread_mask, spread_offsets
from weft.gpu.complex.parts import apply, finish_parts, load_aux, load_parts, store_parts
from weft.gpu.permute.kernel import permute_dims


@triton.jit
def block_offsets(block, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a block as D has it."""
    R: tl.constexpr = PARAMS.r
    return spread_offsets(block, R, TENSOR, len(PARAMS.stored), PARAMS.wide[TENSOR])


@triton.jit
def block_mask(block, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    R: tl.constexpr = PARAMS.r
    return spread_mask(block, R, TENSOR, len(PARAMS.stored))


@triton.jit
def load_x(x, block, PARAMS: tl.constexpr, OP: tl.constexpr):
    """(1.1) Both parts of a block of X, read along its own run."""
    R: tl.constexpr = PARAMS.r_of_x
    TILE: tl.constexpr = PARAMS.tile_of_x
    KIND: tl.constexpr = OP.a_kind
    RANK: tl.constexpr = len(TILE)
    offsets = tl.broadcast_to(spread_offsets(block, R, 0, RANK, PARAMS.wide[0]), TILE)
    mask = tl.broadcast_to(spread_mask(block, R, 0, RANK), TILE)
    re, im = load_parts(x, offsets, mask, KIND, RANK)
    if OP.conjugate[0]:
        im = -im
    return re, im


@triton.jit
def combine_planar(re, im, x, block, PARAMS: tl.constexpr, OP: tl.constexpr):
    """(1.2) X holds complex products with the other factor's real part, then with its imaginary part: add them."""
    UNIT: tl.constexpr = 2 if OP.a_kind == "pairs" else 1  # elements of the pointer in one of X
    by_im, im_by_im = load_x(x + PARAMS.planar_stride * UNIT, block, PARAMS, OP)
    if PARAMS.other_conjugated:
        re += im_by_im
        im -= by_im
    else:
        re -= im_by_im
        im += by_im
    return re, im


@triton.jit
def combine_three_m(re_re, x, block, PARAMS: tl.constexpr, OP: tl.constexpr):
    """(1.2) X holds the real products p = re re, q = im im and s = (re + im) (re + im): p - q and s - p - q."""
    im_im, _ = load_x(x + PARAMS.three_m_stride, block, PARAMS, OP)
    every, _ = load_x(x + 2 * PARAMS.three_m_stride, block, PARAMS, OP)
    im = every - re_re - im_im
    return re_re - im_im, im


@triton.jit
def store_form(d, re, im, block, PARAMS: tl.constexpr, OP: tl.constexpr):
    """(3) Write a block in D's order, in the form that D has: see `interleaved.Form`."""
    STORED: tl.constexpr = PARAMS.stored
    RANK: tl.constexpr = len(STORED)
    KIND: tl.constexpr = OP.d_kind
    RESULT: tl.constexpr = OP.result
    NEXT: tl.constexpr = PARAMS.part_stride
    offsets = tl.broadcast_to(block_offsets(block, PARAMS, 3), STORED)
    mask = tl.broadcast_to(block_mask(block, PARAMS, ANY), STORED)
    if PARAMS.form == "plain":
        store_parts(d, re, im, offsets, mask, RESULT, KIND, RANK)
    elif PARAMS.form == "planar" or PARAMS.form == "three_m":
        tl.store(d + offsets, re.to(RESULT), mask=mask)
        tl.store(d + offsets + NEXT, im.to(RESULT), mask=mask)
        if PARAMS.form == "three_m":
            tl.store(d + offsets + 2 * NEXT, (re + im).to(RESULT), mask=mask)
    elif PARAMS.form == "along_k":
        factor_re = re
        factor_im = -im
        if PARAMS.other_conjugated:
            factor_re = -factor_re
            factor_im = -factor_im
        store_parts(d, re, factor_im, offsets, mask, RESULT, KIND, RANK)
        store_parts(d, im, factor_re, offsets + NEXT, mask, RESULT, KIND, RANK)
    else:
        store_parts(d, re, im, offsets, mask, RESULT, KIND, RANK)
        if PARAMS.other_conjugated:
            store_parts(d, im, -re, offsets + NEXT, mask, RESULT, KIND, RANK)
        else:
            store_parts(d, -im, re, offsets + NEXT, mask, RESULT, KIND, RANK)


@triton.jit(do_not_specialize=["alpha", "alpha_im", "beta", "beta_im"])
def interleaved_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    alpha_im: tl.int64,
    beta: tl.int64,
    beta_im: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # params.InterleavedParams
    OP: tl.constexpr,  # ComplexOperation, of X in the place of A
):
    """D = epilogue(alpha * fn(X) + beta * c_fn(C)), one block for each program."""
    pdl_begin()
    ORDER: tl.constexpr = PARAMS.order
    AUX_X: tl.constexpr = OP.aux.a
    block = tl.program_id(0)
    if PARAMS.wide_index:
        block = block.to(tl.int64)

    # (1) Read each element of the block once, add products of parts, and bring it to D's order.
    re, im = load_x(x, block, PARAMS, OP)
    if PARAMS.planar_stride > 0:
        re, im = combine_planar(re, im, x, block, PARAMS, OP)
    if PARAMS.three_m_stride > 0:
        re, im = combine_three_m(re, x, block, PARAMS, OP)
    re = permute_dims(re, ORDER).to(OP.compute)
    im = permute_dims(im, ORDER).to(OP.compute)

    # (2) Apply the function; then alpha, what is added, and the epilogue.
    if OP.fn is not None:
        aux_args = load_aux(pointers, block, AUX_X, PARAMS, block_offsets, block_mask)
        re, im = apply(OP.fn, OP.to_complex[0], OP.of_reals[0], re, im, aux_args)
    re, im = finish_parts(
        re, im, (c, pointers), (alpha, alpha_im, beta, beta_im), block, PARAMS, OP, block_offsets, block_mask, 2
    )

    # (3) Write it.
    store_form(d, re, im, block, PARAMS, OP)

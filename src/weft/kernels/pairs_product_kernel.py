"""The kernel of complex products of operands in halves: real and imaginary parts lie as matrices of their own.

A block of D is two accumulators, of real and of imaginary parts; a step along k adds four real products by matrix
instructions to them. Each tile of parts that is read takes part in two products, so that shared memory gives an
instruction half of what it gives one of a real product with as many accumulators.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.complex_direct_kernel import finish_pair
from weft.kernels.device import batch_offset, load_tile, side_mask, side_offsets
from weft.kernels.matrix_kernel import locate


@triton.jit(do_not_specialize=["alpha", "alpha_im", "beta", "beta_im"])
def pairs_product_kernel(
    a,  # real parts, and imaginary ones JUMPS[0] elements behind them
    b,
    c,  # complex; None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    alpha_im: tl.int64,
    beta: tl.int64,
    beta_im: tl.int64,
    CUT: tl.constexpr,  # matrix.MatrixCut
    KINDS: tl.constexpr,  # how A, B, C and D are accessed, see `pairs_elements`
    JUMPS: tl.constexpr,  # A, B
    PRODUCT: tl.constexpr,  # real type of products and sums
    RESULT: tl.constexpr,  # and of D
    PRECISION: tl.constexpr,
):
    M: tl.constexpr = CUT.m
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    BATCH: tl.constexpr = CUT.batch
    TILE: tl.constexpr = (M.tile, N.tile)
    rows = tl.arange(0, M.tile)
    columns = tl.arange(0, N.tile)
    depth = tl.arange(0, K.tile)

    # (1) Find this program's block of D, the rows of A and the columns of B that it needs.
    program = tl.program_id(0)
    if CUT.wide_index:
        program = program.to(tl.int64)
    place = locate(program, M.blocks, N.blocks, CUT.group)
    a_rows = a + batch_offset(place[0], BATCH, 0, CUT.wide[0]) + side_offsets(place[1], rows, M, 0, CUT.wide[0])
    b_columns = b + batch_offset(place[0], BATCH, 1, CUT.wide[1]) + side_offsets(place[2], columns, N, 1, CUT.wide[1])
    row_mask = side_mask(place[1], rows, M)
    column_mask = side_mask(place[2], columns, N)

    re = tl.zeros(TILE, dtype=PRODUCT)
    im = tl.zeros(TILE, dtype=PRODUCT)
    for step in range(K.blocks):
        k_block = step.to(tl.int64) if CUT.wide_index else step
        # (2.1) Load both parts of a TILE_M x TILE_K tile of A and of a TILE_K x TILE_N tile of B.
        at_a = a_rows[:, None] + side_offsets(k_block, depth, K, 0, CUT.wide[0])[None, :]
        at_b = b_columns[None, :] + side_offsets(k_block, depth, K, 1, CUT.wide[1])[:, None]
        inside = side_mask(k_block, depth, K)
        x_re = load_tile(at_a, row_mask, inside, M.exact, K.exact)
        x_im = load_tile(at_a + JUMPS[0], row_mask, inside, M.exact, K.exact)
        y_re = load_tile(at_b, inside, column_mask, K.exact, N.exact)
        y_im = load_tile(at_b + JUMPS[1], inside, column_mask, K.exact, N.exact)

        # (2.2) Add the four products.
        re = tl.dot(x_re, y_re, re, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_re, y_im, im, input_precision=PRECISION, out_dtype=PRODUCT)
        im = tl.dot(x_im, y_re, im, input_precision=PRECISION, out_dtype=PRODUCT)
        re = tl.dot(-x_im, y_im, re, input_precision=PRECISION, out_dtype=PRODUCT)

    # (3) Scale, add C and store.
    finish_pair(
        re, im, c, d, None, alpha, alpha_im, beta, beta_im, place, CUT, KINDS, None, False, None, None, None, PRODUCT,
        RESULT,
    )  # fmt: skip

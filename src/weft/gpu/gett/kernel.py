"""The direct kernel on matrix instructions: operands gathered where they lie, one output tile per program.

With few output tiles and a long k the sum is split: each program leaves its partial in a workspace, and a second kernel
adds these in a fixed order and finishes the tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common import tiles
from weft.gpu.common.device import dim_mask, dim_offsets, gathered, gathered_step, load_tile, pdl_begin, tf32_digits


@triton.jit
def load_tiles(starts, k_block, depth, PARAMS: tl.constexpr):
    """A TILE_M x TILE_K tile of A and a TILE_K x TILE_N tile of B, and which indices of k exist, in either order.

    `starts` is what `rows_and_columns` gives.
    """
    a_rows, b_columns, row_mask, column_mask = starts
    a_depth = dim_offsets(k_block, depth, PARAMS.k_of_a, 0, PARAMS.wide[0])
    b_depth = dim_offsets(k_block, depth, PARAMS.k, 1, PARAMS.wide[1])
    a_inside = dim_mask(k_block, depth, PARAMS.k_of_a)
    b_inside = dim_mask(k_block, depth, PARAMS.k)
    x = load_tile(a_rows[:, None] + a_depth[None, :], row_mask, a_inside, PARAMS.m.exact, PARAMS.k.exact)
    y = load_tile(b_columns[None, :] + b_depth[:, None], b_inside, column_mask, PARAMS.k.exact, PARAMS.n.exact)
    return x, y, a_inside, b_inside


@triton.jit
def factor_of_a(x, inside, known, pointers, place, PARAMS: tl.constexpr, OP: tl.constexpr):
    """The factor from a tile of A at (batch, m, k): its function applied in the product type, k in B's order.

    `known` is what its function takes that does not move along k. Products past the end of k must stay zero.
    """
    K: tl.constexpr = PARAMS.k
    x = tiles.converted(x, OP.product)
    if OP.a_fn is not None:
        beside = gathered_step(known, pointers, place, OP.aux.a, K, PARAMS, tiles.a_offsets, tiles.a_mask)
        x = OP.a_fn(x, *beside).to(OP.product)
        if PARAMS.masked[0]:
            x = tl.where(inside[None, :], x, 0)
    if PARAMS.transposed[0]:
        x = tf32_digits(x)
    if PARAMS.swap_k:
        OUTER: tl.constexpr = PARAMS.k_of_a.axes[0].tile
        INNER: tl.constexpr = PARAMS.k_of_a.axes[1].tile
        x = tl.reshape(tl.permute(tl.reshape(x, (PARAMS.m.tile, OUTER, INNER)), (0, 2, 1)), (PARAMS.m.tile, K.tile))
    return x


@triton.jit
def factor_of_b(y, inside, known, pointers, place, PARAMS: tl.constexpr, OP: tl.constexpr):
    """The factor from a tile of B, at (batch, n, k)."""
    y = tiles.converted(y, OP.product)
    if OP.b_fn is not None:
        beside = gathered_step(known, pointers, place, OP.aux.b, PARAMS.k, PARAMS, tiles.b_offsets, tiles.b_mask)
        y = OP.b_fn(y, *beside).to(OP.product)
        if PARAMS.masked[1]:
            y = tl.where(inside[:, None], y, 0)
    if PARAMS.transposed[1]:
        y = tf32_digits(y)
    return y


@triton.jit
def multiply_add(acc, x, y, PARAMS: tl.constexpr, OP: tl.constexpr, COMPUTED: tl.constexpr):
    """The accumulator with the products of a step along k; `COMPUTED` where A comes in registers.

    fp8 products of one step may be added with fewer digits, those of different steps may not.
    """
    ACCUMULATE: tl.constexpr = OP.accumulate
    if PARAMS.widen:
        x = x.to(ACCUMULATE)
        y = y.to(ACCUMULATE)
    if PARAMS.apart:
        acc += tl.dot(x, y, input_precision=OP.precision, out_dtype=ACCUMULATE)
    else:
        acc = tl.dot(x, y, acc, input_precision=OP.precision, max_num_imprecise_acc=PARAMS.k.tile, out_dtype=ACCUMULATE)
    return tiles.settled(acc) if COMPUTED else acc


@triton.jit
def sum_of_steps(steps, operands, starts, known, pointers, place, PARAMS: tl.constexpr, OP: tl.constexpr):
    """The products of the steps along k from the first to before the last, added one after the other from zero.

    `starts` is what `rows_and_columns` gives. `known` is what the functions of A and B take that does not move along k.
    """
    batch_at, m_at, n_at = place
    # Where something is computed of A, it is stored in shared memory before B, see `smem_order`. In more than one step
    # loads run ahead in shared memory, and a function of nothing but A is applied to what is read from there.
    A_COMPUTED: tl.constexpr = OP.a_fn is not None or PARAMS.transposed[0] or PARAMS.swap_k
    B_COMPUTED: tl.constexpr = OP.b_fn is not None or PARAMS.transposed[1]
    HELD: tl.constexpr = A_COMPUTED and PARAMS.k.blocks == 1
    IN_TURN: tl.constexpr = HELD or (B_COMPUTED and (PARAMS.masked[0] or PARAMS.swap_k))
    depth = tl.arange(0, PARAMS.k.tile)
    acc = tl.zeros((PARAMS.m.tile, PARAMS.n.tile), dtype=OP.accumulate)
    for step in range(steps[0], steps[1]):
        # (3.1) Load tiles of A and B, each along its own contiguous mode.
        k_at = step.to(tl.int64) if PARAMS.wide_index else step
        x, y, a_inside, b_inside = load_tiles(starts, k_at, depth, PARAMS)
        # (3.2) Apply A's function and bring A's order of k to B's.
        A_CAST: tl.constexpr = x.dtype != OP.product
        x = factor_of_a(x, a_inside, known[0], pointers, (batch_at, m_at, k_at), PARAMS, OP)
        if HELD:
            x = tiles.materialize(x)
        if IN_TURN:
            tiles.sync_for_wgmma()
        # (3.3) Apply B's function.
        y = factor_of_b(y, b_inside, known[1], pointers, (batch_at, n_at, k_at), PARAMS, OP)
        if HELD:
            y = tiles.materialize(y)
        # (3.4) Multiply and accumulate.
        acc = multiply_add(acc, x, y, PARAMS, OP, A_COMPUTED or A_CAST or PARAMS.widen)
    return acc


@triton.jit
def sum_of_products(operands, lanes, pointers, program, place, PARAMS: tl.constexpr, OP: tl.constexpr):
    """The accumulator of one program: its output tile (batch, m, n), or its part of the sum.

    `operands` are (A, B), `lanes` the indices along m and n within a tile. A sum in runs is the sum of what each run
    adds up to, as if programs shared it.
    """
    batch_at, m_at, n_at = place
    rows, columns = lanes

    # (2) Fix the steps along k, and the rows of A and the columns of B that it needs.
    first_step = 0
    last_step = PARAMS.k.blocks
    if PARAMS.splits > 1:
        first_step = program // PARAMS.blocks * PARAMS.steps
        last_step = tl.minimum(first_step + PARAMS.steps, PARAMS.k.blocks)
    starts = tiles.rows_and_columns(operands[0], operands[1], place, rows, columns, PARAMS)
    aux_a = gathered(pointers, (batch_at, m_at, 0), OP.aux.a, PARAMS, tiles.a_offsets, tiles.a_mask)
    aux_b = gathered(pointers, (batch_at, n_at, 0), OP.aux.b, PARAMS, tiles.b_offsets, tiles.b_mask)
    known = (aux_a, aux_b)
    if PARAMS.runs > 1:
        acc = tl.zeros((PARAMS.m.tile, PARAMS.n.tile), dtype=OP.accumulate)
        for run in range(0, PARAMS.runs):
            steps = (run * PARAMS.steps, tl.minimum((run + 1) * PARAMS.steps, PARAMS.k.blocks))
            acc += sum_of_steps(steps, operands, starts, known, pointers, place, PARAMS, OP)
    else:
        acc = sum_of_steps((first_step, last_step), operands, starts, known, pointers, place, PARAMS, OP)
    return acc


@triton.jit(do_not_specialize=["alpha", "beta"])
def gett_kernel(
    a,
    b,
    c,  # None where nothing is added, or the sum is split
    d,  # None where partials are stored
    partials,  # None where they are not
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # GettParams
    OP: tl.constexpr,  # KernelOperation
):
    """D = epilogue(alpha * sum over k of a_fn(A) * b_fn(B) + beta * c_fn(C)), one output tile for each program."""
    pdl_begin()
    lanes = (tl.arange(0, PARAMS.m.tile), tl.arange(0, PARAMS.n.tile))
    # (1) Find this program's output tile and its part of the sum.
    program = tl.program_id(0)
    if PARAMS.wide_index:
        program = program.to(tl.int64)
    place = tiles.tile_coords(program % PARAMS.blocks, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)
    acc = sum_of_products((a, b), lanes, pointers, program, place, PARAMS, OP)
    # (4) Leave the partial, or finish the output tile.
    if PARAMS.splits > 1:
        tl.store(partials + tiles.partial_offsets(program, PARAMS, 0, PARAMS.n.tile), acc)
    else:
        tiles.store_block(acc, (c, d, pointers), (alpha, beta), place, PARAMS, OP)

"""The register-blocked kernel: any algebra, lane by lane, each thread with a small tile of D in its registers.

The output tile is one tensor (RM, RN, PM, PN), or several where a dim is no power of two, whose two last dimensions are
the threads and the two first the registers of each: Triton gives threads to the last dimensions first. Tiles of A and B
pass through shared memory, and every thread reads the rows and columns that it needs of a few steps of k at once, from
where its neighbours read theirs; products of one step are then free of anything but arithmetic. Past the end
of k tiles of sums of products are zero; of other algebras what lies there is the identity, in one last step of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.addresses import ANY, dim_mask, dim_offsets
from weft.gpu.common.device import gathered, gathered_step, load_tile
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.common.tiles import (
    a_mask,
    a_offsets,
    block_mask,
    block_offsets,
    partial_offsets,
    rows_and_columns,
    store_block,
    tile_coords,
    tile_mask,
    tile_offsets,
)
from weft.gpu.semiring.steps import block_of, step_of, value_of


@triton.jit
def n_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, (batch, n, k), rows along n."""
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    BATCH: tl.constexpr = PARAMS.batch
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return tile_offsets(place, N, K, BATCH, TENSOR, WIDE)


@triton.jit
def n_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    BATCH: tl.constexpr = PARAMS.batch
    return tile_mask(place, N, K, BATCH, TENSOR)


@triton.jit
def load_step(starts, aux, place, PARAMS: tl.constexpr, OP: tl.constexpr, WHOLE: tl.constexpr):
    """Tiles of A and B at (batch, m, n, k), functions applied in the product type, in the accumulator's type.

    Past the end of k they are zero, after functions too if `PARAMS.zeros`. `WHOLE`: the tile ends within k.
    `starts` is what `rows_and_columns` gives, rows of A and of B as columns; `aux` the pointers of auxiliary operands
    and what is known of those of A and of B.
    """
    a, b, row_mask, column_mask = starts
    pointers, aux_a, aux_b = aux
    batch_block, m_block, n_block, k_block = place
    A_FN: tl.constexpr = OP.a_fn
    B_FN: tl.constexpr = OP.b_fn
    PRODUCT: tl.constexpr = OP.product
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = OP.aux.a
    AUX_B: tl.constexpr = OP.aux.b
    depth = tl.arange(0, K.tile)
    inside = dim_mask(k_block, depth, K)
    at = a + dim_offsets(k_block, depth, K, 0, PARAMS.wide[0])[None, :]
    bt = b + dim_offsets(k_block, depth, K, 1, PARAMS.wide[1])[None, :]
    x = load_tile(at, row_mask, inside, M.exact, WHOLE).to(PRODUCT)
    y = load_tile(bt, column_mask, inside, N.exact, WHOLE).to(PRODUCT)
    if A_FN is not None:
        here = (batch_block, m_block, k_block)
        x = A_FN(x, *gathered_step(aux_a, pointers, here, AUX_A, K, PARAMS, a_offsets, a_mask)).to(PRODUCT)
    if B_FN is not None:
        here = (batch_block, n_block, k_block)
        y = B_FN(y, *gathered_step(aux_b, pointers, here, AUX_B, K, PARAMS, n_offsets, n_mask)).to(PRODUCT)
    x = tl.broadcast_to(x, (M.tile, K.tile))
    y = tl.broadcast_to(y, (N.tile, K.tile))
    if (PARAMS.zeros and not WHOLE) and (A_FN is not None or B_FN is not None):
        x = tl.where(inside[None, :], x, 0)
        y = tl.where(inside[None, :], y, 0)
    return x.to(OP.accumulate), y.to(OP.accumulate), inside


@triton.jit
def reduce_tile(
    operands, pointers, program, place, PARAMS: tl.constexpr, OP: tl.constexpr, EXP: tl.constexpr, STAGES: tl.constexpr
):
    """The accumulators of one program's output tile (batch, m, n), or of its part of the reduction.

    `operands` are (A, B).
    """
    batch_block, m_block, n_block = place
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = OP.aux.a
    AUX_B: tl.constexpr = OP.aux.b
    rows = tl.arange(0, PARAMS.m.tile)
    columns = tl.arange(0, PARAMS.n.tile)
    first_step = 0
    last_step = PARAMS.alike_steps
    if PARAMS.splits > 1:
        first_step = program // PARAMS.blocks * PARAMS.steps
        last_step = tl.minimum(first_step + PARAMS.steps, PARAMS.alike_steps)

    # (1) Fix the rows of A and of B that it needs.
    a_rows, b_rows, row_mask, column_mask = rows_and_columns(operands[0], operands[1], place, rows, columns, PARAMS)
    starts = (a_rows[:, None], b_rows[:, None], row_mask, column_mask)
    aux_a = gathered(pointers, (batch_block, m_block, 0), AUX_A, PARAMS, a_offsets, a_mask)
    aux_b = gathered(pointers, (batch_block, n_block, 0), AUX_B, PARAMS, n_offsets, n_mask)
    aux = (pointers, aux_a, aux_b)

    # (2) Steps along k that are alike, then the one that overhangs its end.
    WHOLE: tl.constexpr = K.exact or not PARAMS.zeros
    THREADS_M: tl.constexpr = PARAMS.threads_m
    THREADS_N: tl.constexpr = PARAMS.threads_n
    HELD: tl.constexpr = (THREADS_M.held, THREADS_N.held, THREADS_M.threads, THREADS_N.threads)
    accs = ()
    for _ in tl.static_range(THREADS_M.subtiles * THREADS_N.subtiles):
        accs += (tl.full(HELD, OP.identity, dtype=OP.accumulate),)
    if EXP is not None:
        for _ in tl.static_range(THREADS_M.subtiles * THREADS_N.subtiles):
            accs += (tl.zeros(HELD, dtype=OP.accumulate),)
    for step in tl.range(first_step, last_step, num_stages=STAGES):
        k_block = step.to(tl.int64) if PARAMS.wide_index else step
        here = (batch_block, m_block, n_block, k_block)
        x, y, inside = load_step(starts, aux, here, PARAMS, OP, WHOLE)
        accs = step_of(accs, x, y, inside, PARAMS, OP, EXP, False)
    if PARAMS.alike_steps < K.blocks:
        for step in tl.range(PARAMS.alike_steps, tl.minimum(first_step + PARAMS.steps, K.blocks), num_stages=1):
            k_block = step.to(tl.int64) if PARAMS.wide_index else step
            here = (batch_block, m_block, n_block, k_block)
            x, y, inside = load_step(starts, aux, here, PARAMS, OP, False)
            accs = step_of(accs, x, y, inside.to(tl.int32), PARAMS, OP, EXP, True)
    return accs


@triton.jit
def store_accs(
    accs, tensors, partials, factors, program, place, PARAMS: tl.constexpr, OP: tl.constexpr, LOG: tl.constexpr
):
    """(3) Leave the split-K partials, or finish the output tile, subtile by subtile.

    `tensors` and `factors` are those of `device.finish`.
    """
    batch_block, m_block, n_block = place
    THREADS_M: tl.constexpr = PARAMS.threads_m
    THREADS_N: tl.constexpr = PARAMS.threads_n
    SUBTILE: tl.constexpr = PARAMS.subtile
    for subtile in tl.static_range(THREADS_M.subtiles * THREADS_N.subtiles):
        block = block_of(value_of(accs, subtile, LOG), THREADS_M, THREADS_N)
        m_subtile = m_block * THREADS_M.slots + subtile // THREADS_N.subtiles
        n_subtile = n_block * THREADS_N.slots + subtile % THREADS_N.subtiles
        if PARAMS.splits > 1:
            partial = (batch_block * SUBTILE.m.blocks + m_subtile) * SUBTILE.n.blocks + n_subtile
            partial += program // PARAMS.blocks * SUBTILE.blocks
            tl.store(partials + partial_offsets(partial, SUBTILE, 0, SUBTILE.n.tile), block)
        else:
            here = (batch_block, m_subtile, n_subtile)
            store_block(block, tensors, factors, here, SUBTILE, OP)


@triton.jit(do_not_specialize=["alpha", "beta"])
def semiring_kernel(
    a,
    b,
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    partials,  # None where it is not
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # SemiringParams
    OP: tl.constexpr,  # KernelOperation
    EXP: tl.constexpr,  # and LOG: where log(exp(p) + exp(q)) reduces and is computed by a sum of exponentials
    LOG: tl.constexpr,
    STAGES: tl.constexpr,
):
    """D = reduce over k of combine(A, B); where D is guarded, only the output tiles with a mark."""
    pdl_begin()
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    program = tl.program_id(0)
    if PARAMS.wide_index:
        program = program.to(tl.int64)
    batch_block, m_block, n_block = tile_coords(program % PARAMS.blocks, M.blocks, N.blocks, PARAMS.group)
    place = (batch_block, m_block, n_block)
    tensors = (c, d, pointers)
    factors = (alpha, beta)
    if PARAMS.guard[0] > 0:
        at = pointers[PARAMS.guard[1]] + tl.broadcast_to(block_offsets(place, PARAMS, PARAMS.guard[0]), PARAMS.stored)
        marks = tl.load(at, mask=tl.broadcast_to(block_mask(place, PARAMS, ANY), PARAMS.stored), other=0)
        if tl.max(tl.reshape(marks.to(tl.int32), (M.tile * N.tile,)), axis=0) != 0:
            accs = reduce_tile((a, b), pointers, program, place, PARAMS, OP, EXP, STAGES)
            store_accs(accs, tensors, partials, factors, program, place, PARAMS, OP, LOG)
    else:
        accs = reduce_tile((a, b), pointers, program, place, PARAMS, OP, EXP, STAGES)
        store_accs(accs, tensors, partials, factors, program, place, PARAMS, OP, LOG)

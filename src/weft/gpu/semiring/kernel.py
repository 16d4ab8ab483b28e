"""The register-blocked kernel: any algebra, lane by lane, each thread with a small tile of D in its registers.

The output tile is one tensor (RM, RN, PM, PN), or several where a dim is no power of two, whose two last dimensions are
the threads and the two first the registers of each: Triton gives threads to the last dimensions first. Tiles of A and B
pass through shared memory, and every thread reads the rows and columns that it needs of a few steps of k at once, from
where its neighbours read theirs; products of one step are then free of anything but arithmetic. Past the end
of k tiles of sums of products are zero; of other algebras what lies there is the identity, in one last step of its own.

In steps along k the products of a tile of A and a tile of B are taken into accumulators, each of which is one subtile
of D. All of this is device code, inlined everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common import tiles
from weft.gpu.common.device import ANY, dim_mask, dim_offsets, gathered, gathered_step, load_tile, pdl_begin

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def columns(tile, LOG: tl.constexpr):
    """A tile (.., 2^LOG) as a tuple of tensors without its last dimension, first to last."""
    W: tl.constexpr = tile.shape[0]
    X: tl.constexpr = tile.shape[1]
    Y: tl.constexpr = tile.shape[2]
    Z: tl.constexpr = tile.shape[3]
    parts = (tile,)
    for level in tl.static_range(LOG):
        halves = ()
        for i in tl.static_range(len(parts)):
            pairs = tl.permute(tl.reshape(parts[i], (W, X, Y, Z, 2, 1 << (LOG - 1 - level))), (0, 1, 2, 3, 5, 4))
            first, second = tl.split(pairs)
            halves += (first, second)
        parts = halves
    found = ()
    for i in tl.static_range(len(parts)):
        found += (tl.reshape(parts[i], (W, X, Y, Z)),)
    return found


@triton.jit
def steps_of(tile, THREADS: tl.constexpr, LOG: tl.constexpr, ROWS: tl.constexpr):
    """A tile (rows, TILE_K) as a tuple: of each subtile, each step along k, as (RM, 1, PM, 1) or (1, RN, 1, PN).

    See `params.ThreadTile` for which rows a thread holds.
    """
    RUNS: tl.constexpr = THREADS.held // THREADS.run
    LAST: tl.constexpr = THREADS.slots * tile.shape[1]
    parts = tl.reshape(tile, (THREADS.slots, RUNS, THREADS.threads, THREADS.run, tile.shape[1]))
    parts = tl.permute(parts, (1, 3, 2, 0, 4))
    if ROWS:
        return columns(tl.reshape(parts, (THREADS.held, 1, THREADS.threads, 1, LAST)), LOG)
    else:
        return columns(tl.reshape(parts, (1, THREADS.held, 1, THREADS.threads, LAST)), LOG)


@triton.jit
def product_of(
    xs, ys, exist, SUBTILE: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr, OP: tl.constexpr, MASKED: tl.constexpr
):
    """The products of one subtile in step `I`, the identity past the end of k."""
    x = xs[SUBTILE // PARAMS.threads_n.subtiles * PARAMS.k.tile + I]
    y = ys[SUBTILE % PARAMS.threads_n.subtiles * PARAMS.k.tile + I]
    if OP.combine is None:
        product = x * y
    else:
        product = OP.combine(x, y).to(OP.accumulate)
    if MASKED:
        product = tl.where(exist[I] != 0, product, tl.full((), OP.identity, OP.accumulate))
    return product


@triton.jit
def step_of(
    accs, x, y, inside, PARAMS: tl.constexpr, OP: tl.constexpr, EXP: tl.constexpr, MASKED: tl.constexpr
):
    """The accumulators with the products of some steps along k, of tiles x (TILE_M, TILE_K) and y (TILE_N, TILE_K)."""
    TILE_K: tl.constexpr = PARAMS.k.tile
    xs = steps_of(x, PARAMS.threads_m, PARAMS.log_depth + PARAMS.threads_m.log_slots, True)
    ys = steps_of(y, PARAMS.threads_n, PARAMS.log_depth + PARAMS.threads_n.log_slots, False)
    exist = ()
    if MASKED:
        exist = columns(tl.reshape(inside, (1, 1, 1, 1, TILE_K)), PARAMS.log_depth)
    if EXP is not None:
        return exponentials_of(accs, xs, ys, exist, PARAMS, OP, EXP, MASKED)
    else:
        for i in tl.static_range(TILE_K):
            found = ()
            for subtile in tl.static_range(len(accs)):
                product = product_of(xs, ys, exist, subtile, i, PARAMS, OP, MASKED)
                if OP.reduce is None:
                    found += (accs[subtile] + product,)
                else:
                    found += (OP.reduce(accs[subtile], product).to(OP.accumulate),)
            accs = found
        return accs


@triton.jit
def exponentials_of(
    accs, xs, ys, exist, PARAMS: tl.constexpr, OP: tl.constexpr, EXP: tl.constexpr, MASKED: tl.constexpr
):
    """The accumulators where log(exp(p) + exp(q)) reduces: for each subtile the largest product so far, and after all
    of these the sums of exp(product - largest). One exponential a product, and one more for all of these steps."""
    SUBTILES: tl.constexpr = len(accs) // 2
    peaks = ()
    sums = ()
    for subtile in tl.static_range(SUBTILES):
        peak = accs[subtile]
        for i in tl.static_range(PARAMS.k.tile):
            product = product_of(xs, ys, exist, subtile, i, PARAMS, OP, MASKED)
            peak = tl.maximum(peak, product, propagate_nan=tl.PropagateNan.ALL)
        base = finite(peak)
        total = accs[SUBTILES + subtile] * EXP(tl.minimum(finite(accs[subtile]) - base, 0.0))
        for i in tl.static_range(PARAMS.k.tile):
            product = product_of(xs, ys, exist, subtile, i, PARAMS, OP, MASKED)
            total += EXP(product - base)
        peaks += (peak,)
        sums += (total,)
    return peaks + sums


@triton.jit
def finite(peak):
    """The base of exponents: infinities are their own, relative to 0."""
    return tl.where(tl.abs(peak) == INFINITY, 0.0, peak).to(peak.dtype)


@triton.jit
def value_of(accs, SUBTILE: tl.constexpr, LOG: tl.constexpr):
    """The value of a reduction."""
    if LOG is None:
        return accs[SUBTILE]
    else:
        return finite(accs[SUBTILE]) + LOG(accs[len(accs) // 2 + SUBTILE])


@triton.jit
def block_of(acc, THREADS_M: tl.constexpr, THREADS_N: tl.constexpr):
    """The accumulator of one subtile as rows and columns of D."""
    ROW_RUNS: tl.constexpr = THREADS_M.held // THREADS_M.run
    COLUMN_RUNS: tl.constexpr = THREADS_N.held // THREADS_N.run
    spread = tl.reshape(
        acc, (ROW_RUNS, THREADS_M.run, COLUMN_RUNS, THREADS_N.run, THREADS_M.threads, THREADS_N.threads)
    )
    spread = tl.permute(spread, (0, 4, 1, 2, 5, 3))
    return tl.reshape(spread, (THREADS_M.held * THREADS_M.threads, THREADS_N.held * THREADS_N.threads))


@triton.jit
def n_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, (batch, n, k), rows along n."""
    return tiles.tile_offsets(place, PARAMS.n, PARAMS.k, PARAMS.batch, TENSOR, PARAMS.wide[TENSOR])


@triton.jit
def n_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    return tiles.tile_mask(place, PARAMS.n, PARAMS.k, PARAMS.batch, TENSOR)


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
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = OP.aux.a
    depth = tl.arange(0, K.tile)
    inside = dim_mask(k_block, depth, K)
    at = a + dim_offsets(k_block, depth, K, 0, PARAMS.wide[0])[None, :]
    bt = b + dim_offsets(k_block, depth, K, 1, PARAMS.wide[1])[None, :]
    x = load_tile(at, row_mask, inside, PARAMS.m.exact, WHOLE).to(PRODUCT)
    y = load_tile(bt, column_mask, inside, PARAMS.n.exact, WHOLE).to(PRODUCT)
    if A_FN is not None:
        here = (batch_block, m_block, k_block)
        x = A_FN(x, *gathered_step(aux_a, pointers, here, AUX_A, K, PARAMS, tiles.a_offsets, tiles.a_mask)).to(PRODUCT)
    if B_FN is not None:
        here = (batch_block, n_block, k_block)
        y = B_FN(y, *gathered_step(aux_b, pointers, here, OP.aux.b, K, PARAMS, n_offsets, n_mask)).to(PRODUCT)
    x = tl.broadcast_to(x, (PARAMS.m.tile, K.tile))
    y = tl.broadcast_to(y, (PARAMS.n.tile, K.tile))
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
    rows = tl.arange(0, PARAMS.m.tile)
    columns = tl.arange(0, PARAMS.n.tile)
    first_step = 0
    last_step = PARAMS.alike_steps
    if PARAMS.splits > 1:
        first_step = program // PARAMS.blocks * PARAMS.steps
        last_step = tl.minimum(first_step + PARAMS.steps, PARAMS.alike_steps)

    # (1) Fix the rows of A and of B that it needs.
    along = tiles.rows_and_columns(operands[0], operands[1], place, rows, columns, PARAMS)
    starts = (along[0][:, None], along[1][:, None], along[2], along[3])
    aux_a = gathered(pointers, (batch_block, m_block, 0), OP.aux.a, PARAMS, tiles.a_offsets, tiles.a_mask)
    aux_b = gathered(pointers, (batch_block, n_block, 0), OP.aux.b, PARAMS, n_offsets, n_mask)
    aux = (pointers, aux_a, aux_b)

    # (2) Steps along k that are alike, then the one that overhangs its end.
    WHOLE: tl.constexpr = PARAMS.k.exact or not PARAMS.zeros
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
    if PARAMS.alike_steps < PARAMS.k.blocks:
        for step in tl.range(PARAMS.alike_steps, tl.minimum(first_step + PARAMS.steps, PARAMS.k.blocks), num_stages=1):
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
            tl.store(partials + tiles.partial_offsets(partial, SUBTILE, 0, SUBTILE.n.tile), block)
        else:
            here = (batch_block, m_subtile, n_subtile)
            tiles.store_block(block, tensors, factors, here, SUBTILE, OP)


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
    program = tl.program_id(0)
    if PARAMS.wide_index:
        program = program.to(tl.int64)
    place = tiles.tile_coords(program % PARAMS.blocks, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)
    tensors = (c, d, pointers)
    factors = (alpha, beta)
    if PARAMS.guard[0] > 0:
        at = tl.broadcast_to(tiles.block_offsets(place, PARAMS, PARAMS.guard[0]), PARAMS.stored)
        at = pointers[PARAMS.guard[1]] + at
        marks = tl.load(at, mask=tl.broadcast_to(tiles.block_mask(place, PARAMS, ANY), PARAMS.stored), other=0)
        if tl.max(tl.reshape(marks.to(tl.int32), (PARAMS.m.tile * PARAMS.n.tile,)), axis=0) != 0:
            accs = reduce_tile((a, b), pointers, program, place, PARAMS, OP, EXP, STAGES)
            store_accs(accs, tensors, partials, factors, program, place, PARAMS, OP, LOG)
    else:
        accs = reduce_tile((a, b), pointers, program, place, PARAMS, OP, EXP, STAGES)
        store_accs(accs, tensors, partials, factors, program, place, PARAMS, OP, LOG)

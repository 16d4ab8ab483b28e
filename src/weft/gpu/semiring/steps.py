"""Steps along k of the register-blocked kernel: the products of a tile of A and a tile of B, taken into accumulators.

An accumulator is one subtile of D, as (RM, RN, PM, PN): registers first, threads last. Device code, inlined everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
    COMBINE: tl.constexpr = OP.combine
    if COMBINE is None:
        product = x * y
    else:
        product = COMBINE(x, y).to(OP.accumulate)
    if MASKED:
        product = tl.where(exist[I] != 0, product, tl.full((), OP.identity, OP.accumulate))
    return product


@triton.jit
def step_of(
    accs, x, y, inside, PARAMS: tl.constexpr, OP: tl.constexpr, EXP: tl.constexpr, MASKED: tl.constexpr
):
    """The accumulators with the products of some steps along k, of tiles x (TILE_M, TILE_K) and y (TILE_N, TILE_K)."""
    TILE_K: tl.constexpr = PARAMS.k.tile
    REDUCE: tl.constexpr = OP.reduce
    THREADS_M: tl.constexpr = PARAMS.threads_m
    THREADS_N: tl.constexpr = PARAMS.threads_n
    xs = steps_of(x, THREADS_M, PARAMS.log_depth + THREADS_M.log_slots, True)
    ys = steps_of(y, THREADS_N, PARAMS.log_depth + THREADS_N.log_slots, False)
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
                if REDUCE is None:
                    found += (accs[subtile] + product,)
                else:
                    found += (REDUCE(accs[subtile], product).to(OP.accumulate),)
            accs = found
        return accs


@triton.jit
def exponentials_of(
    accs, xs, ys, exist, PARAMS: tl.constexpr, OP: tl.constexpr, EXP: tl.constexpr, MASKED: tl.constexpr
):
    """The accumulators where log(exp(p) + exp(q)) reduces: for each subtile the largest product so far, and after all
    of these the sums of exp(product - largest). One exponential a product, and one more for all of these steps."""
    SUBTILES: tl.constexpr = len(accs) // 2
    TILE_K: tl.constexpr = PARAMS.k.tile
    peaks = ()
    sums = ()
    for subtile in tl.static_range(SUBTILES):
        peak = accs[subtile]
        for i in tl.static_range(TILE_K):
            product = product_of(xs, ys, exist, subtile, i, PARAMS, OP, MASKED)
            peak = tl.maximum(peak, product, propagate_nan=tl.PropagateNan.ALL)
        base = finite(peak)
        total = accs[SUBTILES + subtile] * EXP(tl.minimum(finite(accs[subtile]) - base, 0.0))
        for i in tl.static_range(TILE_K):
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

"""Reduce by the larger or the smaller value, and keep the index it came from.

Each program holds a tile of D and of indices in registers, and takes one index of k at a time: a row of A and a row of
B, both contiguous, since both operands lie with k outside of m and of n.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.pdl import pdl_begin


@triton.jit
def selection_kernel(
    a,  # (batch, k, m)
    b,  # (batch, k, n)
    values,  # (batch, m, n)
    places,  # (batch, m, n), int64
    m,
    n,
    k,
    COMBINE: tl.constexpr,
    LARGEST: tl.constexpr,  # the larger value is kept, else the smaller
    ACCUMULATE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """values[i, j] = the best of combine(a[l, i], b[l, j]) over l; places the first l that has it. k is at least 1.

    NaN is better than any number, as in torch.maximum.
    """
    pdl_begin()
    # (1) Which tile: programs go over n first, so that neighbours read the same rows of A.
    program = tl.program_id(0).to(tl.int64)
    n_blocks = tl.cdiv(n, TILE_N)
    m_blocks = tl.cdiv(m, TILE_M)
    batch = program // (m_blocks * n_blocks)
    rows = program // n_blocks % m_blocks * TILE_M + tl.arange(0, TILE_M)
    columns = program % n_blocks * TILE_N + tl.arange(0, TILE_N)
    at = a + batch * k * m + rows
    bt = b + batch * k * n + columns

    # (2) The first index of k is what others must be better than.
    x = tl.load(at, mask=rows < m, other=0)
    y = tl.load(bt, mask=columns < n, other=0)
    best = tl.broadcast_to(COMBINE(x[:, None], y[None, :]).to(ACCUMULATE), (TILE_M, TILE_N))
    place = tl.zeros((TILE_M, TILE_N), tl.int64)

    # (3) The others in order: equal values leave the first.
    for step in tl.range(1, k):
        at += m
        bt += n
        x = tl.load(at, mask=rows < m, other=0)
        y = tl.load(bt, mask=columns < n, other=0)
        value = COMBINE(x[:, None], y[None, :]).to(ACCUMULATE)
        better = value > best if LARGEST else value < best
        better = better | ((value != value) & (best == best))
        best = tl.where(better, value, best)
        place = tl.where(better, step, place)

    # (4) Store both.
    there = batch * m * n + rows[:, None] * n + columns[None, :]
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(values + there, best, mask=inside)
    tl.store(places + there, place, mask=inside)

"""Which pair an algebra selected: the largest or smallest combination along k, and where it stands.

Each program holds a tile of D and of indices in registers, and takes one index of k at a time: a row of A and a row of
B, both contiguous, since both operands lie with k outside of m and of n. Output tiles are as large as the dims, within
what registers hold.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from weft.errors import UnsupportedError
from weft.fn.algebra import TracedAlgebra
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.device import pdl_begin
from weft.gpu.common.launch import TRITON_TYPES
from weft.spec.dtypes import dtype_name


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


LONGEST, SHORTEST = 64, 16  # of a tile: 64 x 64 values and indices are 96 registers a thread of 128


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of contiguous `a` (batch, k, m) and `b` (batch, k, n), none of them empty.

    `UnsupportedError` for types that Triton has not.
    """
    (batch, k, m), n = a.shape, b.shape[2]
    if a.dtype not in TRITON_TYPES:
        raise UnsupportedError(f"{dtype_name(a.dtype)} has no Triton type here")
    values = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)
    places = torch.empty((batch, m, n), dtype=torch.int64, device=a.device)
    tile_m, tile_n = (max(SHORTEST, min(LONGEST, power_of_two(extent))) for extent in (m, n))
    grid = (batch * triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n),)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        selection_kernel[grid](
            a, b, values, places, m, n, k, algebra.combine.jit, largest, TRITON_TYPES[a.dtype].meant, tile_m, tile_n,
            num_warps=4,
        )  # fmt: skip
    return values, places

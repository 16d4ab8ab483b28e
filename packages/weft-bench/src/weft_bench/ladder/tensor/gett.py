"""GETT: the copies inside the product

A matrix product whose loads understand the tensors. Rows are (b a), columns (d c), and steps (e f). Divisions compute
offsets when a tile is loaded, so tiles arrive in the order of the product, and nothing is copied beforehand. But the
compiler cannot see through a remainder that neighbours are adjacent, and loads elements one by one.

    row m = (b, a)     offset in A:  m // A * (E * A) + m % A       neighbours a, a + 1 lie side by side
    step k = (e, f)                  k % F * (B * E * A) + k // F * A
"""

from weft_bench.ladder.tiles import grouped_tile, need_dot, tile_count, tl, triton


@triton.jit
def gett(a, b, d, B, E, F, A, C, D, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    row_tile, column_tile = grouped_tile(tl.program_id(0), tl.cdiv(B * A, TM), tl.cdiv(D * C, TN), 8)
    m, n, k = row_tile * TM + tl.arange(0, TM), column_tile * TN + tl.arange(0, TN), tl.arange(0, TK)
    m_in_a = m // A * E * A + m % A
    n_in_b = n // D * F * D + n % D  # columns go through c, then d: along d B lies side by side
    sums = tl.zeros((TM, TN), tl.float32)
    for first in range(0, E * F, TK):
        at = first + k
        k_in_a, k_in_b, inside = at % F * B * E * A + at // F * A, at // F * C * F * D + at % F * D, at < E * F
        x = tl.load(a + m_in_a[:, None] + k_in_a[None, :], (m[:, None] < B * A) & inside[None, :], 0.0)
        y = tl.load(b + k_in_b[:, None] + n_in_b[None, :], inside[:, None] & (n[None, :] < D * C), 0.0)
        sums = tl.dot(x, y, sums)
    n_in_d = (n % D * C + n // D) * B * A
    tl.store(d + m[:, None] + n_in_d[None, :], sums, (m[:, None] < B * A) & (n[None, :] < D * C))


def run(a, b, d):
    need_dot(a)
    (f, b_, e, a_), (_, c, _, d_) = a.shape, b.shape
    grid = (tile_count(b_ * a_, 128) * tile_count(d_ * c, 128),)
    gett[grid](a, b, d, b_, e, f, a_, c, d_, TM=128, TN=128, TK=64, num_warps=8, num_stages=3)
    return d

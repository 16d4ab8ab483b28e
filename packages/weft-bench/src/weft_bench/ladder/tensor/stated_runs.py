"""State which elements are adjacent

The planner knows every extent: if a and d are multiples of eight, eight elements of half precision, 16 bytes, are
adjacent and begin at a multiple of eight. Stating this in the kernel restores what the remainder had hidden: loads of
16 bytes, the only ones that can go directly to shared memory (`cp.async`).

    m:     0 1 2 3 4 5 6 7 | 8 ...         offset in A:  multiple of 8, 8 in a row
           one load of 16 bytes            tl.max_contiguous(tl.multiple_of(offset, 8), 8)
"""

from weft.errors import UnsupportedError
from weft_bench.ladder.tiles import grouped_tile, need_dot, tile_count, tl, triton

RUN = 8


@triton.jit
def stated_runs(a, b, d, B, E, F, A, C, D, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, RUN: tl.constexpr):
    row_tile, column_tile = grouped_tile(tl.program_id(0), tl.cdiv(B * A, TM), tl.cdiv(D * C, TN), 8)
    m, n, k = row_tile * TM + tl.arange(0, TM), column_tile * TN + tl.arange(0, TN), tl.arange(0, TK)
    m_in_a = tl.max_contiguous(tl.multiple_of(m // A * E * A + m % A, RUN), RUN)
    n_in_b = tl.max_contiguous(tl.multiple_of(n // D * F * D + n % D, RUN), RUN)
    rows, columns = tl.max_constancy(m < B * A, RUN), tl.max_constancy(n < D * C, RUN)
    sums = tl.zeros((TM, TN), tl.float32)
    for first in range(0, E * F, TK):
        at = first + k
        inside = at < E * F
        k_in_a = tl.multiple_of(at % F * B * E * A + at // F * A, [RUN])
        k_in_b = tl.multiple_of(at // F * C * F * D + at % F * D, [RUN])
        x = tl.load(a + m_in_a[:, None] + k_in_a[None, :], rows[:, None] & inside[None, :], 0.0)
        y = tl.load(b + k_in_b[:, None] + n_in_b[None, :], inside[:, None] & columns[None, :], 0.0)
        sums = tl.dot(x, y, sums)
    n_in_d = (n % D * C + n // D) * B * A
    tl.store(d + m[:, None] + n_in_d[None, :], sums, rows[:, None] & columns[None, :])


def run(a, b, d):
    need_dot(a)
    (f, b_, e, a_), (_, c, _, d_) = a.shape, b.shape
    if a_ % RUN or d_ % RUN:
        raise UnsupportedError(f"runs of {RUN} elements want extents a and d to be multiples of it, not {a_}, {d_}")
    grid = (tile_count(b_ * a_, 128) * tile_count(d_ * c, 128),)
    stated_runs[grid](a, b, d, b_, e, f, a_, c, d_, TM=128, TN=128, TK=64, RUN=RUN, num_warps=8, num_stages=3)
    return d

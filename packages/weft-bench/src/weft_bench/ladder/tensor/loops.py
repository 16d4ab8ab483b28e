"""Loops over modes

The contraction as written: one thread for each element of D, and loops over the summed modes. Neighbours along D's
last mode read neighbours of A. Only caches reuse data: each multiply-add takes two loads, in the ordinary units,
because tensor cores need tiles.

    D[d, c, b, a] = sum over e, f of  A[f, b, e, a] * B[e, c, f, d]

    program: 128 neighbours along (b a), one (d, c)     for f: for e: load A, load B, fma
"""

from weft_bench.ladder.tiles import tile_count, tl, triton


@triton.jit
def loops(a, b, d, B, E, F, A, C, D, WIDE: tl.constexpr):
    ba = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    dc = tl.program_id(1)
    inside = ba < B * A
    total = tl.zeros((WIDE,), tl.float32)
    of_a, of_b = ba // A * E * A + ba % A, dc % C * F * D + dc // C
    for f in range(F):
        for e in range(E):
            x = tl.load(a + f * B * E * A + e * A + of_a, inside, 0.0)
            y = tl.load(b + e * C * F * D + f * D + of_b)
            total += x.to(tl.float32) * y.to(tl.float32)
    tl.store(d + dc * B * A + ba, total.to(d.dtype.element_ty), inside)


def run(a, b, d):
    (f, b_, e, a_), (_, c, _, d_) = a.shape, b.shape
    loops[(tile_count(b_ * a_, 128), d_ * c)](a, b, d, b_, e, f, a_, c, d_, WIDE=128, num_warps=4)
    return d

"""Stage 2: neighbours read neighbours

The lanes of a warp now differ in c or in r, along which X, M, T and Y are contiguous, so every byte moved is used.

    a warp      b = 7, p = 3, r = 32 .. 63:   M[c, 32 .. 63] is one transaction, T[7, 3, c] one value for all
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32
from weft_bench.ladder.two_site.two_products import two_products

WIDE, HIGH = 32, 8


@cuda.jit
def coalesced(a, b, d):
    x, y, z = cuda.grid(3)
    column, row, batch = uint32(x), uint32(y), uint32(z)
    if row < d.shape[1] and column < d.shape[2]:
        of_a, of_b = min(batch, uint32(a.shape[0] - 1)), min(batch, uint32(b.shape[0] - 1))
        total = float32(0)
        for k in range(uint32(a.shape[2])):
            total += a[of_a, row, k] * b[of_b, k, column]
        d[batch, row, column] = total


def batched(a, b, d):
    launch(coalesced, (blocks(d.shape[2], WIDE), blocks(d.shape[1], HIGH), d.shape[0]), (WIDE, HIGH, 1), a, b, d)


def run(g, x, m, y):
    return two_products(batched, g, x, m, y)

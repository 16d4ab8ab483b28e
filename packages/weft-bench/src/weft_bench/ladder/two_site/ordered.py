"""Stage 1: one sum after the other

T = G X is computed once and stored; Y = T M reads it. For d = 16 and a bond of 256 this is a fifteenth of the terms.
The kernel is the simplest possible: a thread for each element, with the lanes of a warp in different rows.

    T[b, p, c] = sum over q of G[p, q] X[b, q, c]        d^2 chi  terms a batch
    Y[b, p, r] = sum over c of T[b, p, c] M[c, r]        d chi^2  terms a batch
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32
from weft_bench.ladder.two_site.two_products import two_products

SIDE = 16


@cuda.jit
def ordered(a, b, d):
    x, y, z = cuda.grid(3)
    row, column, batch = uint32(x), uint32(y), uint32(z)
    if row < d.shape[1] and column < d.shape[2]:
        of_a, of_b = min(batch, uint32(a.shape[0] - 1)), min(batch, uint32(b.shape[0] - 1))  # one matrix may serve all
        total = float32(0)
        for k in range(uint32(a.shape[2])):
            total += a[of_a, row, k] * b[of_b, k, column]
        d[batch, row, column] = total


def batched(a, b, d):
    launch(ordered, (blocks(d.shape[1], SIDE), blocks(d.shape[2], SIDE), d.shape[0]), (SIDE, SIDE, 1), a, b, d)


def run(g, x, m, y):
    return two_products(batched, g, x, m, y)

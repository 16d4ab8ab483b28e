"""Stage 0: one thread for each element, both sums at once

Slow and clearly right: a thread loops over all q and c for its element of Y. Every product G[p, q] X[b, q, c] is
computed again for each r: B p q c r terms, where two products in sequence need B p c (q + r).

    Y[b, p, r] = sum over q, c of  G[p, q] * X[b, q, c] * M[c, r]

    thread (b, p, r):   for q: for c: 2 multiplications, 1 addition, 2 loads
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

SIDE = 16


@cuda.jit
def direct(g, x, m, y):
    row, column = cuda.grid(2)
    b, p, r = uint32(row // y.shape[1]), uint32(row % y.shape[1]), uint32(column)
    if b < y.shape[0] and r < y.shape[2]:
        total = float32(0)
        for q in range(uint32(x.shape[1])):
            for c in range(uint32(x.shape[2])):
                total += g[p, q] * x[b, q, c] * m[c, r]
        y[b, p, r] = total


def run(g, x, m, y):
    launch(direct, (blocks(y.shape[0] * y.shape[1], SIDE), blocks(y.shape[2], SIDE)), (SIDE, SIDE), g, x, m, y)
    return y

"""Stage 3: operands on the chip

Tiles are in shared memory: a block of 16 x 16 elements reads each value of its operands once instead of sixteen times.
Sixteen rows are exactly the physical indices p of one site.

    G 16 x 16         X[b] 16 x 16 of c          T[b]
    #######     *     # # #             --->     16 p x 16 c by 256 threads
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32
from weft_bench.ladder.two_site.two_products import two_products

TILE = 16


@cuda.jit
def on_chip(a, b, d):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y, batch = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), cuda.blockIdx.z
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE) + y, uint32(cuda.blockIdx.x) * uint32(TILE) + x
    of_a, of_b = min(batch, a.shape[0] - 1), min(batch, b.shape[0] - 1)
    total = float32(0)
    for first in range(uint32(0), uint32(a.shape[2]), uint32(TILE)):
        a_tile[y, x] = a[of_a, row, first + x] if row < a.shape[1] and first + x < a.shape[2] else float32(0)
        b_tile[y, x] = b[of_b, first + y, column] if first + y < b.shape[1] and column < b.shape[2] else float32(0)
        cuda.syncthreads()
        for k in range(uint32(TILE)):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < d.shape[1] and column < d.shape[2]:
        d[batch, row, column] = total


def batched(a, b, d):
    launch(on_chip, (blocks(d.shape[2], TILE), blocks(d.shape[1], TILE), d.shape[0]), (TILE, TILE, 1), a, b, d)


def run(g, x, m, y):
    return two_products(batched, g, x, m, y)

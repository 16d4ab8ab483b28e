"""Stage 4: more independent work

A thread has sixteen independent sums, so a warp can start the next multiply-add while the last one is in progress, and
eight loads from shared memory feed sixteen of them. A block has 16 rows, all p, and 64 columns.

    64 threads, 4 x 4 sums each
    p  0.. 3   | 4 x 4 | 4 x 4 | ...  16 threads along c
    p  4.. 7   | 4 x 4 | 4 x 4 | ...
    p  8..11   | 4 x 4 | ...
    p 12..15   | 4 x 4 | ...
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32
from weft_bench.ladder.two_site.two_products import two_products

ROWS, COLUMNS, STEP, SUMS = 16, 64, 16, 4
PADDED, WIDE, HIGH = STEP + 1, COLUMNS // SUMS, ROWS // SUMS


@cuda.jit
def independent_sums(a, b, d):
    a_tile = cuda.shared.array((ROWS, PADDED), float32)
    b_tile = cuda.shared.array((STEP, COLUMNS), float32)
    sums = cuda.local.array((SUMS, SUMS), float32)
    x, y, batch = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), cuda.blockIdx.z
    row, column = uint32(cuda.blockIdx.y) * ROWS, uint32(cuda.blockIdx.x) * COLUMNS
    of_a, of_b = min(batch, a.shape[0] - 1), min(batch, b.shape[0] - 1)
    for i in range(SUMS):
        for j in range(SUMS):
            sums[i, j] = 0
    for first in range(uint32(0), uint32(a.shape[2]), uint32(STEP)):
        for i in range(SUMS):
            r = y * SUMS + i
            inside = row + r < a.shape[1] and first + x < a.shape[2]
            a_tile[r, x] = a[of_a, row + r, first + x] if inside else float32(0)
            for j in range(SUMS):
                c = x + j * WIDE
                inside = first + r < b.shape[1] and column + c < b.shape[2]
                b_tile[r, c] = b[of_b, first + r, column + c] if inside else float32(0)
        cuda.syncthreads()
        for k in range(uint32(STEP)):
            for i in range(SUMS):
                for j in range(SUMS):  # columns x, x + 16, ...: neighbours read neighbours
                    sums[i, j] += a_tile[y * SUMS + i, k] * b_tile[k, x + j * WIDE]
        cuda.syncthreads()
    for i in range(SUMS):
        for j in range(SUMS):
            r, c = row + y * SUMS + i, column + x + j * WIDE
            if r < d.shape[1] and c < d.shape[2]:
                d[batch, r, c] = sums[i, j]


def batched(a, b, d):
    grid = blocks(d.shape[2], COLUMNS), blocks(d.shape[1], ROWS), d.shape[0]
    launch(independent_sums, grid, (WIDE, HIGH, 1), a, b, d)


def run(g, x, m, y):
    return two_products(batched, g, x, m, y)

"""Stage 5: balance registers and occupancy

Sums of 4 x 8 need fewer loads still, but more registers. An SM has 65536: with 64 per thread half of all warps fit,
with 128 a quarter. The compiler is limited to 80, which it meets without spilling, and a block has 128 threads, so six
blocks fit on an SM.

    registers a thread      32      64      80      128     255
    warps on an SM          64      32      24      16       8
    sums of 4 x 8                  spills   fit     fit, and fewer warps hide less
"""

from weft_bench.ladder.threads import at_most, blocks, cuda, float32, launch, uint32
from weft_bench.ladder.two_site.two_products import two_products

ROWS, COLUMNS, STEP, HIGH_SUMS, WIDE_SUMS = 16, 256, 16, 4, 8
PADDED, WIDE, HIGH = STEP + 4, COLUMNS // WIDE_SUMS, ROWS // HIGH_SUMS


@cuda.jit(**at_most(80))
def balanced(a, b, d):
    a_tile = cuda.shared.array((ROWS, PADDED), float32)
    b_tile = cuda.shared.array((STEP, COLUMNS), float32)
    sums = cuda.local.array((HIGH_SUMS, WIDE_SUMS), float32)
    x, y, batch = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), cuda.blockIdx.z
    row, column = uint32(cuda.blockIdx.y) * ROWS, uint32(cuda.blockIdx.x) * COLUMNS
    of_a, of_b = min(batch, a.shape[0] - 1), min(batch, b.shape[0] - 1)
    for i in range(HIGH_SUMS):
        for j in range(WIDE_SUMS):
            sums[i, j] = 0
    for first in range(uint32(0), uint32(a.shape[2]), uint32(STEP)):
        for i in range(HIGH_SUMS):
            r = y * HIGH_SUMS + i
            if x < STEP:
                inside = row + r < a.shape[1] and first + x < a.shape[2]
                a_tile[r, x] = a[of_a, row + r, first + x] if inside else float32(0)
            for j in range(WIDE_SUMS):
                c = x + j * WIDE
                inside = first + r < b.shape[1] and column + c < b.shape[2]
                b_tile[r, c] = b[of_b, first + r, column + c] if inside else float32(0)
        cuda.syncthreads()
        for k in range(uint32(STEP)):
            for i in range(HIGH_SUMS):
                for j in range(WIDE_SUMS):
                    sums[i, j] += a_tile[y * HIGH_SUMS + i, k] * b_tile[k, x + j * WIDE]
        cuda.syncthreads()
    for i in range(HIGH_SUMS):
        for j in range(WIDE_SUMS):
            r, c = row + y * HIGH_SUMS + i, column + x + j * WIDE
            if r < d.shape[1] and c < d.shape[2]:
                d[batch, r, c] = sums[i, j]


def batched(a, b, d):
    grid = blocks(d.shape[2], COLUMNS), blocks(d.shape[1], ROWS), d.shape[0]
    launch(balanced, grid, (WIDE, HIGH, 1), a, b, d)


def run(g, x, m, y):
    return two_products(batched, g, x, m, y)

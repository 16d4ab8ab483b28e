"""Eight sums of one column in registers

A thread computes eight elements of one column. It loads an element of B once and uses it eight times: eight
multiply-adds take nine loads from shared memory instead of sixteen.

    A 64 x 8               B 8 x 64
    . . . .                . . x . .            thread: 8 sums of a column
    8 . . .   rows 8y to   . . . . .            for k: b = B[k, x]
    8 . . .   8y + 7       . . . . .                   for i: sum[i] += A[8y + i, k] * b
    . . . .                                            8 fma, 9 loads
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS = 64, 8, 8  # sides of D's tile; of the tiles along k; sums of a thread
THREADS = TILE * TILE // SUMS


@cuda.jit
def column_per_thread(a, b, d):
    a_tile = cuda.shared.array((TILE, STEP), float32)
    b_tile = cuda.shared.array((STEP, TILE), float32)
    sums = cuda.local.array(SUMS, float32)
    for i in range(SUMS):
        sums[i] = 0
    thread = uint32(cuda.threadIdx.x)
    x, y = thread % TILE, thread // TILE  # of B's tile and of D's; of A's tile: below
    k_a, row_a = thread % STEP, thread // STEP
    first_row, first_column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    for first in range(uint32(0), uint32(a.shape[1]), uint32(STEP)):
        inside = first_row + row_a < a.shape[0] and first + k_a < a.shape[1]
        a_tile[row_a, k_a] = a[first_row + row_a, first + k_a] if inside else float32(0)
        inside = first + y < b.shape[0] and first_column + x < b.shape[1]
        b_tile[y, x] = b[first + y, first_column + x] if inside else float32(0)
        cuda.syncthreads()
        for k in range(uint32(STEP)):
            other = b_tile[k, x]
            for i in range(uint32(SUMS)):
                sums[i] += a_tile[y * SUMS + i, k] * other
        cuda.syncthreads()
    for i in range(SUMS):
        row = first_row + y * SUMS + i
        if row < d.shape[0] and first_column + x < d.shape[1]:
            d[row, first_column + x] = sums[i]


def run(a, b, d):
    launch(column_per_thread, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), THREADS, a, b, d)
    return d

"""A square of 4 x 4 sums in registers

A square of sums reuses both operands: eight loaded values feed sixteen multiply-adds, half a load each. A thread keeps
four values of A and four of B in registers and adds their outer product to its sums.

    A 64 x 16              B 16 x 64                 4 values of B
    . . . .                . . 4 4 4 4 . .              * * * *
    4 . . .   thread y     . . . . . . . .      4 of A  # # # #   16 sums
    4 . . .                    thread x                 # # # #   for k: 16 fma, 8 loads
    . . . .                                             # # # #
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS = 64, 16, 4
PADDED_TILE, PADDED_STEP = 65, 17  # one more, against bank conflicts
SIDE = TILE // SUMS  # threads along each dimension


@cuda.jit
def four_by_four(a, b, d):
    a_tile = cuda.shared.array((TILE, PADDED_STEP), float32)
    b_tile = cuda.shared.array((STEP, PADDED_TILE), float32)
    sums = cuda.local.array((SUMS, SUMS), float32)
    of_a, of_b = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    for i in range(SUMS):
        for j in range(SUMS):
            sums[i, j] = 0
    for first in range(uint32(0), uint32(a.shape[1]), uint32(STEP)):
        for i in range(uint32(SUMS)):  # rows y, y + 16, ... of A's tile, columns x, x + 16, ... of B's
            r, c = row + y + i * SIDE, column + x + i * SIDE
            a_tile[y + i * SIDE, x] = a[r, first + x] if r < a.shape[0] and first + x < a.shape[1] else float32(0)
            b_tile[y, x + i * SIDE] = b[first + y, c] if first + y < b.shape[0] and c < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(uint32(STEP)):
            for i in range(uint32(SUMS)):
                of_a[i] = a_tile[y * SUMS + i, k]
                of_b[i] = b_tile[k, x * SUMS + i]
            for i in range(SUMS):
                for j in range(SUMS):
                    sums[i, j] += of_a[i] * of_b[j]
        cuda.syncthreads()
    for i in range(SUMS):
        for j in range(SUMS):
            r, c = row + y * SUMS + i, column + x * SUMS + j
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = sums[i, j]


def run(a, b, d):
    launch(four_by_four, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (SIDE, SIDE), a, b, d)
    return d

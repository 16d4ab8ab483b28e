"""A square of 8 x 8 sums in registers

Twice the side: sixteen loaded values feed 64 multiply-adds, a quarter of a load each. A block of 256 threads has a
tile of 128 x 128, so each element of global memory is read once for 128 uses. A thread's values of B are adjacent, so
lanes of a warp access the same bank in four turns.

    A 128 x 8              B 8 x 128                 8 values of B
    . . . .                . . 8 ... 8 . .              * * * * * * * *
    8 . . .   thread y     . . . . . . . .      8 of A  # # # # # # # #   64 sums
    8 . . .                    thread x                 # # # # # # # #   for k: 64 fma, 16 loads
    . . . .                                             ...
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS = 128, 8, 8
SIDE = TILE // SUMS
THREADS = SIDE * SIDE


@cuda.jit
def eight_by_eight(a, b, d):
    a_tile = cuda.shared.array((STEP, TILE), float32)  # as columns: a step reads one
    b_tile = cuda.shared.array((STEP, TILE), float32)
    sums = cuda.local.array((SUMS, SUMS), float32)
    of_a, of_b = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
    thread = uint32(cuda.threadIdx.x)
    x, y = thread % SIDE, thread // SIDE
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    for i in range(SUMS):
        for j in range(SUMS):
            sums[i, j] = 0
    for first in range(uint32(0), uint32(a.shape[1]), uint32(STEP)):
        for i in range(TILE * STEP // THREADS):
            at = thread + i * THREADS
            r, k = at // STEP, at % STEP
            inside = row + r < a.shape[0] and first + k < a.shape[1]
            a_tile[k, r] = a[row + r, first + k] if inside else float32(0)
            k, c = at // TILE, at % TILE
            inside = first + k < b.shape[0] and column + c < b.shape[1]
            b_tile[k, c] = b[first + k, column + c] if inside else float32(0)
        cuda.syncthreads()
        for k in range(uint32(STEP)):
            for i in range(uint32(SUMS)):
                of_a[i] = a_tile[k, y * SUMS + i]
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
    launch(eight_by_eight, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), THREADS, a, b, d)
    return d

"""Four values with each load

A thread's eight rows are now two runs of four, 64 apart, and so are its columns. If tiles are aligned to 16 bytes, the
compiler joins the loads of a run into one of 128 bits: four loads for 64 multiply-adds. There are no bank conflicts,
because the runs of neighbouring lanes are adjacent. (numba does not know the alignment of its arguments, so loads from
global memory stay 32 bits wide.)

    columns of a tile      0 . . 3  4 . . 7  ...  60 .. 63 | 64 .. 67 ...
    thread x = 0           ^^^^^^^                           ^^^^^^^        one load of 128 bits each
    thread x = 1                    ^^^^^^^                           ^^^^
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS, RUN = 128, 8, 8, 4
SIDE = TILE // SUMS
THREADS, HALF = SIDE * SIDE, TILE // 2
PADDED = TILE + RUN  # columns of A are written across banks


@cuda.jit
def vectors(a, b, d):
    a_tile = cuda.shared.array((STEP, PADDED), float32, alignment=16)
    b_tile = cuda.shared.array((STEP, TILE), float32, alignment=16)
    sums = cuda.local.array((SUMS, SUMS), float32)
    of_a, of_b = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
    thread = uint32(cuda.threadIdx.x)
    x, y = thread % SIDE * RUN, thread // SIDE * RUN
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
            for half in range(uint32(2)):
                for i in range(uint32(RUN)):
                    of_a[half * RUN + i] = a_tile[k, half * HALF + y + i]
                    of_b[half * RUN + i] = b_tile[k, half * HALF + x + i]
            for i in range(SUMS):
                for j in range(SUMS):
                    sums[i, j] += of_a[i] * of_b[j]
        cuda.syncthreads()
    for i in range(SUMS):
        for j in range(SUMS):
            r, c = row + y + i // RUN * HALF + i % RUN, column + x + j // RUN * HALF + j % RUN
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = sums[i, j]


def run(a, b, d):
    launch(vectors, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), THREADS, a, b, d)
    return d

"""A tile for each warp

The 32 lanes of a warp load their runs together, and a run that several lanes need is read once. Sixteen columns of
threads by two rows need 16 runs of B and 2 of A. Eight rows by four columns need 8 of A and 4 of B: at most 128 bytes
in a load, one cycle instead of two. Eight warps tile the block, two rows by four columns.

    block 128 x 128                     warp 64 x 32: lanes 8 x 4, runs of 4 x 4, twice each way
    +------+------+------+------+       lane  0  1  2  3 | 0  1  2  3
    | w 0  | w 1  | w 2  | w 3  |             4  5  6  7 | 4  5  6  7
    +------+------+------+------+             ...        | ...
    | w 4  | w 5  | w 6  | w 7  |             28 ..   31 | 28 ..   31
    +------+------+------+------+       (below: the same lanes once more)
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS, RUN = 128, 8, 8, 4
THREADS, PADDED = 256, TILE + RUN
WARP_ROWS, WARP_COLUMNS, LANE_COLUMNS = 64, 32, 4


@cuda.jit
def warp_tiles(a, b, d):
    a_tile = cuda.shared.array((STEP, PADDED), float32, alignment=16)
    b_tile = cuda.shared.array((STEP, TILE), float32, alignment=16)
    sums = cuda.local.array((SUMS, SUMS), float32)
    of_a, of_b = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
    thread = uint32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    y = warp // 4 * WARP_ROWS + lane // LANE_COLUMNS * RUN
    x = warp % 4 * WARP_COLUMNS + lane % LANE_COLUMNS * RUN
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
                    of_a[half * RUN + i] = a_tile[k, half * (WARP_ROWS // 2) + y + i]
                    of_b[half * RUN + i] = b_tile[k, half * (WARP_COLUMNS // 2) + x + i]
            for i in range(SUMS):
                for j in range(SUMS):
                    sums[i, j] += of_a[i] * of_b[j]
        cuda.syncthreads()
    for i in range(SUMS):
        for j in range(SUMS):
            r = row + y + i // RUN * (WARP_ROWS // 2) + i % RUN
            c = column + x + j // RUN * (WARP_COLUMNS // 2) + j % RUN
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = sums[i, j]


def run(a, b, d):
    launch(warp_tiles, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), THREADS, a, b, d)
    return d

"""Load the next tiles during the product

Each operand has two buffers in shared memory. A thread requests its values of the next tiles, multiplies the current
ones meanwhile, and stores the new values in the other buffer. Multiply-adds hide the latency of global memory, and a
step needs one barrier instead of two.

    step            0          1          2          3
    load            tile 1     tile 2     tile 3     ...       registers
    multiply        buffer 0   buffer 1   buffer 0   buffer 1
    store      0 -> buffer 0   1 -> 1     2 -> 0     3 -> 1    one barrier after each
"""

from weft_bench.ladder.threads import at_most, blocks, cuda, float32, launch, uint32

TILE, STEP, SUMS, RUN = 128, 8, 8, 4
THREADS, PADDED, EACH = 256, TILE + RUN, 4  # values of each operand that a thread loads for a step
WARP_ROWS, WARP_COLUMNS, LANE_COLUMNS = 64, 32, 4


@cuda.jit(device=True)
def load(a, b, row, column, first, thread, next_a, next_b):
    for i in range(EACH):
        at = thread + i * THREADS
        r, k = row + at // STEP, first + at % STEP
        next_a[i] = a[r, k] if r < a.shape[0] and k < a.shape[1] else float32(0)
        k, c = first + at // TILE, column + at % TILE
        next_b[i] = b[k, c] if k < b.shape[0] and c < b.shape[1] else float32(0)


@cuda.jit(device=True)
def put(next_a, next_b, thread, a_tile, b_tile):
    for i in range(EACH):
        at = thread + i * THREADS
        a_tile[at % STEP, at // STEP] = next_a[i]
        b_tile[at // TILE, at % TILE] = next_b[i]


@cuda.jit(device=True)
def multiply(a_tile, b_tile, y, x, of_a, of_b, sums):
    for k in range(uint32(STEP)):
        for half in range(uint32(2)):
            for i in range(uint32(RUN)):
                of_a[half * RUN + i] = a_tile[k, half * (WARP_ROWS // 2) + y + i]
                of_b[half * RUN + i] = b_tile[k, half * (WARP_COLUMNS // 2) + x + i]
        for i in range(SUMS):
            for j in range(SUMS):
                sums[i, j] += of_a[i] * of_b[j]


@cuda.jit(**at_most(128))  # two blocks an SM
def double_buffers(a, b, d):
    a_even = cuda.shared.array((STEP, PADDED), float32, alignment=16)
    b_even = cuda.shared.array((STEP, TILE), float32, alignment=16)
    a_odd = cuda.shared.array((STEP, PADDED), float32, alignment=16)
    b_odd = cuda.shared.array((STEP, TILE), float32, alignment=16)
    sums = cuda.local.array((SUMS, SUMS), float32)
    of_a, of_b = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
    next_a, next_b = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
    thread = uint32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    y = warp // 4 * WARP_ROWS + lane // LANE_COLUMNS * RUN
    x = warp % 4 * WARP_COLUMNS + lane % LANE_COLUMNS * RUN
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    for i in range(SUMS):
        for j in range(SUMS):
            sums[i, j] = 0
    load(a, b, row, column, uint32(0), thread, next_a, next_b)
    for first in range(uint32(0), uint32(a.shape[1]), uint32(2 * STEP)):  # past the end tiles are zero
        put(next_a, next_b, thread, a_even, b_even)
        cuda.syncthreads()
        load(a, b, row, column, first + STEP, thread, next_a, next_b)
        multiply(a_even, b_even, y, x, of_a, of_b, sums)
        put(next_a, next_b, thread, a_odd, b_odd)
        cuda.syncthreads()
        load(a, b, row, column, first + 2 * STEP, thread, next_a, next_b)
        multiply(a_odd, b_odd, y, x, of_a, of_b, sums)
    for i in range(SUMS):
        for j in range(SUMS):
            r = row + y + i // RUN * (WARP_ROWS // 2) + i % RUN
            c = column + x + j // RUN * (WARP_COLUMNS // 2) + j % RUN
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = sums[i, j]


def run(a, b, d):
    launch(double_buffers, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), THREADS, a, b, d)
    return d

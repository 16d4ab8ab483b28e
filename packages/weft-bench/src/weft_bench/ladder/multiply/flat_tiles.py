"""Tiles in one-dimensional shared arrays

Like the next rung, but a tile is one array of 1024 elements, and each access computes its index: y * 32 + x. The first
kernel takes x and y from the grid. The second numbers the threads of a block and derives x and y from the number. Both
compute the same addresses, as a compiler may notice.

    thread (x, y)  --->  tile[y * 32 + x]
    number 32 y + x  --->  y = number / 32, x = number % 32  --->  tile[y * 32 + x]
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, ROWS = 32, 8
SIZE = TILE * TILE


@cuda.jit(device=True)
def block(a, b, d, x, y):
    a_tile = cuda.shared.array(SIZE, float32)
    b_tile = cuda.shared.array(SIZE, float32)
    sums = cuda.shared.array(SIZE, float32)
    first_row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE) + x
    for row in range(y, uint32(TILE), uint32(ROWS)):
        sums[row * TILE + x] = 0
    for first in range(uint32(0), uint32(a.shape[1]), uint32(TILE)):
        for row in range(y, uint32(TILE), uint32(ROWS)):
            inside = first_row + row < a.shape[0] and first + x < a.shape[1]
            a_tile[row * TILE + x] = a[first_row + row, first + x] if inside else float32(0)
            inside = first + row < b.shape[0] and column < b.shape[1]
            b_tile[row * TILE + x] = b[first + row, column] if inside else float32(0)
        cuda.syncthreads()
        for row in range(y, uint32(TILE), uint32(ROWS)):
            for k in range(uint32(TILE)):
                sums[row * TILE + x] += a_tile[row * TILE + k] * b_tile[k * TILE + x]
        cuda.syncthreads()
    for row in range(y, uint32(TILE), uint32(ROWS)):
        if first_row + row < d.shape[0] and column < d.shape[1]:
            d[first_row + row, column] = sums[row * TILE + x]


@cuda.jit
def flat_tiles(a, b, d):
    block(a, b, d, uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y))


@cuda.jit
def numbered(a, b, d):
    number = uint32(cuda.threadIdx.y) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x)
    block(a, b, d, number % uint32(TILE), number // uint32(TILE))


def run(a, b, d):
    launch(flat_tiles, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (TILE, ROWS), a, b, d)
    return d


def run_numbered(a, b, d):
    launch(numbered, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (TILE, ROWS), a, b, d)
    return d

"""Tiles of A, of B and of the sums in shared memory

A block loads a tile of A and a tile of B into shared memory, where each element is used by 32 threads; global memory
is read 32 times less. The sums are in shared memory too: 256 threads cover a 32 x 32 tile in four passes, and read and
write a sum in each step along k. A compiler may keep a sum in a register within a tile, and does.

    global memory          shared memory           256 threads: 32 x 8
    A ####........   --->  A 32 x 32  \\
                                       >  += --->  sums 32 x 32, rows y, y+8, y+16, y+24 by thread (x, y)
    B ##                   B 32 x 32  /
      ##             --->
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, ROWS = 32, 8  # the tile's side; rows that the block's threads take at once


@cuda.jit
def shared_sums(a, b, d):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    sums = cuda.shared.array((TILE, TILE), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    first_row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE) + x
    for row in range(y, uint32(TILE), uint32(ROWS)):
        sums[row, x] = 0
    for first in range(uint32(0), uint32(a.shape[1]), uint32(TILE)):
        for row in range(y, uint32(TILE), uint32(ROWS)):
            inside = first_row + row < a.shape[0] and first + x < a.shape[1]
            a_tile[row, x] = a[first_row + row, first + x] if inside else float32(0)
            inside = first + row < b.shape[0] and column < b.shape[1]
            b_tile[row, x] = b[first + row, column] if inside else float32(0)
        cuda.syncthreads()
        for row in range(y, uint32(TILE), uint32(ROWS)):
            for k in range(uint32(TILE)):
                sums[row, x] += a_tile[row, k] * b_tile[k, x]
        cuda.syncthreads()
    for row in range(y, uint32(TILE), uint32(ROWS)):
        if first_row + row < d.shape[0] and column < d.shape[1]:
            d[first_row + row, column] = sums[row, x]


def run(a, b, d):
    launch(shared_sums, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (TILE, ROWS), a, b, d)
    return d

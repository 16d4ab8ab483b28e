"""More bytes in flight

The remaining limit is latency: memory reaches its rate only with many bytes in flight. A tile of 64 x 64 by 256
threads gives each thread sixteen independent loads before the first barrier, four times as many as before, and half as
many barriers per byte. An extra column keeps column reads free of bank conflicts.

    one thread:  load, load, ... 16 loads, all on their way at once   | barrier |   16 stores
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32

TILE, PADDED, ROWS = 64, 65, 4
LOADS = TILE // ROWS


@cuda.jit
def wide_tiles(x, d):
    tile = cuda.shared.array((TILE, PADDED), x.dtype)
    held = cuda.local.array(LOADS, x.dtype)
    lane, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    for i in range(LOADS):
        r = first + i * ROWS
        if row + r < x.shape[0] and column + lane < x.shape[1]:
            held[i] = x[row + r, column + lane]
    for i in range(LOADS):
        tile[first + i * ROWS, lane] = held[i]
    cuda.syncthreads()
    for i in range(LOADS):
        r = first + i * ROWS
        if column + r < x.shape[1] and row + lane < x.shape[0]:
            d[column + r, row + lane] = tile[lane, r]


def run(x, d):
    launch(wide_tiles, (blocks(x.shape[1], TILE), blocks(x.shape[0], TILE)), (TILE, ROWS), x, d)
    return d

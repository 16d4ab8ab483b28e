"""A padded tile and a thread for each element

Without diagonals and loops. A tile of 32 x 33 is written by rows and read by columns without bank conflicts, because
its columns are in 32 different banks. Each of 1024 threads moves one element, so there are hardly any instructions
besides the load and the store.

    tile[y][x]    32 x 33                  lane x reads tile[x][y]:
    0 1 2 ... 31 *                         banks 0 + y, 33 + y, 66 + y ... : all different
    0 1 2 ... 31 *
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32

TILE, PADDED = 32, 33


@cuda.jit
def padded_tiles(x, d):
    tile = cuda.shared.array((TILE, PADDED), x.dtype)
    lane, line = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
    if row + line < x.shape[0] and column + lane < x.shape[1]:
        tile[line, lane] = x[row + line, column + lane]
    cuda.syncthreads()
    if column + line < x.shape[1] and row + lane < x.shape[0]:
        d[column + line, row + lane] = tile[lane, line]


def run(x, d):
    launch(padded_tiles, (blocks(x.shape[1], TILE), blocks(x.shape[0], TILE)), (TILE, TILE), x, d)
    return d

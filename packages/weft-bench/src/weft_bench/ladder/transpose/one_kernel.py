"""One kernel for whole and partial tiles

A flag merges the two kernels: a matrix of whole tiles skips every check, a partial one makes them. The flag is equal
for all threads, so no warp diverges. The gain is half of the code.

    aligned?  --- yes --->  read 4 rows, barrier, write 4 rows
              --- no  --->  the same, where inside: row < rows and column < columns
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32
from weft_bench.ladder.transpose.diagonal_tiles import ROWS, TILE, corner


@cuda.jit
def one_kernel(x, d):
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    lane, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = corner()
    aligned = x.shape[0] % TILE == 0 and x.shape[1] % TILE == 0
    if aligned or column + lane < x.shape[1]:
        for r in range(first, uint32(TILE), uint32(ROWS)):
            if aligned or row + r < x.shape[0]:
                tile[lane, lane ^ r] = x[row + r, column + lane]
    cuda.syncthreads()
    if aligned or row + lane < x.shape[0]:
        for r in range(first, uint32(TILE), uint32(ROWS)):
            if aligned or column + r < x.shape[1]:
                d[column + r, row + lane] = tile[r, r ^ lane]


def run(x, d):
    launch(one_kernel, (blocks(x.shape[1], TILE), blocks(x.shape[0], TILE)), (TILE, ROWS), x, d)
    return d

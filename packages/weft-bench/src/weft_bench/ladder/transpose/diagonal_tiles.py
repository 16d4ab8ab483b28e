"""Tiles through shared memory, blocks along diagonals

A block reads a tile by rows, keeps it in shared memory, and writes it by rows of the result: both sides of global
memory use whole transactions. The tile is stored transposed and swizzled, element (r, c) at c, c XOR r, so that
neither side has bank conflicts. Blocks are numbered along diagonals, so that concurrent blocks write to different
columns of tiles. On old GPUs this kept them out of one memory partition; later GPUs hash addresses. There are two
kernels: one for matrices of whole tiles, and one that checks each element.

    X: tile (1, 2)       shared memory        result: tile (2, 1)       order of blocks
    . . . .                                   . . . .                   0 3 2 1
    . . T .       --->   [ c , c ^ r ]  --->  . . . .                   1 0 3 2
    . . . .                                   . t . .                   2 1 0 3
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32

TILE, ROWS = 32, 8


@cuda.jit(device=True)
def corner():
    """The first row and column of X's tile: blocks go along diagonals."""
    number = uint32(cuda.blockIdx.x) + uint32(cuda.gridDim.x) * uint32(cuda.blockIdx.y)
    row = number % uint32(cuda.gridDim.y)
    column = (number // uint32(cuda.gridDim.y) + row) % uint32(cuda.gridDim.x)
    return row * uint32(TILE), column * uint32(TILE)


@cuda.jit
def diagonal_whole(x, d):
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    lane, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = corner()
    for r in range(first, uint32(TILE), uint32(ROWS)):
        tile[lane, lane ^ r] = x[row + r, column + lane]
    cuda.syncthreads()
    for r in range(first, uint32(TILE), uint32(ROWS)):
        d[column + r, row + lane] = tile[r, r ^ lane]


@cuda.jit
def diagonal_any(x, d):
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    lane, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = corner()
    for r in range(first, uint32(TILE), uint32(ROWS)):
        if row + r < x.shape[0] and column + lane < x.shape[1]:
            tile[lane, lane ^ r] = x[row + r, column + lane]
    cuda.syncthreads()
    for r in range(first, uint32(TILE), uint32(ROWS)):
        if column + r < x.shape[1] and row + lane < x.shape[0]:
            d[column + r, row + lane] = tile[r, r ^ lane]


def run(x, d):
    whole = x.shape[0] % TILE == 0 and x.shape[1] % TILE == 0
    grid = blocks(x.shape[1], TILE), blocks(x.shape[0], TILE)
    launch(diagonal_whole if whole else diagonal_any, grid, (TILE, ROWS), x, d)
    return d

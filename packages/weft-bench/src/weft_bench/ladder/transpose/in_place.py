"""In place: two tiles change places

A square matrix needs no second one. A block takes a tile and its mirror image across the diagonal, holds both in
shared memory, and writes each in the other's place; blocks below the diagonal do nothing. Both tiles are read before
either is written, so no block sees another's changes.

The published kernel reads and writes one tile per block, although another block may not yet have read the tile that it
overwrites. Here each block swaps its own two.

    . . . B          block (0, 3) holds T = tile (0, 3) and B' = tile (3, 0)
    . D . .          and writes T transposed to (3, 0), B' transposed to (0, 3);
    . . D .          a tile D on the diagonal is its own mirror image
    T . . .
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32

TILE, PADDED, ROWS = 32, 33, 8


@cuda.jit
def in_place(x):
    upper = cuda.shared.array((TILE, PADDED), x.dtype)
    lower = cuda.shared.array((TILE, PADDED), x.dtype)
    if cuda.blockIdx.x < cuda.blockIdx.y:
        return
    lane, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = uint32(cuda.blockIdx.y) * uint32(TILE), uint32(cuda.blockIdx.x) * uint32(TILE)
    side = x.shape[0]
    for r in range(first, uint32(TILE), uint32(ROWS)):
        if row + r < side and column + lane < side:
            upper[r, lane] = x[row + r, column + lane]
        if column + r < side and row + lane < side:
            lower[r, lane] = x[column + r, row + lane]
    cuda.syncthreads()
    for r in range(first, uint32(TILE), uint32(ROWS)):
        if row + r < side and column + lane < side:
            x[row + r, column + lane] = lower[lane, r]
        if column + r < side and row + lane < side:
            x[column + r, row + lane] = upper[lane, r]


def run(x):
    tiles = blocks(x.shape[0], TILE)
    launch(in_place, (tiles, tiles), (TILE, ROWS), x)
    return x

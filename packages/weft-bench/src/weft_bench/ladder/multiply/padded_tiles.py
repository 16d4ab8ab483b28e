"""One more column in each tile

Shared memory has 32 banks; lanes of a warp that access different words of one bank take turns. A column of a 32 x 32
tile is in a single bank; with a 33rd column it is spread over 32 banks. Padding helps only if lanes read columns. They
do if matrices are stored by columns; here, with rows, lanes read along rows or share one element, and padding changes
nothing.

    bank of element (row, column)
    32 columns:  (0,0)  0   (1,0)  0   (2,0)  0   ...     a column: one bank, 32 turns
    33 columns:  (0,0)  0   (1,0)  1   (2,0)  2   ...     a column: 32 banks, one turn
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE, PADDED = 32, 33


@cuda.jit
def padded_tiles(a, b, d):
    a_tile = cuda.shared.array((TILE, PADDED), float32)
    b_tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, column = uint32(cuda.blockIdx.y) * TILE + y, uint32(cuda.blockIdx.x) * TILE + x
    total = float32(0)
    for first in range(uint32(0), uint32(a.shape[1]), uint32(TILE)):
        a_tile[y, x] = a[row, first + x] if row < a.shape[0] and first + x < a.shape[1] else float32(0)
        b_tile[y, x] = b[first + y, column] if first + y < b.shape[0] and column < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(uint32(TILE)):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < d.shape[0] and column < d.shape[1]:
        d[row, column] = total


def run(a, b, d):
    launch(padded_tiles, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (TILE, TILE), a, b, d)
    return d

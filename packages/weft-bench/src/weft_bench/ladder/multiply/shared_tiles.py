"""Tiles in shared memory, the sum in a register

One thread for each element again, now with its sum in a register from beginning to end: shared memory holds only data
that threads share. A step takes two loads from shared memory and one multiply-add. Each load takes a cycle of the one
port to shared memory, while the SM could start four multiply-adds in a cycle.

    A 32 x 32            B 32 x 32             thread (x, y)
    . . . . . .          . . x . . .           for k: sum += A[y, k] * B[k, x]
    y y y y y y     *    . . x . . .   --->          1 fma, 2 loads
    . . . . . .          . . x . . .
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

TILE = 32


@cuda.jit
def shared_tiles(a, b, d):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
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
    launch(shared_tiles, (blocks(d.shape[1], TILE), blocks(d.shape[0], TILE)), (TILE, TILE), a, b, d)
    return d

"""Neighbouring threads take neighbouring columns

The same kernel with x as the column. At each step the lanes of a warp read one common element of A, which is
broadcast, and 32 adjacent elements of B: one transaction of 128 bytes instead of 32. Stores are coalesced in the same
way.

    a warp at step k            A                 B                    D
    lanes 0 1 2 ... 31      [k] . . . .       . . . . . .          x x x x x x
                            one element:  k>  x x x x x x          1 transaction
                            1 transaction     1 transaction
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

SIDE = 32


@cuda.jit
def coalesced(a, b, d):
    x, y = cuda.grid(2)
    column, row = uint32(x), uint32(y)
    if row < d.shape[0] and column < d.shape[1]:
        total = float32(0)
        k = uint32(0)
        while k < uint32(a.shape[1]):  # half the instructions of numba's `range`
            total += a[row, k] * b[k, column]
            k += uint32(1)
        d[row, column] = total


def run(a, b, d):
    grid = blocks(d.shape[1], SIDE), blocks(d.shape[0], SIDE)
    launch(coalesced, grid, (SIDE, SIDE), a, b, d)
    return d

"""One thread for each element

Every thread reads a whole row of A and a whole column of B. The threads of a warp are adjacent along x, and x is the
row here: at each step their 32 elements of A are in 32 different rows, so one load of A takes 32 transactions.

    a warp at step k            A                 B                 D
    lane 0                  [k] . . . .       . . . . . .       x . . . .
    lane 1                  [k] . . . .   k>  x . . . . .       x . . . .
    lane 2                  [k] . . . .       . . . . . .       x . . . .
                            32 rows: 32       one element:      32 rows: 32
                            transactions      1 transaction     transactions
"""

from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

SIDE = 32  # threads of a block along both dimensions


@cuda.jit
def naive(a, b, d):
    x, y = cuda.grid(2)
    row, column = uint32(x), uint32(y)
    if row < d.shape[0] and column < d.shape[1]:
        total = float32(0)
        k = uint32(0)
        while k < uint32(a.shape[1]):  # half the instructions of numba's `range`
            total += a[row, k] * b[k, column]
            k += uint32(1)
        d[row, column] = total


def run(a, b, d):
    grid = blocks(d.shape[0], SIDE), blocks(d.shape[1], SIDE)
    launch(naive, grid, (SIDE, SIDE), a, b, d)
    return d

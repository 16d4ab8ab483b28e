"""One thread for each element

Every thread reads a whole row of A and a whole column of B. The threads of a warp stand side by side along x, and x is
the row here: at each step their 32 elements of A lie in 32 different rows, so one load of A becomes 32 transactions.

    a warp at step k            A                 B                 D
    lane 0                  [k] . . . .       . . . . . .       x . . . .
    lane 1                  [k] . . . .   k>  x . . . . .       x . . . .
    lane 2                  [k] . . . .       . . . . . .       x . . . .
                            32 rows: 32       one element:      32 rows: 32
                            transactions      1 transaction     transactions
"""

from weft.ladder.threads import blocks, cuda, float32, launch

SIDE = 32  # threads of a block along both dimensions


@cuda.jit
def naive(a, b, d):
    row, column = cuda.grid(2)
    if row < d.shape[0] and column < d.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        d[row, column] = total


def run(a, b, d):
    grid = blocks(d.shape[0], SIDE), blocks(d.shape[1], SIDE)
    launch(naive, grid, (SIDE, SIDE), a, b, d)
    return d

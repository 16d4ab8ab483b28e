"""One thread for each element

Neighbouring threads read neighbours of a row, one transaction for a warp, and write them into a column of the result.
Each lane stores to another row and uses a sector of 32 bytes alone.

    X (row, column)                        result (column, row)
    lane 0 1 2 3 ... 31                    0 . . .
    x x x x x x x x x   1 transaction      1 . . .     32 transactions
    . . . . . . . . .                      2 . . .
"""

from weft_bench.ladder.threads import blocks, cuda, launch, uint32

SIDE = 32


@cuda.jit
def by_reads(x, d):
    across, down = cuda.grid(2)
    column, row = uint32(across), uint32(down)
    if row < x.shape[0] and column < x.shape[1]:
        d[column, row] = x[row, column]


def run(x, d):
    launch(by_reads, (blocks(x.shape[1], SIDE), blocks(x.shape[0], SIDE)), (SIDE, SIDE), x, d)
    return d

"""Shuffles: a warp for each row, and no shared memory

The lanes of a warp can read each other's registers. A warp sums a row: its lanes add every 32nd element, and five
shuffles add the 32 sums. This needs no barrier and no memory; a block of eight warps sums eight rows.

    lanes 0 .. 31    total += total of lane + 16, + 8, + 4, + 2, + 1      five instructions of each
"""

from weft.errors import UnsupportedError
from weft_bench.ladder.threads import SIMULATED, blocks, cuda, float32, launch, uint32

WARP, ROWS = 32, 8


@cuda.jit
def shuffles(x, d):
    lane = uint32(cuda.threadIdx.x)
    row = uint32(cuda.blockIdx.x) * uint32(ROWS) + uint32(cuda.threadIdx.y)
    total = float32(0)
    if row < x.shape[0]:
        for column in range(lane, uint32(x.shape[1]), uint32(WARP)):
            total += x[row, column]
    distance = WARP // 2
    while distance > 0:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)
        distance //= 2
    if lane == 0 and row < x.shape[0]:
        d[row] = total


def run(x, d):
    if SIMULATED:
        raise UnsupportedError("numba's simulator has no shuffles")
    launch(shuffles, (blocks(x.shape[0], ROWS),), (WARP, ROWS), x, d)
    return d

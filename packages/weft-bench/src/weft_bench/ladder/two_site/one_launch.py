"""Stage 6: one launch, and T never leaves the chip

A block computes T for one b and sixteen p in shared memory and multiplies it by M at once. This takes one launch
instead of two, and T is neither written to memory nor read from it. Shared memory holds all of T, so the bond may have
256 indices.

    block b:    G, X[b]  --->  T[b]: 16 x 256 in shared memory  --->  * M, tile by tile  --->  Y[b]
                         launch 1 before                 launch 2 before
"""

from weft.errors import UnsupportedError
from weft_bench.ladder.threads import blocks, cuda, float32, launch, uint32

ROWS, STEP, HIGH_SUMS, WIDE_SUMS = 16, 16, 4, 8
MOST, PADDED, WIDE, HIGH = 256, STEP + 4, 32, 4  # MOST: of c, and columns of Y at once


@cuda.jit(device=True)
def add_products(left, first_k, right, x, y, sums):
    for k in range(uint32(STEP)):
        for i in range(HIGH_SUMS):
            for j in range(WIDE_SUMS):
                sums[i, j] += left[y * HIGH_SUMS + i, first_k + k] * right[k, x + j * WIDE]


@cuda.jit(device=True)
def zero(sums):
    for i in range(HIGH_SUMS):
        for j in range(WIDE_SUMS):
            sums[i, j] = 0


@cuda.jit
def one_launch(g, x_all, m, y_all):
    g_tile = cuda.shared.array((ROWS, PADDED), float32)
    t_tile = cuda.shared.array((ROWS, MOST), float32)
    right = cuda.shared.array((STEP, MOST), float32)
    sums = cuda.local.array((HIGH_SUMS, WIDE_SUMS), float32)
    x, y, b = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), cuda.blockIdx.x
    p_first, bond = uint32(cuda.blockIdx.y) * ROWS, x_all.shape[2]
    zero(sums)
    for first in range(uint32(0), uint32(g.shape[1]), uint32(STEP)):  # T = G X[b]
        for i in range(HIGH_SUMS):
            r = y * HIGH_SUMS + i
            if x < STEP:
                inside = p_first + r < g.shape[0] and first + x < g.shape[1]
                g_tile[r, x] = g[p_first + r, first + x] if inside else float32(0)
            for j in range(WIDE_SUMS):
                c = x + j * WIDE
                right[r, c] = x_all[b, first + r, c] if first + r < g.shape[1] and c < bond else float32(0)
        cuda.syncthreads()
        add_products(g_tile, uint32(0), right, x, y, sums)
        cuda.syncthreads()
    for i in range(HIGH_SUMS):
        for j in range(WIDE_SUMS):
            t_tile[y * HIGH_SUMS + i, x + j * WIDE] = sums[i, j]
    for r_first in range(uint32(0), uint32(m.shape[1]), uint32(MOST)):  # Y[b] = T M
        zero(sums)
        for first in range(uint32(0), uint32(bond), uint32(STEP)):
            for i in range(HIGH_SUMS):
                for j in range(WIDE_SUMS):
                    c, r = first + y * HIGH_SUMS + i, r_first + x + j * WIDE
                    right[y * HIGH_SUMS + i, x + j * WIDE] = m[c, r] if c < bond and r < m.shape[1] else float32(0)
            cuda.syncthreads()
            add_products(t_tile, first, right, x, y, sums)
            cuda.syncthreads()
        for i in range(HIGH_SUMS):
            for j in range(WIDE_SUMS):
                p, r = p_first + y * HIGH_SUMS + i, r_first + x + j * WIDE
                if p < y_all.shape[1] and r < m.shape[1]:
                    y_all[b, p, r] = sums[i, j]


def run(g, x, m, y):
    if x.shape[2] > MOST:
        raise UnsupportedError(f"this kernel keeps a bond of at most {MOST} on the chip, not of {x.shape[2]}")
    launch(one_launch, (y.shape[0], blocks(y.shape[1], ROWS)), (WIDE, HIGH), g, x, m, y)
    return y

"""Tensor cores by groups of four warps

Four warps together start Hopper's instruction (`wgmma`). It multiplies up to 64 x 256 x 16, reads its operands
directly from shared memory, and runs while the warps continue. Larger tiles read global memory less often: 128 x 256
needs each element of A once for 256 columns. Threads still compute every address and issue every copy (`cp.async`).

    8 warps              global memory --cp.async--> 3 stages of tiles in shared memory
    warps 0-3            rows  0 ..  63: wgmma 64 x 256 x 16, straight from shared memory
    warps 4-7            rows 64 .. 127: the same
"""

from weft_bench.ladder.tiles import grouped_tile, need_dot, tile_count, tl, triton


@triton.jit
def warpgroup_mma(a, b, d, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    m, n = grouped_tile(tl.program_id(0), tl.cdiv(M, TM), tl.cdiv(N, TN), 8)
    rows, columns, k = m * TM + tl.arange(0, TM), n * TN + tl.arange(0, TN), tl.arange(0, TK)
    sums = tl.zeros((TM, TN), tl.float32)
    for first in range(0, K, TK):
        inside = first + k < K
        x = tl.load(a + rows[:, None] * K + (first + k)[None, :], (rows[:, None] < M) & inside[None, :], 0.0)
        y = tl.load(b + (first + k)[:, None] * N + columns[None, :], inside[:, None] & (columns[None, :] < N), 0.0)
        sums = tl.dot(x, y, sums)
    result = sums.to(d.dtype.element_ty)
    tl.store(d + rows[:, None] * N + columns[None, :], result, (rows[:, None] < M) & (columns[None, :] < N))


def run(a, b, d):
    need_dot(a)
    (m, k), n = a.shape, b.shape[1]
    grid = (tile_count(m, 128) * tile_count(n, 256),)
    warpgroup_mma[grid](a, b, d, m, n, k, TM=128, TN=256, TK=64, num_warps=8, num_stages=3)
    return d

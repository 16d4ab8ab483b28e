"""Tensor cores by single warps, in half precision

This instruction belongs to one warp (`mma.sync`, which the wmma interface generates): 32 lanes hold fragments of A and
B in registers and multiply 16 x 8 x 16 at a time. Values of 16 bits halve all traffic and double the rate. A program
of two warps is too small for Hopper's wider instruction, so the compiler selects this one, and every fragment passes
through registers.

    one program:   A [64 x 32]  .  B [32 x 64]  -->  sums [64 x 64]
    warp 0         upper half: mma 16 x 8 x 16, 2 x 8 of them for each 16 of k
    warp 1         lower half
"""

from weft_bench.ladder.tiles import grouped_tile, need_dot, tile_count, tl, triton


@triton.jit
def warp_mma(a, b, d, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
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
    warp_mma[(tile_count(m, 64) * tile_count(n, 64),)](a, b, d, m, n, k, TM=64, TN=64, TK=32, num_warps=2, num_stages=3)
    return d

"""Tensor cores on the same numbers: TF32

A tensor core multiplies small tiles in one instruction. It reads fp32 values with ten bits of mantissa instead of 23
and adds in fp32. A Triton program describes a tile instead of a thread: `tl.dot` is the product of two tiles, and the
compiler distributes it over warps and loads the next tiles meanwhile. Hopper's TF32 instruction needs k along the rows
of both operands; B is stored otherwise and goes through registers.

    one program:   A [128 x 32]  .  B [32 x 128]  -->  sums [128 x 128] in the registers of 8 warps
                   8 + 1 + 10 bits of each value          8 + 1 + 23 bits of each sum
"""

from weft_bench.ladder.tiles import grouped_tile, tile_count, tl, triton


@triton.jit
def tf32(a, b, d, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    m, n = grouped_tile(tl.program_id(0), tl.cdiv(M, TM), tl.cdiv(N, TN), 8)
    rows, columns, k = m * TM + tl.arange(0, TM), n * TN + tl.arange(0, TN), tl.arange(0, TK)
    sums = tl.zeros((TM, TN), tl.float32)
    for first in range(0, K, TK):
        inside = first + k < K
        x = tl.load(a + rows[:, None] * K + (first + k)[None, :], (rows[:, None] < M) & inside[None, :], 0.0)
        y = tl.load(b + (first + k)[:, None] * N + columns[None, :], inside[:, None] & (columns[None, :] < N), 0.0)
        sums = tl.dot(x, y, sums, input_precision="tf32")
    tl.store(d + rows[:, None] * N + columns[None, :], sums, (rows[:, None] < M) & (columns[None, :] < N))


def run(a, b, d):
    (m, k), n = a.shape, b.shape[1]
    tf32[(tile_count(m, 128) * tile_count(n, 128),)](a, b, d, m, n, k, TM=128, TN=128, TK=32, num_warps=8, num_stages=3)
    return d

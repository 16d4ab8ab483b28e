"""TMA: a unit that copies tiles

The Tensor Memory Accelerator describes a matrix by a map of its extents and strides. One thread requests a tile by its
corner and continues. The unit computes addresses, fills elements outside with zeros, writes shared memory in the order
that wgmma reads, and signals a barrier when all bytes have arrived. This frees the registers and instructions of
address arithmetic.

    one thread       tile (m, k) of map A, tile (k, n) of map B, please
    TMA              global memory ========> shared memory, swizzled; arrives at the stage's barrier
    all warps        wait at the barrier, wgmma
"""

from weft_bench.ladder.tiles import TensorDescriptor, grouped_tile, need_aligned_rows, need_dot, tile_count, tl, triton

TILE_M, TILE_N, TILE_K = 128, 256, 64


@triton.jit
def tensor_maps(a, b, d, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    m, n = grouped_tile(tl.program_id(0), tl.cdiv(M, TM), tl.cdiv(N, TN), 8)
    sums = tl.zeros((TM, TN), tl.float32)
    for first in range(0, K, TK):
        x = a.load([m * TM, first])
        y = b.load([first, n * TN])
        sums = tl.dot(x, y, sums)
    d.store([m * TM, n * TN], sums.to(d.dtype))


def run(a, b, d):
    need_dot(a)
    (m, k), n = a.shape, b.shape[1]
    need_aligned_rows(a, b, d)
    maps = [
        TensorDescriptor.from_tensor(tensor, tile)
        for tensor, tile in ((a, [TILE_M, TILE_K]), (b, [TILE_K, TILE_N]), (d, [TILE_M, TILE_N]))
    ]
    grid = (tile_count(m, TILE_M) * tile_count(n, TILE_N),)
    tensor_maps[grid](*maps, m, n, k, TM=TILE_M, TN=TILE_N, TK=TILE_K, num_warps=8, num_stages=3)
    return d

"""Warps with one task each

One warp only loads, and two groups of four only multiply, so neither waits for work that another could do. The roles
synchronise on two barriers in shared memory for each stage: `full` when TMA has loaded the tiles, `empty` when both
consumers have read them. The loading warp gives its registers to the multiplying groups, which hold 64 x 256 sums
each.

    producer, 1 warp     wait empty[s] -> ask TMA for tiles of stage s -> full[s]
    consumer 0, 4 warps  wait full[s]  -> wgmma, rows  0 ..  63         -> empty[s]
    consumer 1, 4 warps  wait full[s]  -> wgmma, rows 64 .. 127         -> empty[s]
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)  # fmt: skip
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.warp_specialized.pipeline import meet_and_arrive
from weft_bench.ladder.gluon import needs_gpu, next_stage
from weft_bench.ladder.tiles import grouped_tile, need_aligned_rows, tile_count

TILE_M, TILE_N, TILE_K, STAGES, ROWS = 128, 256, 64, 3, 64  # ROWS: of a consumer
meet, tma_load, tma_store, _ = gluon_names()


@gluon.jit
def produce(a, b, a_tiles, b_tiles, full, empty, row, column, steps, STAGES: gl.constexpr):
    BYTES: gl.constexpr = a.block_type.nbytes + b.block_type.nbytes
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)  # all stages are empty at first
    for step in range(steps):
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(full.index(stage), BYTES)
        tma_load(a, [row, step * a.block_shape[1]], full.index(stage), a_tiles.index(stage))
        tma_load(b, [step * a.block_shape[1], column], full.index(stage), b_tiles.index(stage))
        stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def consume(
    d, a_tiles, b_tiles, results, full, empty, row, column, steps, STAGES: gl.constexpr, CONSUMER: gl.constexpr
):
    HALF: gl.constexpr = d.block_shape[0]
    COLUMNS: gl.constexpr = d.block_shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    sums = warpgroup_mma_init(gl.full([HALF, COLUMNS], 0, gl.float32, LAYOUT))
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    before = gl.to_tensor(0)  # no `stage`: of two names for one value Triton carries one round the loop
    for step in range(steps):
        mbarrier.wait(full.index(stage), phase)
        x = a_tiles.index(stage).slice(CONSUMER * HALF, HALF, 0)
        sums = warpgroup_mma(x, b_tiles.index(stage), sums, is_async=True)
        sums = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(sums,)))  # the products of the step before are there
        if step > 0:
            meet_and_arrive(empty.index(before))
        before = stage
        stage, phase = next_stage(stage, phase, STAGES)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    results.index(CONSUMER).store(sums.to(d.dtype))
    fence_async_shared()
    meet()
    tma_store(d, [row + CONSUMER * HALF, column], results.index(CONSUMER))
    tma.store_wait(0)


@gluon.jit
def warp_specialization(a, b, d, M, N, K, STAGES: gl.constexpr):
    TM: gl.constexpr = a.block_shape[0]
    TN: gl.constexpr = b.block_shape[1]
    TK: gl.constexpr = a.block_shape[1]
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES, TM, TK], a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES, TK, TN], b.layout)
    results = gl.allocate_shared_memory(d.dtype, [2, TM // 2, TN], d.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    m, n = grouped_tile(gl.program_id(0), gl.cdiv(M, TM), gl.cdiv(N, TN), 8)
    row, column, steps = m * TM, n * TN, gl.cdiv(K, TK)
    gl.warp_specialize(
        [
            (consume, (d, a_tiles, b_tiles, results, full, empty, row, column, steps, STAGES, 0)),
            (consume, (d, a_tiles, b_tiles, results, full, empty, row, column, steps, STAGES, 1)),
            (produce, (a, b, a_tiles, b_tiles, full, empty, row, column, steps, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


def tensor_map(tensor, tile):
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float16)
    return TensorDescriptor.from_tensor(tensor, tile, layout)


def run(a, b, d):
    needs_gpu()
    need_aligned_rows(a, b, d)
    (m, k), n = a.shape, b.shape[1]
    maps = (
        tensor_map(a, [TILE_M, TILE_K]), tensor_map(b, [TILE_K, TILE_N]), tensor_map(d, [ROWS, TILE_N]),
    )  # fmt: skip
    grid = (tile_count(m, TILE_M) * tile_count(n, TILE_N),)
    warp_specialization[grid](*maps, m, n, k, STAGES=STAGES, num_warps=4)
    return d

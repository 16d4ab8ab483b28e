"""How accumulators leave: piece by piece through shared memory, finished or as shares of split sums."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from weft.gpu.common.device import scalar
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.tma.kernel import tma_coords
from weft.gpu.warp_specialized.roles import WARPS

CONSUMER_WARPS = gl.constexpr(WARPS)
meet_threads, _, tma_store, reinterpret = gluon_names()


@gluon.jit
def split_n(pieces):
    """The left and the right half of each of some matrices."""
    ROWS: gl.constexpr = pieces[0].shape[0]
    COLUMNS: gl.constexpr = pieces[0].shape[1] // 2
    found = ()
    for i in gl.static_range(len(pieces)):
        found += gl.split(gl.permute(gl.reshape(pieces[i], (ROWS, 2, COLUMNS)), (0, 2, 1)))
    return found


@gluon.jit
def store_subtile(
    acc, d, staging, first_slot, alpha, to, batch_block, m_block, n_block, PARAMS: gl.constexpr, SHARE: gl.constexpr,
    AT: gl.constexpr, EPILOGUE: gl.constexpr,
):  # fmt: skip
    """Leave some columns of an accumulator as a share of a split sum, or finish them; on their way to memory they are
    nobody's concern."""
    PIECE: gl.constexpr = SHARE.pieces[AT]
    BATCH: gl.constexpr = PARAMS.boxes.batch
    M: gl.constexpr = PIECE.m
    N: gl.constexpr = PIECE.n
    D_BOX: gl.constexpr = PARAMS.d_box
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, N.tile, 256 // PARAMS.product_bits])
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True)
    start = ()
    if PARAMS.boxes.splits > 1:
        start += (to, gl.to_tensor(PIECE.row), gl.to_tensor(PIECE.column))
    else:
        value = value * scalar(alpha, acc.dtype)
        if EPILOGUE is not None:
            value = EPILOGUE(value)
        for i in gl.static_range(len(D_BOX)):
            start += (tma_coords(batch_block, m_block, n_block, BATCH, M, N, D_BOX, i),)
    if PARAMS.consumers.buffers <= AT:  # those before wait for nothing: `leave` did
        tma.store_wait(PARAMS.consumers.buffers - 1)
        meet_threads()
    stage = staging.index(first_slot + AT % PARAMS.consumers.buffers)
    if PARAMS.d_along_n:
        stage.store(value.to(d.dtype))
    else:
        stage.permute((1, 0)).store(value.to(d.dtype))
    fence_async_shared()
    meet_threads()
    tma_store(d, start, reinterpret(stage, d.dtype, d.block_shape, d.layout))


@gluon.jit
def store_tile(
    acc, d, staging, first_slot, alpha, to, batch_block, m_block, n_block, PARAMS: gl.constexpr, SHARE: gl.constexpr,
    EPILOGUE: gl.constexpr,
):  # fmt: skip
    """The same of all columns, piece by piece."""
    pieces = (warpgroup_mma_wait(0, deps=(acc,)),)
    HALVINGS: gl.constexpr = SHARE.halvings
    for _ in gl.static_range(HALVINGS):
        pieces = split_n(pieces)
    tma.store_wait(0)
    meet_threads()
    for i in gl.static_range(len(pieces)):
        store_subtile(
            pieces[i], d, staging, first_slot, alpha, to, batch_block, m_block, n_block, PARAMS, SHARE, i, EPILOGUE
        )  # fmt: skip

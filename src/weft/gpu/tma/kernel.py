"""The kernel whose operands come by TMA, and whose results go to D by ordinary stores, in D's own order.

All warps do the same; Triton's compiler pipelines the loads. A CTA stays and takes one work tile after the other, so
that the loads of the next one run while the last is stored. A work tile is an output tile, or one split-K partial of
it, which goes to a workspace; `reduce_splits_kernel` then adds the partials.

    where              what happens to a work tile
    scalar registers   (1) its output tile (batch, m, n), its first step along k
    shared memory      (2) TMA loads tiles of A and B, as many steps ahead as the schedule has stages
    registers          (3) functions of A and B, masks past the end of k
    tensor cores       (4) products, one accumulator for each part of the tile along n
    registers          (5) alpha, C, beta and the epilogue, subtile by subtile; stores to D, or to the workspace
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.addresses import axis_start, dim_mask
from weft.gpu.common.device import gathered, gathered_step
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.tiles import (
    a_mask,
    a_offsets,
    b_mask,
    b_offsets,
    partial_offsets,
    settled,
    store_block,
    tile_coords,
)


@triton.jit
def tma_coord(
    batch_tile, outer_tile, k_tile, BATCH: tl.constexpr, OUTER: tl.constexpr, K: tl.constexpr,
    DIMS: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """First index of a tile along dimension `AT` of a tensor map; `DIMS` are `params.TmaDim`."""
    ROLE: tl.constexpr = DIMS[AT][0]
    AXIS: tl.constexpr = DIMS[AT][1]
    if ROLE == 0:
        return tl.cast(axis_start(batch_tile, BATCH, AXIS), tl.int32)
    elif ROLE == 1:
        return tl.cast(axis_start(outer_tile, OUTER, AXIS), tl.int32)
    else:
        return tl.cast(axis_start(k_tile, K, AXIS), tl.int32)


@triton.jit
def load_operand(
    tensor_map,
    at,  # (batch, outer, k): numbers of the tile
    BATCH: tl.constexpr,
    OUTER: tl.constexpr,
    K: tl.constexpr,
    DIMS: tl.constexpr,
    ALONG_K: tl.constexpr,
):
    """A tile of an operand, (outer, k). It has one index along every dimension but two, so it is a matrix."""
    batch_tile, outer_tile, k_tile = at
    RANK: tl.constexpr = len(DIMS)
    start = (
        tma_coord(batch_tile, outer_tile, k_tile, BATCH, OUTER, K, DIMS, RANK - 2),
        tma_coord(batch_tile, outer_tile, k_tile, BATCH, OUTER, K, DIMS, RANK - 1),
    )
    for i in tl.static_range(RANK - 2):
        start = (tma_coord(batch_tile, outer_tile, k_tile, BATCH, OUTER, K, DIMS, RANK - 3 - i),) + start  # noqa: RUF005 (Triton unpacks no tuple in a tuple)
    tile = tensor_map.load(start)
    if ALONG_K:
        return tile if RANK == 2 else tl.reshape(tile, (OUTER.tile, K.tile))
    else:
        return tile.T if RANK == 2 else tl.reshape(tile, (K.tile, OUTER.tile)).T


@triton.jit
def load_a(a, pointers, known, at, PARAMS: tl.constexpr, OP: tl.constexpr):
    """(2, 3) A tile of A, (m, k), its function applied in the type of products. Past the end of k it stays zero."""
    BATCH: tl.constexpr = PARAMS.batch
    M: tl.constexpr = PARAMS.m
    K: tl.constexpr = PARAMS.k
    A_DIMS: tl.constexpr = PARAMS.a_dims
    A_FN: tl.constexpr = OP.a_fn
    AUX_A: tl.constexpr = OP.aux.a
    x = load_operand(a, at, BATCH, M, K, A_DIMS, PARAMS.a_along_k)
    if A_FN is not None:
        x = A_FN(x, *gathered_step(known, pointers, at, AUX_A, K, PARAMS, a_offsets, a_mask)).to(OP.product)
        if PARAMS.masked:
            x = tl.where(dim_mask(at[2], tl.arange(0, K.tile), K)[None, :], x, 0)
    if PARAMS.widen:
        x = x.to(OP.accumulate)
    return x


@triton.jit
def multiply_part(acc, x, b, pointers, known, at, PARAMS: tl.constexpr, PART: tl.constexpr, OP: tl.constexpr):
    """(2, 3, 4) Add the product of a tile of A, in the type of products, and the tile of B of one part along n."""
    BATCH: tl.constexpr = PARAMS.batch
    N: tl.constexpr = PART.n
    K: tl.constexpr = PARAMS.k
    B_DIMS: tl.constexpr = PARAMS.b_dims
    B_FN: tl.constexpr = OP.b_fn
    AUX_B: tl.constexpr = OP.aux.b
    y = load_operand(b, at, BATCH, N, K, B_DIMS, PARAMS.b_along_k).T
    if B_FN is not None:
        y = B_FN(y, *gathered_step(known, pointers, at, AUX_B, K, PART, b_offsets, b_mask)).to(OP.product)
        if PARAMS.masked:
            y = tl.where(dim_mask(at[2], tl.arange(0, K.tile), K)[:, None], y, 0)
    if PARAMS.widen:
        y = y.to(acc.dtype)
    # fp8 products of one step may be added with fewer digits, those of different steps may not.
    return tl.dot(x, y, acc, input_precision=OP.precision, max_num_imprecise_acc=K.tile, out_dtype=acc.dtype)


@triton.jit
def multiply(
    maps,  # of A, of B's first part along n, of its second
    pointers,
    tile,  # (batch, m, n): numbers of the output tile
    first_step,
    PARAMS: tl.constexpr,
    OP: tl.constexpr,
):
    """The accumulators of a work tile: one for each part along n, the first one twice where there is but one."""
    a, b, b_rest = maps
    batch_tile, m_tile, n_tile = tile
    AUX_A: tl.constexpr = OP.aux.a
    AUX_B: tl.constexpr = OP.aux.b
    FIRST: tl.constexpr = PARAMS.n_parts[0]
    SECOND: tl.constexpr = PARAMS.n_parts[-1]
    TWO: tl.constexpr = len(PARAMS.n_parts) == 2
    COMPUTED: tl.constexpr = OP.a_fn is not None or PARAMS.widen
    SHAPE: tl.constexpr = (PARAMS.m.tile, FIRST.n.tile)
    REST_SHAPE: tl.constexpr = (PARAMS.m.tile, SECOND.n.tile)
    acc = tl.zeros(SHAPE, dtype=OP.accumulate)
    aux_a = gathered(pointers, (batch_tile, m_tile, 0), AUX_A, PARAMS, a_offsets, a_mask)
    aux_b = gathered(pointers, (batch_tile, n_tile, 0), AUX_B, FIRST, b_offsets, b_mask)
    acc_rest = acc
    if TWO:
        acc_rest = tl.zeros(REST_SHAPE, dtype=OP.accumulate)
        aux_rest = gathered(pointers, (batch_tile, n_tile, 0), AUX_B, SECOND, b_offsets, b_mask)
    for step in range(PARAMS.steps):
        k_tile = first_step + step
        x = load_a(a, pointers, aux_a, (batch_tile, m_tile, k_tile), PARAMS, OP)
        if OP.a_fn is not None and OP.b_fn is not None and (TWO or (PARAMS.masked and len(AUX_A) > 0)):
            # x goes to the tensor cores through shared memory. Without this barrier the one that x needs stands
            # between the stores of y and their fence for the tensor cores, which may then read too early.
            tl.debug_barrier()
        at = (batch_tile, n_tile, k_tile)
        acc = multiply_part(acc, x, b, pointers, aux_b, at, PARAMS, FIRST, OP)
        if TWO:
            acc_rest = multiply_part(acc_rest, x, b_rest, pointers, aux_rest, at, PARAMS, SECOND, OP)
            if COMPUTED:  # what the last wgmma waits for, those before it have done
                acc_rest = settled(acc_rest)
        elif COMPUTED:
            acc = settled(acc)
    return acc, acc_rest


@triton.jit
def split_n(acc):
    """The left and the right half of a matrix."""
    ROWS: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def store_subtile(acc, results, work_tile, tile, PARAMS: tl.constexpr, SUBTILE: tl.constexpr, OP: tl.constexpr):
    """Store some columns as a split-K partial, or finish them and store them in D."""
    c, d, partials, pointers, alpha, beta = results
    if PARAMS.splits > 1:
        tl.store(partials + partial_offsets(work_tile, PARAMS, SUBTILE.first, SUBTILE.n.tile), acc)
    else:
        store_block(acc, (c, d, pointers), (alpha, beta), tile, SUBTILE, OP)


@triton.jit
def store_two(
    acc, results, work_tile, tile, PARAMS: tl.constexpr, PART: tl.constexpr, AT: tl.constexpr, OP: tl.constexpr
):
    """Store the columns of two subtiles, the first of them number `AT`."""
    LEFT: tl.constexpr = PART.subtiles[AT]
    RIGHT: tl.constexpr = PART.subtiles[AT + 1]
    left, right = split_n(acc)
    store_subtile(left, results, work_tile, tile, PARAMS, LEFT, OP)
    store_subtile(right, results, work_tile, tile, PARAMS, RIGHT, OP)


@triton.jit
def store_tile(acc, results, work_tile, tile, PARAMS: tl.constexpr, PART: tl.constexpr, OP: tl.constexpr):
    """(5) The same of an accumulator, in one, two or four subtiles. The compiler passes a tile through shared memory
    before it is stored, and a subtile of that size fits beside the stages."""
    if len(PART.subtiles) == 1:
        WHOLE: tl.constexpr = PART.subtiles[0]
        store_subtile(acc, results, work_tile, tile, PARAMS, WHOLE, OP)
    elif len(PART.subtiles) == 2:
        store_two(acc, results, work_tile, tile, PARAMS, PART, 0, OP)
    else:
        left, right = split_n(acc)
        store_two(left, results, work_tile, tile, PARAMS, PART, 0, OP)
        store_two(right, results, work_tile, tile, PARAMS, PART, 2, OP)


@triton.jit(do_not_specialize=["alpha", "beta"])
def tma_kernel(
    a,  # tensor map, tiles (M, K) or (K, M)
    b,  # tensor map, tiles (N, K) or (K, N), of the tile's first part along n
    b_rest,  # the same of its second part; None where there is but one
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    partials,  # (splits * output tiles, M, N); None where sums are whole
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of auxiliary operands and of further results; None where there are none
    PARAMS: tl.constexpr,  # params.TmaParams
    OP: tl.constexpr,  # KernelOperation
):
    pdl_wait()
    FIRST: tl.constexpr = PARAMS.n_parts[0]
    SECOND: tl.constexpr = PARAMS.n_parts[-1]
    results = (c, d, partials, pointers, alpha, beta)
    WORK_TILES: tl.constexpr = PARAMS.blocks * PARAMS.splits
    for work_tile in tl.range(tl.program_id(0), WORK_TILES, PARAMS.programs, flatten=PARAMS.flatten):
        # (1) Find the output tile, and where its sum, or this partial of it, begins along k.
        tile = tile_coords(work_tile % PARAMS.blocks, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)
        first_step = work_tile // PARAMS.blocks * PARAMS.steps

        # (2, 3, 4) Load, apply functions and multiply, step by step. TMA reads zeros past the end of a mode.
        acc, acc_rest = multiply((a, b, b_rest), pointers, tile, first_step, PARAMS, OP)

        # (5) Store the partial, or finish the output tile.
        store_tile(acc, results, work_tile, tile, PARAMS, FIRST, OP)
        if len(PARAMS.n_parts) == 2:
            store_tile(acc_rest, results, work_tile, tile, PARAMS, SECOND, OP)

"""The kernel that applies the functions of both operands to tiles in shared memory, before they are multiplied.

For output tiles whose accumulators leave consumers no registers for rows that a function is applied to. The functions
are shared among all roles, and each has about as much to do: a consumer has A's function for its rows, a transformer
B's for a third of the columns. The first consumer is also the producer. For stage s of the pipeline:

    role              warps    waits for      then                                           arrives at
    consumer 0, 1     4 each   full[s]        applies A's function to its rows of this step
                               ready[s - 1]   multiplies the step before, while doing that   empty[s - 1]
    consumer 0, too            empty[s - 2]   requests tiles for that stage                  full[s - 2], by TMA
    transformer 0-2   4 each   full[s]        applies B's function to its lines              ready[s]

    step      k             k + 1         k + 2
    TMA       full[k]       full[k+1]     full[k+2]
    transf.   B_FN[k]       B_FN[k+1]     B_FN[k+2]
    consumer  A_FN[k]       A_FN[k+1]     A_FN[k+2]
                            wgmma[k]      wgmma[k+1]

Barriers have one phase bit, which flips with every round of the pipeline; the producer waits for the other phase, as
stages are empty at first. Each CTA has one work tile. After it no tiles of A are loaded any more, and subtiles of D
are staged where they were.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from weft.gpu.common.addresses import dim_mask
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.split_k import split_with_tail
from weft.gpu.common.tiles import tile_coords
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.warp_specialized.kernel import CONSUMER_WARPS, consumer_rows
from weft.gpu.warp_specialized.pipeline import (
    accumulator,
    columns_of_b,
    load_a,
    load_b,
    meet_and_arrive,
    multiply,
    next_stage,
    output_tile_of,
    start_roles,
    tile_memory,
    wait_for_products,
)
from weft.gpu.warp_specialized.tiles import line_layout, store_tile, transformed

sync_role, _, _, reinterpret = gluon_names()


@gluon.jit
def split_with_tail_of(program, PARAMS: gl.constexpr):
    """A CTA's work tile: the number of its output tile, and its partial as (number, of how many, steps)."""
    STEPS: gl.constexpr = PARAMS.tma.steps
    SPLITS: gl.constexpr = PARAMS.tma.splits
    if PARAMS.tail_splits.splits == 0:
        number, output_tile = output_tile_of(program, PARAMS, 0)
        return output_tile, (number, SPLITS, STEPS)
    else:
        TILES: gl.constexpr = PARAMS.tiles
        TAIL_SPLITS: gl.constexpr = PARAMS.tail_splits
        output_tile, number, of, steps = split_with_tail(program, TILES, SPLITS, STEPS, TAIL_SPLITS)
        return output_tile, (number, of, steps)


@gluon.jit
def along_k(step, split):
    """Where a step is along k. Partials take steps in turn: so all CTAs go through the operands together, however long
    each takes for a step, and find tiles in L2 that others have loaded."""
    number, of, _steps = split
    return step * of + number


@gluon.jit
def load_step(step, split, tile, PARAMS: gl.constexpr, operands):
    """(1) Request the tiles of a step, as soon as its stage is empty."""
    a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty = operands
    TMA: gl.constexpr = PARAMS.tma
    BYTES: gl.constexpr = (TMA.m.tile + TMA.n.tile) * TMA.k.tile * (a.dtype.primitive_bitwidth // 8)
    stage = step % PARAMS.stages
    bar = full.index(stage)
    k_tile = along_k(step, split)
    # (1.1) Wait until both consumers have emptied the stage.
    mbarrier.wait(empty.index(stage), (step // PARAMS.stages & 1) ^ 1)
    # (1.2) Request the tiles. The barrier completes when all of their bytes are there.
    mbarrier.expect(bar, BYTES)
    load_a(a, a_tiles, stage, bar, tile, k_tile, PARAMS)
    load_b((b, b_rest), (b_tiles, rest_tiles), stage, bar, tile, k_tile, PARAMS)


@gluon.jit
def lines_of(b_tiles, rest_tiles, stage, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr):
    """Run `AT` of a transformer's lines of B, in shared memory."""
    RUN: gl.constexpr = PARAMS.transforms[TRANSFORMER][AT]
    if RUN.part == 0:
        return b_tiles.index(stage).slice(RUN.first, RUN.lines, 0)
    else:
        return rest_tiles.index(stage).slice(RUN.first, RUN.lines, 0)


@gluon.jit
def read_lines(b_tiles, rest_tiles, stage, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr):
    """Lines of a tile in registers."""
    lines = lines_of(b_tiles, rest_tiles, stage, PARAMS, TRANSFORMER, AT)
    return lines.load(line_layout(lines.shape[0], lines.shape[1], CONSUMER_WARPS))


@gluon.jit
def store_transformed(
    value, lines, first, k_tile, PARAMS: gl.constexpr, ALONG_K: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr
):  # fmt: skip
    """Apply a function to lines in registers, and store them where they were in shared memory."""
    K: gl.constexpr = PARAMS.tma.k
    MASKED: gl.constexpr = PARAMS.tma.masked
    LAYOUT: gl.constexpr = line_layout(lines.shape[0], lines.shape[1], CONSUMER_WARPS)
    lines.store(transformed(value, first, k_tile, K, ALONG_K, MASKED, LAYOUT, FN, PRODUCT))


@gluon.jit
def store_run(
    value, lines, k_tile, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr, OP: gl.constexpr
):
    """Store run `AT` of a transformer's lines, with B's function."""
    FIRST: gl.constexpr = PARAMS.transforms[TRANSFORMER][AT].first
    store_transformed(value, lines, FIRST, k_tile, PARAMS, PARAMS.tma.b_along_k, OP.b_fn, OP.product)


@gluon.jit
def smem_transformer(
    program,
    PARAMS: gl.constexpr,
    TRANSFORMER: gl.constexpr,
    operands,  # tensor maps a, b, b_rest; their tiles in shared memory; barriers full, empty
    ready,  # barriers
    OP: gl.constexpr,
):
    """Role 2: apply B's function to some lines of every tile. Shared memory is busy and answers late, so lines are read
    before the function is applied to those before them, also from one step to the next."""
    _a, _b, _b_rest, _a_tiles, b_tiles, rest_tiles, full, _empty = operands
    COUNT: gl.constexpr = len(PARAMS.transforms[TRANSFORMER])
    _output_tile, split = split_with_tail_of(program, PARAMS)
    _number, _of, steps = split
    mbarrier.wait(full.index(0), 0)
    value = read_lines(b_tiles, rest_tiles, 0, PARAMS, TRANSFORMER, 0)
    for step in range(steps):
        stage = step % PARAMS.stages
        after = (step + 1) % PARAMS.stages
        k_tile = along_k(step, split)
        for i in gl.static_range(COUNT):
            # (2.1) Read the next lines; the first of the next step when its stage is full.
            if i + 1 < COUNT:
                coming = read_lines(b_tiles, rest_tiles, stage, PARAMS, TRANSFORMER, i + 1)
            else:
                if step + 1 < steps:  # past the last step what is read is not used
                    mbarrier.wait(full.index(after), (step + 1) // PARAMS.stages & 1)
                coming = read_lines(b_tiles, rest_tiles, after, PARAMS, TRANSFORMER, 0)
            # (2.2) Apply the function to the lines before, and store them.
            lines = lines_of(b_tiles, rest_tiles, stage, PARAMS, TRANSFORMER, i)
            store_run(value, lines, k_tile, PARAMS, TRANSFORMER, i, OP)
            value = coming
        # (2.3) Make them visible to matrix instructions, and say that the stage is ready.
        fence_async_shared()
        meet_and_arrive(ready.index(stage))


@gluon.jit
def rows_as_stored(a_tiles, stage, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """A consumer's rows of a tile of A, (rows, k) or (k, rows) as they lie in shared memory."""
    PART: gl.constexpr = PARAMS.accumulators[CONSUMER][0]
    ROWS: gl.constexpr = PART.m.tile
    AXIS: gl.constexpr = 0 if PARAMS.tma.a_along_k else 1
    return a_tiles.index(stage).slice(PART.row, ROWS, AXIS)


@gluon.jit
def staging_memory(a_tiles, empty, d, steps, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """(3.6) A consumer's memory for subtiles of D, (buffers, rows, columns): a stage of A. No more tiles are loaded,
    and it waits until both consumers have done with that stage."""
    SHAPE: gl.constexpr = [PARAMS.consumers.buffers, PARAMS.d_shape[0], PARAMS.d_shape[1]]
    if steps > CONSUMER:
        rounds = (steps - CONSUMER + PARAMS.stages - 1) // PARAMS.stages  # in which the stage was full
        mbarrier.wait(empty.index(CONSUMER), (rounds - 1) & 1)
    return reinterpret(a_tiles.index(CONSUMER), d.dtype, SHAPE, PARAMS.d_layout)


@gluon.jit
def smem_consumer(
    program,
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
    shared,  # operands (as the transformers'); barriers ready; tensor map d; alpha
    OP: gl.constexpr,
):
    """Role 3: apply A's function, multiply, store; the first consumer also produces. The second one only empties stages
    where the output tile ends before its rows begin."""
    operands, _ready, _d, _alpha = shared
    M: gl.constexpr = PARAMS.tma.m
    N: gl.constexpr = PARAMS.tma.n
    ROWS: gl.constexpr = PARAMS.accumulators[CONSUMER][0].m
    output_tile, split = split_with_tail_of(program, PARAMS)
    number, _of, steps = split
    tile = tile_coords(output_tile, M.blocks, N.blocks, PARAMS.tma.group)
    partial = number * PARAMS.tma.blocks + output_tile
    if CONSUMER == 0 or M.exact:  # noqa: SIM114  (known when this is compiled, the other is not)
        consume(split, tile, partial, PARAMS, CONSUMER, shared, OP)
    elif dim_mask(tile[1], gl.to_tensor(0), ROWS):
        consume(split, tile, partial, PARAMS, CONSUMER, shared, OP)
    else:
        empty_stages(steps, PARAMS, operands)


@gluon.jit
def empty_stages(steps, PARAMS: gl.constexpr, operands):
    """Say of each stage that it is empty, as soon as it is full."""
    _a, _b, _b_rest, _a_tiles, _b_tiles, _rest_tiles, full, empty = operands
    for step in range(steps):
        stage = step % PARAMS.stages
        mbarrier.wait(full.index(stage), step // PARAMS.stages & 1)
        mbarrier.arrive(empty.index(stage))


@gluon.jit
def consume(
    split,  # (number, of how many, steps) of the partial
    tile,  # (batch, m, n): numbers of the output tile
    partial,  # number in the workspace
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
    shared,
    OP: gl.constexpr,
):
    """The work of a consumer that has rows."""
    operands, _ready, d, alpha = shared
    _a, _b, _b_rest, a_tiles, _b_tiles, _rest_tiles, _full, empty = operands
    _number, _of, steps = split
    PART: gl.constexpr = PARAMS.accumulators[CONSUMER][0]
    REST: gl.constexpr = PARAMS.accumulators[CONSUMER][-1]
    TWO: gl.constexpr = len(PARAMS.tma.n_parts) == 2
    DEPTH: gl.constexpr = 256 // PARAMS.product_bits
    COLUMNS: gl.constexpr = min(PART.n.tile, PARAMS.roles.mma_columns)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, COLUMNS, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, REST.n.tile, DEPTH])
    if CONSUMER == 0:
        for step in gl.static_range(min(PARAMS.stages - 1, PARAMS.tma.steps)):
            load_step(gl.to_tensor(step), split, tile, PARAMS, operands)
    acc = accumulator(PART.m.tile, PART.n.tile, OP.accumulate, LAYOUT)
    acc_rest = gl.to_tensor(0)  # a role takes no None
    if TWO:
        acc_rest = accumulator(REST.m.tile, REST.n.tile, OP.accumulate, LAYOUT_REST)
    acc, acc_rest = multiply_transformed(split, tile, acc, acc_rest, PARAMS, CONSUMER, shared, OP)

    # (3.7) Store the partial, or finish the output tile.
    staging = staging_memory(a_tiles, empty, d, steps, PARAMS, CONSUMER)
    store_tile(acc, d, staging, 0, alpha, partial, tile, PARAMS, PART, OP.epilogue)
    if TWO:
        store_tile(acc_rest, d, staging, 0, alpha, partial, tile, PARAMS, REST, OP.epilogue)
    tma.store_wait(0)


@gluon.jit
def multiply_transformed(
    split, tile, acc, acc_rest, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, shared, OP: gl.constexpr
):
    """Apply A's function to the rows of one step, then always to those of the next while this one is multiplied."""
    operands, ready, _d, _alpha = shared
    _a, _b, _b_rest, a_tiles, b_tiles, rest_tiles, full, empty = operands
    _number, _of, steps = split
    TMA: gl.constexpr = PARAMS.tma
    K: gl.constexpr = TMA.k.tile
    AHEAD: gl.constexpr = PARAMS.stages - 1
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    rows = rows_as_stored(a_tiles, stage, PARAMS, CONSUMER)
    LINES: gl.constexpr = line_layout(rows.shape[0], rows.shape[1], CONSUMER_WARPS)
    mbarrier.wait(full.index(stage), phase)
    store_transformed(rows.load(LINES), rows, 0, along_k(0, split), PARAMS, TMA.a_along_k, OP.a_fn, OP.product)
    fence_async_shared()
    sync_role()
    for step in range(1, steps):
        before = stage
        before_phase = phase
        stage, phase = next_stage(stage, phase, PARAMS.stages)
        # (3.1) Read the rows of this step.
        rows = rows_as_stored(a_tiles, stage, PARAMS, CONSUMER)
        mbarrier.wait(full.index(stage), phase)
        value = rows.load(LINES)
        # (3.2) Multiply the step before, of which transformers are ready, by the wider part of B.
        mbarrier.wait(ready.index(before), before_phase)
        x = consumer_rows(a_tiles, before, PARAMS, CONSUMER)
        acc = warpgroup_mma(x, columns_of_b(b_tiles.index(before), K, TMA.b_along_k), acc, is_async=True)
        # (3.3) Request tiles for the stage of the step before that, now that there is something to multiply.
        if CONSUMER == 0:  # noqa: SIM102  (known when this is compiled)
            if step + AHEAD - 1 < steps:
                load_step(step + AHEAD - 1, split, tile, PARAMS, operands)
        # (3.4) Apply the function to the rows meanwhile; then multiply by the narrower part.
        store_transformed(value, rows, 0, along_k(step, split), PARAMS, TMA.a_along_k, OP.a_fn, OP.product)
        if len(TMA.n_parts) == 2:
            y = columns_of_b(rest_tiles.index(before), K, TMA.b_along_k)
            acc_rest = warpgroup_mma(x, y, acc_rest, is_async=True)
        fence_async_shared()
        sync_role()
        # (3.5) Wait for the products, and say that their stage is empty.
        acc, acc_rest = wait_for_products(acc, acc_rest, 0, PARAMS)
        meet_and_arrive(empty.index(before))
    mbarrier.wait(ready.index(stage), phase)
    x = consumer_rows(a_tiles, stage, PARAMS, CONSUMER)
    acc, acc_rest = multiply(x, (b_tiles, rest_tiles), stage, acc, acc_rest, PARAMS, K)
    acc, acc_rest = wait_for_products(acc, acc_rest, 0, PARAMS)
    mbarrier.arrive(empty.index(stage))
    return acc, acc_rest


@gluon.jit(do_not_specialize=["alpha", "beta"])
def smem_transform_kernel(
    a,  # tensor map, tiles (M, K) or (K, M)
    b,  # tensor map, tiles (N, K) or (K, N), of the tile's first part along n
    b_rest,  # the same of its second part; None where there is but one
    d,  # tensor map of D, or of split-K partials
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: C is not read
    pointers,  # None: functions have no auxiliary operands
    PARAMS: gl.constexpr,  # params.WsParams
    OP: gl.constexpr,  # KernelOperation
):
    STAGES: gl.constexpr = PARAMS.stages
    a_tiles, b_tiles, rest_tiles, b_second = tile_memory(b, b_rest, STAGES, STAGES, PARAMS, OP.product)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(ready.index(i), count=PARAMS.roles.transformers)
        mbarrier.init(empty.index(i), count=PARAMS.consumers.m_parts)
    pdl_wait()
    program = gl.program_id(0)
    operands = (a, b, b_second, a_tiles, b_tiles, rest_tiles, full, empty)
    shared = (operands, ready, d, alpha)
    # There is no producer of its own: what stands last, in its place, is not used.
    start_roles(
        PARAMS, program, program, (smem_consumer, (shared, OP)),
        (smem_transformer, (operands, ready, OP)), (empty_stages, ()),
    )  # fmt: skip

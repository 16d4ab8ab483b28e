"""The warp-specialized kernel: producers load tiles by TMA, transformers apply B's function, consumers multiply.

Only barriers in shared memory connect the roles. For stage s of a pipeline:

    role                  warps            waits for  then                                      arrives at
    producer              1 a pipeline     empty[s]   requests tiles of A and B                 full[s], by TMA
    transformer 0, 1 ...  4 each, if any   full[s]    applies B's function in shared memory     ready[s]
    consumer 0, 1         4 each           ready[s]   applies A's function in registers,        empty[s]
                                                      multiplies; at the end of a work tile
                                                      applies the epilogue, stores by TMA

    stage s    empty --> producer --> full --> transformer --> ready --> consumers --> empty --> ...
                         TMA                   B_FN                      A_FN, wgmma

Without B's function there are no transformers, and `ready` is `full`.

Phases. A barrier has one phase bit: it tells a round of the pipeline from the next, but not from the one after that.
In round r a role waits for phase r & 1; the producer for the other one, as stages are empty at first. Transformers take
steps in turn, so one may skip a stage for a whole round. `full` therefore has barriers for as many rounds as it takes
until a transformer meets the same stage again.

Consumers (`roles.Consumers`) share output tiles in one of three ways:

    cooperative   one pipeline; each consumer has half of the rows, both read every tile of B
    pingpong      a pipeline and output tiles for each: one stores, or applies functions, while the other multiplies
    paired_n      one pipeline; two output tiles of the same rows, both consumers read every tile of A
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from weft.gpu.common.device import pdl_wait
from weft.gpu.common.tiles import range_start, tile_coords
from weft.gpu.warp_specialized import pipeline
from weft.gpu.warp_specialized.schedule import WARPS
from weft.gpu.warp_specialized.tiles import staging_memory, store_tile, transform_tiles, transformed

CONSUMER_WARPS = tl.constexpr(WARPS)


@gluon.jit
def producer(
    number,  # of the CTA, or of the pipeline
    PARAMS: gl.constexpr,
    PIPELINE: gl.constexpr,
    operands,  # tensor maps of A and of each part of B, their tiles in shared memory; barriers full, empty
):
    """Role 1: fill a pipeline, step by step, work tile after work tile."""
    a, b, a_tiles, b_tiles, full, empty = operands
    TMA: gl.constexpr = PARAMS.tma
    N_TILES: gl.constexpr = PARAMS.consumers.n_tiles
    BYTES: gl.constexpr = (TMA.m.tile + N_TILES * TMA.n.tile) * TMA.k.tile * (a.dtype.primitive_bitwidth // 8)
    BARS: gl.constexpr = PARAMS.rounds * PARAMS.stages
    position = gl.to_tensor(0)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    first, end, STRIDE = pipeline.work_range(number, PARAMS)
    for work_tile in range(first, end, STRIDE):
        # (1.1) Find the output tile, and what of its sum this work tile is.
        _split, output_tile, first_step, steps = pipeline.split_of(work_tile, number, PARAMS, 0)
        batch_tile, m_tile, n_tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        for step in range(steps):
            k_tile = first_step + step
            at = PIPELINE * PARAMS.stages + stage
            bar = full.index(PIPELINE * BARS + position % BARS)
            # (1.2) Wait until consumers have emptied the stage.
            mbarrier.wait(empty.index(at), phase)
            # (1.3) Request the tiles of this step. The barrier completes when all of their bytes are there.
            mbarrier.expect(bar, BYTES)
            pipeline.load_a(a, a_tiles, at, bar, (batch_tile, m_tile, n_tile), k_tile, PARAMS)
            for i in gl.static_range(N_TILES):
                tile = (batch_tile, m_tile, n_tile + i)
                pipeline.load_b(b, b_tiles, i * PARAMS.stages + at, bar, tile, k_tile, PARAMS)
            stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)
            position += 1


@gluon.jit
def transformer(
    number,  # of the CTA, or of the pipeline
    PARAMS: gl.constexpr,
    TRANSFORMER: gl.constexpr,
    operands,  # as the producer's
    ready,  # barriers
    OP: gl.constexpr,
):
    """Role 2: apply B's function to tiles of a pipeline, of every so many steps: transformers take steps in turn."""
    _a, _b, _a_tiles, b_tiles, full, _empty = operands
    TMA: gl.constexpr = PARAMS.tma
    STREAM_K: gl.constexpr = PARAMS.stream_k
    STRIDE: gl.constexpr = PARAMS.consumers.pipelines * TMA.programs
    PIPELINES: gl.constexpr = PARAMS.consumers.b_pipelines
    PIPELINE: gl.constexpr = TRANSFORMER % PIPELINES
    EVERY: gl.constexpr = PARAMS.roles.transformers // PIPELINES
    BARS: gl.constexpr = PARAMS.rounds * PARAMS.stages
    if STREAM_K is None:
        count = (PARAMS.tiles * TMA.splits - number + STRIDE - 1) // STRIDE * TMA.steps
    else:
        start = range_start(number, STREAM_K)
        count = range_start(number + 1, STREAM_K) - start
    for position in range(TRANSFORMER // PIPELINES, count, EVERY):
        # (2.1) Find where the step is along k: what lies past the end must stay zero.
        if STREAM_K is None:
            split, _ = pipeline.output_tile_of(number + position // TMA.steps * STRIDE, PARAMS, 0)
            k_tile = split * TMA.steps + position % TMA.steps
        else:
            k_tile = (start + position) % STREAM_K.steps
        # (2.2) Wait until the stage is full.
        stage = PARAMS.b_first[PIPELINE] + position % PARAMS.stages
        mbarrier.wait(full.index(PARAMS.a_first[PIPELINE] * PARAMS.rounds + position % BARS), position // BARS & 1)
        # (2.3) Apply the function where the tiles lie.
        transform_tiles(pipeline.parts_of_b(b_tiles, stage), k_tile, PARAMS, OP)
        # (2.4) Make it visible to matrix instructions, and say that the stage is ready.
        fence_async_shared()
        pipeline.meet_and_arrive(ready.index(stage))


@gluon.jit
def consumer_rows(a_tiles, stage, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """A consumer's rows of a tile of A: (rows, k), in shared memory."""
    PART: gl.constexpr = PARAMS.accumulators[CONSUMER][0]
    tile = a_tiles.index(PARAMS.a_first[CONSUMER] + stage)
    return pipeline.rows_of_a(tile, PART.row, PART.m.tile, PARAMS.tma.k.tile, PARAMS.tma.a_along_k)


@gluon.jit
def transformed_rows(
    a_tiles, stage, k_tile, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, OP: gl.constexpr, LAYOUT: gl.constexpr
):
    """A consumer's rows of a tile of A in registers, the function applied."""
    x = consumer_rows(a_tiles, stage, PARAMS, CONSUMER).load(LAYOUT)
    return transformed(x, 0, k_tile, True, LAYOUT, OP.a_fn, PARAMS, OP)


@gluon.jit
def add_products(
    tiles,  # of A, and of each part of B, in shared memory
    bars,  # ready, empty
    steps,
    state,  # stage, phase, accumulators of each part along n
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
):
    """Steps (3.2) to (3.4) without A's function: the state after them. The products of the last step are not waited
    for."""
    a_tiles, b_tiles = tiles
    ready, empty = bars
    stage, phase, accs = state
    K: gl.constexpr = PARAMS.tma.k.tile
    B_FIRST: gl.constexpr = PARAMS.b_first[CONSUMER]
    A_FIRST: gl.constexpr = PARAMS.a_first[CONSUMER]
    READY_FIRST: gl.constexpr = B_FIRST if PARAMS.roles.transformers > 0 else A_FIRST
    mbarrier.wait(ready.index(READY_FIRST + stage), phase)
    x = consumer_rows(a_tiles, stage, PARAMS, CONSUMER)
    accs = pipeline.multiply(x, b_tiles, B_FIRST + stage, accs, PARAMS, K)
    for _ in range(1, steps):
        before = stage
        stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)
        # (3.2) Wait until the stage is ready.
        mbarrier.wait(ready.index(READY_FIRST + stage), phase)
        # (3.3) Multiply, while the products of the step before are still being added.
        x = consumer_rows(a_tiles, stage, PARAMS, CONSUMER)
        accs = pipeline.multiply(x, b_tiles, B_FIRST + stage, accs, PARAMS, K)
        # (3.4) Wait for those, and say that their stage is empty.
        accs = pipeline.wait_for_products(accs, 1)
        mbarrier.arrive(empty.index(A_FIRST + before))
    return stage, phase, accs


@gluon.jit
def add_products_of_function(
    tiles, bars, first_step, steps, state, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, OP: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Steps (3.2) to (3.4) with A's function, which is applied to the rows of the next step while those of this one are
    multiplied."""
    a_tiles, b_tiles = tiles
    ready, empty = bars
    stage, phase, accs = state
    K: gl.constexpr = PARAMS.tma.k.tile
    B_FIRST: gl.constexpr = PARAMS.b_first[CONSUMER]
    A_FIRST: gl.constexpr = PARAMS.a_first[CONSUMER]
    READY_FIRST: gl.constexpr = B_FIRST if PARAMS.roles.transformers > 0 else A_FIRST
    mbarrier.wait(ready.index(READY_FIRST + stage), phase)
    x = transformed_rows(a_tiles, stage, first_step, PARAMS, CONSUMER, OP, LAYOUT)
    for step in range(1, steps):
        # (3.3) Multiply the rows in registers.
        accs = pipeline.multiply(x, b_tiles, B_FIRST + stage, accs, PARAMS, K)
        before = stage
        stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)
        # (3.2) Wait until the next stage is ready, and apply the function to its rows.
        mbarrier.wait(ready.index(READY_FIRST + stage), phase)
        next_x = transformed_rows(a_tiles, stage, first_step + step, PARAMS, CONSUMER, OP, LAYOUT)
        # (3.4) Wait for the products, and say that their stage is empty.
        accs = pipeline.wait_for_products(accs, 0)
        x = pipeline.in_other_registers(next_x, LAYOUT)
        mbarrier.arrive(empty.index(A_FIRST + before))
    accs = pipeline.multiply(x, b_tiles, B_FIRST + stage, accs, PARAMS, K)
    return stage, phase, accs


@gluon.jit
def consumer(
    number,  # of the CTA, or of the pipeline
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
    shared,  # tiles of A and of each part of B; barriers ready, empty; staging; results, see `store_tile`
    OP: gl.constexpr,
):
    """Role 3: apply A's function, multiply, apply the epilogue, store."""
    tiles, ready, empty, staging, results = shared
    bars = (ready, empty)
    TMA: gl.constexpr = PARAMS.tma
    PARTS: gl.constexpr = PARAMS.accumulators[CONSUMER]
    COLUMNS: gl.constexpr = min(PARTS[0].n.tile, PARAMS.roles.mma_columns)
    LAYOUT: gl.constexpr = pipeline.sums_layout(CONSUMER_WARPS, COLUMNS, TMA.product_bits)
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // TMA.product_bits)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    first, end, STRIDE = pipeline.work_range(number, PARAMS)
    for work_tile in range(first, end, STRIDE):
        # (3.1) Find the output tile, and what of its sum this work tile is.
        split, output_tile, first_step, steps = pipeline.split_of(work_tile, number, PARAMS, CONSUMER)
        tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        accs = pipeline.accumulators(PARTS[0].m.tile, PARAMS, OP.accumulate)

        # (3.2, 3.3, 3.4) Multiply, step by step; then wait for the products of the last one.
        state = (stage, phase, accs)
        if OP.a_fn is None:
            stage, phase, accs = add_products(tiles, bars, steps, state, PARAMS, CONSUMER)
        else:
            stage, phase, accs = add_products_of_function(
                tiles, bars, first_step, steps, state, PARAMS, CONSUMER, OP, X_LAYOUT
            )  # fmt: skip
        accs = pipeline.wait_for_products(accs, 0)
        mbarrier.arrive(empty.index(PARAMS.a_first[CONSUMER] + stage))
        stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)

        # (3.5) Store the partial, or finish the output tile.
        partial = split * TMA.blocks + output_tile
        for i in gl.static_range(len(accs)):
            store_tile(accs[i], results, staging, CONSUMER, partial, tile, PARAMS, PARTS[i], OP)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["alpha", "beta"])
def ws_kernel(
    a,  # tensor map, tiles (M, K) or (K, M)
    b,  # tensor map, tiles (N, K) or (K, N), of the tile's first part along n
    b_rest,  # the same of its second part; None where there is but one
    c,  # None where nothing is added, or the sum is split
    d,  # tensor map of D, or of split-K partials; D's pointer where TMA cannot store it
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of auxiliary operands and of further results; None where there are none, or the sum is split
    PARAMS: gl.constexpr,  # params.WsParams
    OP: gl.constexpr,  # KernelOperation
):
    PIPELINES: gl.constexpr = PARAMS.consumers.pipelines
    A_STAGES: gl.constexpr = PIPELINES * PARAMS.stages
    B_STAGES: gl.constexpr = PARAMS.consumers.n_tiles * A_STAGES
    a_tiles, b_tiles = pipeline.tile_memory(A_STAGES, B_STAGES, PARAMS, OP.product)
    staging = staging_memory(d, PARAMS)
    full = pipeline.barriers(PARAMS.rounds * A_STAGES, 1)
    empty = pipeline.barriers(A_STAGES, 3 - PIPELINES)  # by each consumer of the pipeline
    ready = full
    if PARAMS.roles.transformers > 0:
        ready = pipeline.barriers(B_STAGES, 1)
    pdl_wait()
    program = gl.program_id(0)
    other = program + (PIPELINES - 1) * PARAMS.tma.programs  # number of the second consumer's own pipeline
    # A role takes no None.
    operands = (a, (b,) if b_rest is None else (b, b_rest), a_tiles, b_tiles, full, empty)
    addend = () if c is None else (c,)
    others = () if pointers is None else pointers
    shared = ((a_tiles, b_tiles), ready, empty, staging, (d, addend, others, alpha, beta))
    pipeline.start_roles(
        PARAMS, program, other, (consumer, (shared, OP)),
        (transformer, (operands, ready, OP)), (producer, (operands,)),
    )  # fmt: skip

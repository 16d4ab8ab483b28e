"""The kernel with a stationary operand: all of B stays in shared memory while tiles of A pass by.

Each of two consumers takes all columns of some rows, so A's function is applied once to each element. For stage s of a
pipeline of A, and step k of B:

    role              warps          waits for           then                                        arrives at
    producer 0, 1     1 a pipeline   empty[s]            requests a tile of A                        full[s], by TMA
    producer 0, too                                      requests B's tiles of step k, once          loaded[k], by TMA
    consumer 0, 1     4 or 8 each    loaded[k]           at first: applies B's function to every     transformed
                                                         second tile, where there is one
                                     transformed         of both consumers
                                     turn[itself]        where both share a pipeline
                                     full[s]             applies A's function in registers           empty[s]
                                     loaded[k]           multiplies
                                     the last full[s]    lets the other consumer take its turn       turn[other]
                                                         applies the epilogue, stores from registers

A pipeline for each consumer, or one for both, which leaves shared memory for more of B:

    consumer 0   full: tile 0 | wgmma ... -- turn --> | epilogue, store        | full: tile 2 | wgmma ...
    consumer 1                                        | full: tile 1 | wgmma ... -- turn --> | epilogue, store

Results are stored from registers, as shared memory is full; nothing waits for a store.

Phases. Barriers have one phase bit, which flips with every round of a pipeline: it tells a round from the next, but not
from the one after that. At a shared pipeline a consumer therefore looks only when it is its turn. `loaded` and
`transformed` complete once.

A consumer arrives once for all of its warps, and all of them are done with the stage: Triton puts a barrier of the role
before every arrival.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from weft.gpu.common.device import pdl_wait
from weft.gpu.common.tiles import tile_coords
from weft.gpu.warp_specialized import pipeline
from weft.gpu.warp_specialized.tiles import store_from_registers, transform_tiles, transformed

CONSUMERS = tl.constexpr(2)


@gluon.jit
def stationary_producer(
    program,
    PARAMS: gl.constexpr,
    PIPELINE: gl.constexpr,
    operands,  # tensor maps of A and of each part of B, their tiles in shared memory; barriers full, empty, loaded
    OP: gl.constexpr,
):
    """Role 1: fill a pipeline of A; the first producer also loads B.

    A tile of B is requested right before the tile of A that it is multiplied by first. Where B has a function, all of
    it is requested at the beginning: consumers wait for all of B before they take a tile of A, and the pipeline may
    have fewer stages than a sum has steps.
    """
    a, b, a_tiles, b_tiles, full, empty, loaded = operands
    TMA: gl.constexpr = PARAMS.tma
    ELEMENT: gl.constexpr = a.dtype.primitive_bitwidth // 8
    first = program + PIPELINE * TMA.programs
    # (1.1) Request all of B where it has a function.
    if OP.b_fn is not None and PIPELINE == 0:
        for step in range(TMA.steps):
            load_stationary(b, b_tiles, loaded, first, step, PARAMS)
    position = gl.to_tensor(0)
    for output_tile in range(first, TMA.blocks, PARAMS.pipelines * TMA.programs):
        tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        for step in range(TMA.steps):
            # (1.2) Request B's tiles of this step, in the first output tile, where it has none.
            if OP.b_fn is None and PIPELINE == 0:  # noqa: SIM102 (known when this is compiled)
                if output_tile == first:
                    load_stationary(b, b_tiles, loaded, output_tile, step, PARAMS)
            # (1.3) Wait until a consumer has emptied the stage.
            stage, phase = stage_of(position, PARAMS, PIPELINE)
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), phase ^ 1)
            # (1.4) Request the tile of A.
            mbarrier.expect(bar, TMA.m.tile * TMA.k.tile * ELEMENT)
            pipeline.load_a(a, a_tiles, stage, bar, tile, step, PARAMS)
            position += 1


@gluon.jit
def load_stationary(b, b_tiles, loaded, output_tile, step, PARAMS: gl.constexpr):
    """Request B's tiles of one step."""
    TMA: gl.constexpr = PARAMS.tma
    ELEMENT: gl.constexpr = b[0].dtype.primitive_bitwidth // 8
    tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
    bar = loaded.index(step)
    mbarrier.expect(bar, TMA.n.tile * TMA.k.tile * ELEMENT)
    pipeline.load_b(b, b_tiles, step, bar, tile, step, PARAMS)


@gluon.jit
def stage_of(position, PARAMS: gl.constexpr, OWNER: gl.constexpr):
    """The stage of tile number `position` of a pipeline, and the phase of its barriers."""
    FIRST: gl.constexpr = OWNER * PARAMS.stages if PARAMS.pipelines == 2 else 0
    return FIRST + position % PARAMS.stages, position // PARAMS.stages & 1


@gluon.jit
def transform_stationary(shared, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, OP: gl.constexpr):
    """(2.1) Apply B's function to the tiles of every second step, and wait until the other consumer has done so."""
    _a_tiles, b_tiles, _full, _empty, loaded, _turns, transformed_bar, _d, _alpha = shared
    for step in range(CONSUMER, PARAMS.tma.steps, CONSUMERS):
        mbarrier.wait(loaded.index(step), 0)
        transform_tiles(pipeline.parts_of_b(b_tiles, step), step, PARAMS, OP)
    fence_async_shared()
    pipeline.meet_and_arrive(transformed_bar)
    mbarrier.wait(transformed_bar, 0)


@gluon.jit
def stationary_rows(a_tiles, stage, PARAMS: gl.constexpr, DEPTH: gl.constexpr):
    """The first indices of k of a tile of A: (rows, k), in shared memory."""
    return pipeline.rows_of_a(a_tiles.index(stage), 0, PARAMS.tma.m.tile, DEPTH, PARAMS.tma.a_along_k)


@gluon.jit
def stationary_transformed_rows(
    shared, stage, turn, step, PARAMS: gl.constexpr, LAST: gl.constexpr, OP: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """(2.3) The same in registers, the function applied. The stage is empty at once. Behind the last tile of a sum it
    is the other consumer's turn, at a shared pipeline."""
    a_tiles, _b_tiles, _full, empty, _loaded, _turns, _transformed, _d, _alpha = shared
    DEPTH: gl.constexpr = PARAMS.last_depth if LAST else PARAMS.tma.k.tile
    x = stationary_rows(a_tiles, stage, PARAMS, DEPTH).load(LAYOUT)
    # The loads must be done when TMA writes the next tile there. An arrival alone does not wait for them.
    fence_async_shared()
    pipeline.meet_and_arrive(empty.index(stage))
    if LAST and PARAMS.pipelines == 1:
        mbarrier.arrive(turn)
    return transformed(x, 0, step, True, LAYOUT, OP.a_fn, PARAMS, OP)


@gluon.jit
def add_stationary_products(shared, position, turn, accs, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """Steps (2.3) and (2.4) without A's function. Of the last tiles only what there is along k is multiplied."""
    a_tiles, b_tiles, full, empty, loaded, _turns, _transformed, _d, _alpha = shared
    LAST: gl.constexpr = PARAMS.tma.steps - 1
    for step in range(LAST):
        # (2.3) Wait for the tiles of A and B.
        stage, phase = stage_of(position + step, PARAMS, CONSUMER)
        mbarrier.wait(loaded.index(step), 0)
        mbarrier.wait(full.index(stage), phase)
        # (2.4) Multiply, wait for the products of the step before, and say that its stage is empty.
        x = stationary_rows(a_tiles, stage, PARAMS, PARAMS.tma.k.tile)
        accs = pipeline.multiply(x, b_tiles, step, accs, PARAMS, PARAMS.tma.k.tile)
        accs = pipeline.wait_for_products(accs, 1)
        if step > 0:
            before, _ = stage_of(position + step - 1, PARAMS, CONSUMER)
            mbarrier.arrive(empty.index(before))
    stage, phase = stage_of(position + LAST, PARAMS, CONSUMER)
    mbarrier.wait(loaded.index(LAST), 0)
    mbarrier.wait(full.index(stage), phase)
    if PARAMS.pipelines == 1:
        pipeline.meet_and_arrive(turn)  # all warps have taken this turn before the other consumer may give the next
    x = stationary_rows(a_tiles, stage, PARAMS, PARAMS.last_depth)
    accs = pipeline.multiply(x, b_tiles, LAST, accs, PARAMS, PARAMS.last_depth)
    accs = pipeline.wait_for_products(accs, 0)
    if LAST > 0:
        before, _ = stage_of(position + LAST - 1, PARAMS, CONSUMER)
        mbarrier.arrive(empty.index(before))
    mbarrier.arrive(empty.index(stage))
    return accs


@gluon.jit
def add_stationary_products_of_function(
    shared, position, turn, accs, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, OP: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Steps along k with A's function, which is applied to the rows of the next step while this one is multiplied."""
    _a_tiles, b_tiles, full, _empty, loaded, _turns, _transformed, _d, _alpha = shared
    LAST: gl.constexpr = PARAMS.tma.steps - 1
    stage, phase = stage_of(position, PARAMS, CONSUMER)
    mbarrier.wait(full.index(stage), phase)
    if LAST == 0:
        last_x = stationary_transformed_rows(shared, stage, turn, 0, PARAMS, True, OP, LAYOUT)
    else:
        x = stationary_transformed_rows(shared, stage, turn, 0, PARAMS, False, OP, LAYOUT)
        mbarrier.wait(loaded.index(0), 0)
        for step in range(1, LAST):
            # (2.4) Multiply the rows in registers.
            accs = pipeline.multiply(x, b_tiles, step - 1, accs, PARAMS, PARAMS.tma.k.tile)
            # (2.3) Wait for the next tile, and apply the function to its rows.
            stage, phase = stage_of(position + step, PARAMS, CONSUMER)
            mbarrier.wait(full.index(stage), phase)
            next_x = stationary_transformed_rows(shared, stage, turn, step, PARAMS, False, OP, LAYOUT)
            accs = pipeline.wait_for_products(accs, 0)
            x = pipeline.in_other_registers(next_x, LAYOUT)
            mbarrier.wait(loaded.index(step), 0)
        accs = pipeline.multiply(x, b_tiles, LAST - 1, accs, PARAMS, PARAMS.tma.k.tile)
        stage, phase = stage_of(position + LAST, PARAMS, CONSUMER)
        mbarrier.wait(full.index(stage), phase)
        next_x = stationary_transformed_rows(shared, stage, turn, LAST, PARAMS, True, OP, LAYOUT)
        accs = pipeline.wait_for_products(accs, 0)
        last_x = pipeline.in_other_registers(next_x, LAYOUT)
    mbarrier.wait(loaded.index(LAST), 0)
    accs = pipeline.multiply(last_x, b_tiles, LAST, accs, PARAMS, PARAMS.last_depth)
    return pipeline.wait_for_products(accs, 0)


@gluon.jit
def stationary_consumer(
    program,
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
    shared,  # tiles of A and of each part of B; barriers full, empty, loaded, turns, transformed; d; alpha
    OP: gl.constexpr,
):
    """Role 2: apply functions, multiply, apply the epilogue, store."""
    _a_tiles, _b_tiles, _full, _empty, _loaded, turns, _transformed, d, alpha = shared
    TMA: gl.constexpr = PARAMS.tma
    LAYOUT: gl.constexpr = pipeline.sums_layout(PARAMS.roles.warps[0], TMA.n_parts[0].tile, TMA.product_bits)
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // TMA.product_bits)
    if OP.b_fn is not None:
        transform_stationary(shared, PARAMS, CONSUMER, OP)
    SKIPPED: gl.constexpr = TMA.steps if PARAMS.pipelines == 1 else 0  # tiles of the other one, at a shared pipeline
    position = gl.to_tensor(CONSUMER * SKIPPED)
    turn = turns.index(1 - CONSUMER)
    turn_phase = gl.to_tensor(1 - CONSUMER)
    for output_tile in range(program + CONSUMER * TMA.programs, TMA.blocks, CONSUMERS * TMA.programs):
        # (2.2) Find the output tile, and wait for the turn at a shared pipeline.
        _, m_tile, n_tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        accs = pipeline.accumulators(TMA.m.tile, PARAMS, OP.accumulate)
        if PARAMS.pipelines == 1:
            mbarrier.wait(turns.index(CONSUMER), turn_phase)
            turn_phase ^= 1

        # (2.3, 2.4) Multiply, step by step.
        if OP.a_fn is None:
            accs = add_stationary_products(shared, position, turn, accs, PARAMS, CONSUMER)
        else:
            accs = add_stationary_products_of_function(
                shared, position, turn, accs, PARAMS, CONSUMER, OP, X_LAYOUT
            )  # fmt: skip
        position += TMA.steps + SKIPPED

        # (2.5) Finish the output tile.
        for i in gl.static_range(len(accs)):
            store_from_registers(accs[i], d, alpha, m_tile, n_tile, PARAMS, i, OP.epilogue)


@gluon.jit
def stationary_barriers(PARAMS: gl.constexpr):
    """The barriers: full, empty, loaded, turns, transformed."""
    STAGES: gl.constexpr = PARAMS.pipelines * PARAMS.stages
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    loaded = gl.allocate_shared_memory(gl.int64, [PARAMS.tma.steps, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    transformed_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(PARAMS.tma.steps):
        mbarrier.init(loaded.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    mbarrier.init(transformed_bar, count=CONSUMERS)
    return full, empty, loaded, turns, transformed_bar


@gluon.jit(do_not_specialize=["alpha", "beta"])
def stationary_kernel(
    a,  # tensor map, tiles (M, K) or (K, M)
    b,  # tensor map, tiles (N, K) or (K, N), of the tile's first part along n
    b_rest,  # the same of its second part; None where there is but one
    c,  # None
    d,  # pointer
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: C is not read
    pointers,  # None: functions have no auxiliary operands
    PARAMS: gl.constexpr,  # stationary_params.StationaryParams
    OP: gl.constexpr,  # KernelOperation
):
    STAGES: gl.constexpr = PARAMS.pipelines * PARAMS.stages
    a_tiles, b_tiles = pipeline.tile_memory(STAGES, PARAMS.tma.steps, PARAMS, OP.product)
    full, empty, loaded, turns, transformed_bar = stationary_barriers(PARAMS)
    pdl_wait()
    program = gl.program_id(0)
    # A role takes no None.
    operands = (a, (b,) if b_rest is None else (b, b_rest), a_tiles, b_tiles, full, empty, loaded)
    shared = (a_tiles, b_tiles, full, empty, loaded, turns, transformed_bar, d, alpha)
    pipeline.start_roles(
        PARAMS, program, program, (stationary_consumer, (shared, OP)),
        (stationary_producer, ()), (stationary_producer, (operands, OP)),
    )  # fmt: skip

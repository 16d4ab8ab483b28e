"""All products of terms of two matrices in one kernel, in warps of their own for loads: `warp_specialized`'s roles.

    role            warps   waits for  then                                               arrives at
    producer        1       empty[s]   requests the tiles of all terms of A and of B      full[s], by TMA
    consumer 0, 1   4 each  full[s]    adds all products of these terms; at the end of a  empty[s]
                                       work tile applies the epilogue, stores by TMA

Tiles of all terms are read once for all products of them. A consumer has three sums for its rows of an output tile:

    run    of products of first terms, by matrix units
    total  of runs, in float32
    small  of all other products, by matrix units: it stays apart, so that no small product meets a large sum

Where a verdict is given, the kernel serves only if that names its scheme, and else ends at once: nobody waits for the
verdict on the host.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from weft.gpu.common.device import pdl_wait
from weft.gpu.common.tiles import tile_coords
from weft.gpu.warp_specialized import pipeline
from weft.gpu.warp_specialized.kernel import CONSUMER_WARPS, consumer_rows
from weft.gpu.warp_specialized.tiles import staging_memory, store_tile


@gluon.jit
def term_producer(
    number,  # of the CTA
    PARAMS: gl.constexpr,
    PIPELINE: gl.constexpr,
    operands,  # tensor maps of A's terms and of B's; their tiles in shared memory; barriers full, empty; serves
    TERMS: gl.constexpr,
):
    """Fill the pipeline with the tiles of all terms, step by step, work tile after work tile."""
    a, b, a_tiles, b_tiles, full, empty, serves = operands
    TMA: gl.constexpr = PARAMS.tma
    COUNT: gl.constexpr = TERMS.terms
    STAGES: gl.constexpr = PARAMS.stages
    BYTES: gl.constexpr = COUNT * (TMA.m.tile + TMA.n.tile) * TMA.k.tile * (TMA.product_bits // 8)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    first, end, STRIDE = pipeline.work_range(number, PARAMS)
    for work_tile in range(first, end * serves, STRIDE):
        # (1.1) Find the output tile, and what of its sum this work tile is.
        _split, output_tile, first_step, steps = pipeline.split_of(work_tile, number, PARAMS, 0)
        tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        for step in range(steps):
            # (1.2) Wait until consumers have emptied the stage.
            mbarrier.wait(empty.index(stage), phase)
            # (1.3) Request the tiles of this step. The barrier completes when all of their bytes are there.
            bar = full.index(stage)
            mbarrier.expect(bar, BYTES)
            for i in gl.static_range(COUNT):
                at = i * STAGES + stage
                pipeline.load_a(a[i], a_tiles, at, bar, tile, first_step + step, PARAMS)
                pipeline.load_b((b[i],), (b_tiles,), at, bar, tile, first_step + step, PARAMS)
            stage, phase = pipeline.next_stage(stage, phase, STAGES)


@gluon.jit
def multiply_terms(tiles, stage, run, small, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, TERMS: gl.constexpr):
    """(3.3) Begin to add all products of the terms of one step, asynchronously."""
    a_tiles, b_tiles = tiles
    K: gl.constexpr = PARAMS.tma.k.tile
    STAGES: gl.constexpr = PARAMS.stages
    ALONG_K: gl.constexpr = PARAMS.tma.b_along_k
    SMALL: gl.constexpr = TERMS.small
    for i in gl.static_range(len(SMALL)):
        x = consumer_rows(a_tiles, SMALL[i][0] * STAGES + stage, PARAMS, CONSUMER)
        y = pipeline.columns_of_b(b_tiles.index(SMALL[i][1] * STAGES + stage), K, ALONG_K)
        small = hopper.warpgroup_mma(x, y, small, is_async=True)
    x = consumer_rows(a_tiles, stage, PARAMS, CONSUMER)
    y = pipeline.columns_of_b(b_tiles.index(stage), K, ALONG_K)
    return hopper.warpgroup_mma(x, y, run, is_async=True), small


@gluon.jit
def add_run(
    tiles, bars, steps, state, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, TERMS: gl.constexpr
):  # fmt: skip
    """Steps (3.2) to (3.4) of so many steps along k: the state after them, and the products of first terms."""
    full, empty = bars
    stage, phase, run, small = state
    PENDING: gl.constexpr = len(TERMS.small) + 1  # products of a step
    mbarrier.wait(full.index(stage), phase)
    run, small = multiply_terms(tiles, stage, run, small, PARAMS, CONSUMER, TERMS)
    for _ in range(1, steps):
        before = stage
        stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)
        # (3.2) Wait until the stage is full.
        mbarrier.wait(full.index(stage), phase)
        # (3.3) Multiply, while the products of the step before are still being added.
        run, small = multiply_terms(tiles, stage, run, small, PARAMS, CONSUMER, TERMS)
        # (3.4) Wait for those, and say that their stage is empty.
        run, small = hopper.warpgroup_mma_wait(PENDING, deps=(run, small))
        run, small = hopper.warpgroup_mma_init(run), hopper.warpgroup_mma_init(small)
        mbarrier.arrive(empty.index(before))
    run, small = hopper.warpgroup_mma_wait(0, deps=(run, small))
    mbarrier.arrive(empty.index(stage))
    stage, phase = pipeline.next_stage(stage, phase, PARAMS.stages)
    return stage, phase, run, small


@gluon.jit
def term_consumer(
    number,  # of the CTA
    PARAMS: gl.constexpr,
    CONSUMER: gl.constexpr,
    shared,  # tiles of A and of B; barriers full, empty; staging; results, see `store_tile`; serves, scale
    OP: gl.constexpr,
    TERMS: gl.constexpr,
):
    """Add products in runs, apply the epilogue, store."""
    a_tiles, b_tiles, full, empty, staging, results, serves, scale = shared
    tiles = (a_tiles, b_tiles)
    bars = (full, empty)
    TMA: gl.constexpr = PARAMS.tma
    PART: gl.constexpr = PARAMS.accumulators[CONSUMER][0]
    RUN: gl.constexpr = TERMS.run
    LAYOUT: gl.constexpr = pipeline.sums_layout(CONSUMER_WARPS, PART.n.tile, TMA.product_bits)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    first, end, STRIDE = pipeline.work_range(number, PARAMS)
    for work_tile in range(first, end * serves, STRIDE):
        # (3.1) Find the output tile, and what of its sum this work tile is.
        split, output_tile, _first_step, steps = pipeline.split_of(work_tile, number, PARAMS, CONSUMER)
        tile = tile_coords(output_tile, TMA.m.blocks, TMA.n.blocks, TMA.group)
        total = gl.full([PART.m.tile, PART.n.tile], 0, OP.accumulate, LAYOUT)
        small = gl.full([PART.m.tile, PART.n.tile], 0, OP.accumulate, LAYOUT)
        for done in range(0, steps, RUN):
            # (3.2, 3.3, 3.4) Multiply, step by step; then add the run.
            run = pipeline.accumulator(PART.m.tile, PART.n.tile, PARAMS, OP.accumulate)
            state = (stage, phase, run, hopper.warpgroup_mma_init(small))
            count = gl.minimum(steps - done, RUN)
            stage, phase, run, small = add_run(tiles, bars, count, state, PARAMS, CONSUMER, TERMS)
            total = total + run

        # (3.5) Add the small products where they are numbers: of an infinite value its first term tells all.
        small = gl.where(gl.abs(small) < float("inf"), small, 0.0)
        total = (total + small * TERMS.factor) * scale

        # (3.6) Store the partial, or finish the output tile.
        partial = split * TMA.blocks + output_tile
        store_tile(hopper.warpgroup_mma_init(total), results, staging, CONSUMER, partial, tile, PARAMS, PART, OP)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["alpha", "beta"])
def terms_kernel(
    a0,  # tensor maps of A's terms, tiles (M, K) or (K, M)
    a1,
    a2,  # None where there are two
    b0,  # of B's terms, tiles (N, K) or (K, N)
    b1,
    b2,
    verdict,  # (2,): the scheme that serves, and the bits of what sums are multiplied by; None where this one does
    d,  # tensor map of D, or of split-K partials
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # not used: C is not read
    pointers,  # None: functions have no auxiliary operands
    PARAMS: gl.constexpr,  # WsParams
    OP: gl.constexpr,  # KernelOperation
    TERMS: gl.constexpr,  # model.TermsParams
):
    TILES: gl.constexpr = TERMS.terms * PARAMS.stages
    a_tiles, b_parts = pipeline.tile_memory(TILES, TILES, PARAMS, OP.product)
    b_tiles = b_parts[0]
    staging = staging_memory(d, PARAMS)
    full = pipeline.barriers(PARAMS.stages, 1)
    empty = pipeline.barriers(PARAMS.stages, 2)  # by each consumer
    pdl_wait()
    serves = gl.to_tensor(1)
    scale = gl.to_tensor(1.0)
    if verdict is not None:
        serves = (gl.load(verdict) == TERMS.number).to(gl.int32)
        if TERMS.scaled:
            scale = gl.load(verdict + 1).to(gl.float32, bitcast=True)
    # A role takes no None: a first term stands for one that there is not, and nobody reads that.
    a = (a0, a1, a0 if a2 is None else a2)
    b = (b0, b1, b0 if b2 is None else b2)
    program = gl.program_id(0)
    operands = (a, b, a_tiles, b_tiles, full, empty, serves)
    shared = (a_tiles, b_tiles, full, empty, staging, (d, (), (), alpha, beta), serves, scale)
    pipeline.start_roles(
        PARAMS, program, program, (term_consumer, (shared, OP, TERMS)),
        (term_producer, ()), (term_producer, (operands, TERMS)),
    )  # fmt: skip

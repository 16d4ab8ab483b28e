"""The kernel that applies the functions of both operands to boxes where they lie.

A block whose accumulators leave workers no registers for rows on their way through a function is multiplied so. As in
`specialised_kernel` roles meet at barriers in shared memory; but each has a part in the functions, and about as much to
do as any other: two workers have A's function for their rows, three appliers have B's for a third of the columns each,
and one of the workers brings boxes. One slot more holds those that are on their way: each program has one task, and
pieces of D leave through slots that boxes came in.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
)

from weft.gpu.common.device import dim_mask
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.rasterization import tile_coords
from weft.gpu.common.split_k import split_with_tail
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.warp_specialized.arrival import meet_and_arrive
from weft.gpu.warp_specialized.kernel import (
    CONSUMER_WARPS,
    begin,
    columns_of,
    finished,
    following,
    multiply,
    pipelines,
    rows_of,
    task_of,
    tma_load_tile,
)
from weft.gpu.warp_specialized.prologue import applied_to, registers_for
from weft.gpu.warp_specialized.store_tile import store_tile

meet_threads, _, _, reinterpret = gluon_names()


@gluon.jit
def part_of(program, PARAMS: gl.constexpr):
    """A program's part of the work: a block of D, and a share of its sum as `(number, of how many, steps)`."""
    STEPS: gl.constexpr = PARAMS.boxes.steps
    SPLITS: gl.constexpr = PARAMS.boxes.splits
    if PARAMS.fewer.shares == 0:
        share, block = task_of(program, PARAMS, 0)
        return block, (share, SPLITS, STEPS)
    else:
        BLOCKS: gl.constexpr = PARAMS.tasks
        TAIL_SPLITS: gl.constexpr = PARAMS.fewer
        block, share, of, steps = split_with_tail(program, BLOCKS, SPLITS, STEPS, TAIL_SPLITS)
        return block, (share, of, steps)


@gluon.jit
def along_k(step, share):
    """Where a step is along k. Shares take turns: so all programs go through the operands together, however many steps
    each takes in a while, and find boxes in L2 that others have brought."""
    number, of, _steps = share
    return step * of + number


@gluon.jit
def bring_step(step, share, place, PARAMS: gl.constexpr, brought):
    """Ask for the boxes of a step as soon as its slot is empty."""
    a, b, z, x_pipe, y_pipe, z_pipe, full, empty = brought
    batch_block, m_block, n_block = place
    BOXES: gl.constexpr = PARAMS.boxes
    BATCH: gl.constexpr = BOXES.batch
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    A_BOX: gl.constexpr = BOXES.a_box
    B_BOX: gl.constexpr = BOXES.b_box
    FIRST: gl.constexpr = BOXES.parts[0].n
    SECOND: gl.constexpr = BOXES.parts[-1].n
    BYTES: gl.constexpr = (M.tile + N.tile) * K.tile * (a.dtype.primitive_bitwidth // 8)
    stage = step % PARAMS.stages
    bar = full.index(stage)
    k_block = along_k(step, share)
    mbarrier.wait(empty.index(stage), (step // PARAMS.stages & 1) ^ 1)
    mbarrier.expect(bar, BYTES)
    tma_load_tile(a, x_pipe, stage, bar, batch_block, m_block, k_block, BATCH, M, K, A_BOX)
    tma_load_tile(b, y_pipe, stage, bar, batch_block, n_block, k_block, BATCH, FIRST, K, B_BOX)
    if len(BOXES.parts) == 2:
        tma_load_tile(z, z_pipe, stage, bar, batch_block, n_block, k_block, BATCH, SECOND, K, B_BOX)


@gluon.jit
def lines_of(y_pipe, z_pipe, stage, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr):
    """Some of an applier's lines, where they lie."""
    RUN: gl.constexpr = PARAMS.portions[TRANSFORMER][AT]
    if RUN.part == 0:
        return y_pipe.index(stage).slice(RUN.first, RUN.lines, 0)
    else:
        return z_pipe.index(stage).slice(RUN.first, RUN.lines, 0)


@gluon.jit
def read_lines(y_pipe, z_pipe, stage, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr):
    """The same in registers."""
    lines = lines_of(y_pipe, z_pipe, stage, PARAMS, TRANSFORMER, AT)
    return lines.load(registers_for(lines.shape[0], lines.shape[1], CONSUMER_WARPS))


@gluon.jit
def finish_lines(
    value, y_pipe, z_pipe, stage, k_block, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, AT: gl.constexpr,
    B_FN: gl.constexpr, PRODUCT: gl.constexpr,
):  # fmt: skip
    """Apply B's function to lines in registers, and store them where they lay."""
    FIRST: gl.constexpr = PARAMS.portions[TRANSFORMER][AT].first
    store_applied(
        value, lines_of(y_pipe, z_pipe, stage, PARAMS, TRANSFORMER, AT), FIRST, k_block, PARAMS, PARAMS.boxes.b_along_k, B_FN, PRODUCT
    )  # fmt: skip


@gluon.jit
def store_applied(
    value, lines, first, k_block, PARAMS: gl.constexpr, ALONG_K: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr
):  # fmt: skip
    """Apply a function to lines in registers, and store them where they lay."""
    K: gl.constexpr = PARAMS.boxes.k
    MASKED: gl.constexpr = PARAMS.boxes.masked
    LAYOUT: gl.constexpr = registers_for(lines.shape[0], lines.shape[1], CONSUMER_WARPS)
    lines.store(applied_to(value, first, k_block, K, ALONG_K, MASKED, LAYOUT, FN, PRODUCT))


@gluon.jit
def apply_ahead(
    program, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, brought, ready, B_FN: gl.constexpr, PRODUCT: gl.constexpr
):  # fmt: skip
    """The role that applies B's function to its lines of every box. Lines are read before the function is applied to
    those before them, also from one step to the next: shared memory is busy, and answers late."""
    _a, _b, _z, _x_pipe, y_pipe, z_pipe, full, _empty = brought
    COUNT: gl.constexpr = len(PARAMS.portions[TRANSFORMER])
    _block, share = part_of(program, PARAMS)
    _number, _of, steps = share
    mbarrier.wait(full.index(0), 0)
    value = read_lines(y_pipe, z_pipe, 0, PARAMS, TRANSFORMER, 0)
    for step in range(steps):
        stage = step % PARAMS.stages
        after = (step + 1) % PARAMS.stages
        k_block = along_k(step, share)
        for i in gl.static_range(COUNT):
            if i + 1 < COUNT:
                coming = read_lines(y_pipe, z_pipe, stage, PARAMS, TRANSFORMER, i + 1)
            else:
                if step + 1 < steps:  # past the last, what is read is of no use
                    mbarrier.wait(full.index(after), (step + 1) // PARAMS.stages & 1)
                coming = read_lines(y_pipe, z_pipe, after, PARAMS, TRANSFORMER, 0)
            finish_lines(value, y_pipe, z_pipe, stage, k_block, PARAMS, TRANSFORMER, i, B_FN, PRODUCT)
            value = coming
        fence_async_shared()
        meet_and_arrive(ready.index(stage))


@gluon.jit
def rows_where_they_lie(x_pipe, stage, PARAMS: gl.constexpr, SHARE: gl.constexpr):
    """A worker's rows of a box of A, as they lie."""
    HEIGHT: gl.constexpr = SHARE.m.tile
    ACROSS: gl.constexpr = 0 if PARAMS.boxes.a_along_k else 1
    return x_pipe.index(stage).slice(SHARE.row, HEIGHT, ACROSS)


@gluon.jit
def slot_for_pieces(x_pipe, empty, d, steps, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """A worker's memory for pieces of D: a slot that boxes of A came in. No others come, and both workers have done
    with these."""
    SHAPE: gl.constexpr = [PARAMS.consumers.buffers, PARAMS.d_shape[0], PARAMS.d_shape[1]]
    if steps > CONSUMER:
        rounds = (steps - CONSUMER + PARAMS.stages - 1) // PARAMS.stages  # in which the slot had boxes
        mbarrier.wait(empty.index(CONSUMER), (rounds - 1) & 1)
    return reinterpret(x_pipe.index(CONSUMER), d.dtype, SHAPE, PARAMS.d_layout)


@gluon.jit
def work(
    program, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, taken, A_FN: gl.constexpr, EPILOGUE: gl.constexpr,
    PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """The role that applies A's function, multiplies and stores; the first worker brings boxes too. Where a block ends
    before the second one's rows begin, that has nothing to do."""
    brought, _ready, _d, _alpha = taken
    M: gl.constexpr = PARAMS.boxes.m
    N: gl.constexpr = PARAMS.boxes.n
    ROWS: gl.constexpr = PARAMS.shares[CONSUMER][0].m
    block, share = part_of(program, PARAMS)
    number, _of, steps = share
    place = tile_coords(block, M.blocks, N.blocks, PARAMS.boxes.group)
    to = number * PARAMS.boxes.blocks + block
    if CONSUMER == 0 or M.exact:  # noqa: SIM114  (known when this is compiled, the other is not)
        work_on_rows(share, place, to, PARAMS, CONSUMER, taken, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)
    elif dim_mask(place[1], gl.to_tensor(0), ROWS):
        work_on_rows(share, place, to, PARAMS, CONSUMER, taken, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)
    else:
        let_pass(steps, PARAMS, brought)


@gluon.jit
def let_pass(steps, PARAMS: gl.constexpr, brought):
    """Give up all boxes as they come."""
    _a, _b, _z, _x_pipe, _y_pipe, _z_pipe, full, empty = brought
    for step in range(steps):
        stage = step % PARAMS.stages
        mbarrier.wait(full.index(stage), step // PARAMS.stages & 1)
        mbarrier.arrive(empty.index(stage))


@gluon.jit
def work_on_rows(
    share, place, to, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, taken, A_FN: gl.constexpr, EPILOGUE: gl.constexpr,
    PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """What a worker does that has rows."""
    brought, ready, d, alpha = taken
    _a, _b, _z, x_pipe, y_pipe, z_pipe, full, empty = brought
    batch_block, m_block, n_block = place
    _number, _of, steps = share
    BOXES: gl.constexpr = PARAMS.boxes
    AHEAD: gl.constexpr = PARAMS.stages - 1
    SHARE: gl.constexpr = PARAMS.shares[CONSUMER][0]
    REST: gl.constexpr = PARAMS.shares[CONSUMER][-1]
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // PARAMS.product_bits
    WIDTH: gl.constexpr = min(SHARE.n.tile, PARAMS.roles.widest)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, WIDTH, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, REST.n.tile, DEPTH])
    if CONSUMER == 0:
        for step in gl.static_range(min(AHEAD, BOXES.steps)):
            bring_step(gl.to_tensor(step), share, place, PARAMS, brought)

    # (1) Apply A's function to the rows of one step, and to those of the next while the columns that appliers have made
    # ready are multiplied. The narrower part of those comes last: meanwhile the wider has been begun.
    acc = warpgroup_mma_init(gl.full([SHARE.m.tile, SHARE.n.tile], 0, ACCUMULATE, LAYOUT))
    acc_rest = gl.to_tensor(0)  # a role takes no None
    if TWO:
        acc_rest = warpgroup_mma_init(gl.full([REST.m.tile, REST.n.tile], 0, ACCUMULATE, LAYOUT_REST))
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    rows = rows_where_they_lie(x_pipe, stage, PARAMS, SHARE)
    LINES: gl.constexpr = registers_for(rows.shape[0], rows.shape[1], CONSUMER_WARPS)
    mbarrier.wait(full.index(stage), phase)
    store_applied(rows.load(LINES), rows, 0, along_k(0, share), PARAMS, BOXES.a_along_k, A_FN, PRODUCT)
    fence_async_shared()
    meet_threads()
    for step in range(1, steps):
        before = stage
        before_phase = phase
        stage, phase = following(stage, phase, PARAMS.stages)
        rows = rows_where_they_lie(x_pipe, stage, PARAMS, SHARE)
        mbarrier.wait(full.index(stage), phase)
        value = rows.load(LINES)
        mbarrier.wait(ready.index(before), before_phase)
        x = rows_of(x_pipe, before, PARAMS, SHARE)
        acc = warpgroup_mma(x, columns_of(y_pipe, before, PARAMS), acc, is_async=True)
        if CONSUMER == 0:  # noqa: SIM102  (into the slot of the step before: now that there is something to multiply)
            if step + AHEAD - 1 < steps:
                bring_step(step + AHEAD - 1, share, place, PARAMS, brought)
        store_applied(value, rows, 0, along_k(step, share), PARAMS, BOXES.a_along_k, A_FN, PRODUCT)
        if TWO:
            acc_rest = warpgroup_mma(x, columns_of(z_pipe, before, PARAMS), acc_rest, is_async=True)
        fence_async_shared()
        meet_threads()
        acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
        meet_and_arrive(empty.index(before))
    mbarrier.wait(ready.index(stage), phase)
    x = rows_of(x_pipe, stage, PARAMS, SHARE)
    acc, acc_rest = multiply(x, y_pipe, z_pipe, stage, acc, acc_rest, PARAMS)
    acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
    mbarrier.arrive(empty.index(stage))

    # (2) Leave the share, or finish the block.
    pieces = slot_for_pieces(x_pipe, empty, d, steps, PARAMS, CONSUMER)
    store_tile(acc, d, pieces, 0, alpha, to, batch_block, m_block, n_block, PARAMS, SHARE, EPILOGUE)
    if TWO:
        store_tile(acc_rest, d, pieces, 0, alpha, to, batch_block, m_block, n_block, PARAMS, REST, EPILOGUE)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["alpha", "beta"])
def smem_transform_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    d,  # boxes of D, or of the shares of a split sum
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # of no use: C is not read
    pointers,  # None: functions have no operands
    PARAMS: gl.constexpr,  # specialised_cut.SpecialisedCut
    A_FN: gl.constexpr,
    B_FN: gl.constexpr,
    C_FN: gl.constexpr,
    EPILOGUE: gl.constexpr,
    PRODUCT: gl.constexpr,
    ACCUMULATE: gl.constexpr,
    RESULT: gl.constexpr,
    PRECISION: gl.constexpr,
    AUX: gl.constexpr,  # beside.Beside
):
    x_pipe, y_pipe, z_pipe, z = pipelines(b, b_rest, PARAMS, PRODUCT)
    STAGES: gl.constexpr = PARAMS.stages
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(ready.index(i), count=PARAMS.roles.transformers)
        mbarrier.init(empty.index(i), count=PARAMS.consumers.shares)
    pdl_wait()
    program = gl.program_id(0)
    brought = (a, b, z, x_pipe, y_pipe, z_pipe, full, empty)
    taken = (brought, ready, d, alpha)
    # There is no loader: what stands in its place, last, is not used.
    begin(
        PARAMS, program, program, (work, (taken, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
        (apply_ahead, (brought, ready, B_FN, PRODUCT)), (let_pass, ()),
    )  # fmt: skip

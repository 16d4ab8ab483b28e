"""The kernel whose warps have roles: one or two bring boxes to shared memory, and two groups of four multiply.

A group that multiplies is a *worker*. Both work on one block of D, half of its rows each, and share every box of B
("together"); or each takes blocks of its own from a ring of its own, and while one stores its block, or applies
functions, the other multiplies ("in turns"); or they take two blocks of the same rows, and share every box of A ("side
by side"). A's function is applied by workers, in registers. B's is applied by *appliers*, two or four more groups of
four warps, to boxes where they lie, ahead of the workers. Nothing but barriers in shared memory connects the roles: a
slot of a ring is *full* when its boxes have come, *ready* when B's function has been applied, and *empty* when all that
read it have done so.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from weft.gpu.common.device import dim_mask
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.rasterization import tile_coords
from weft.gpu.common.split_k import range_start, split_of_tile
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.tma.kernel import tma_coords
from weft.gpu.warp_specialized.arrival import meet_and_arrive
from weft.gpu.warp_specialized.prologue import apply
from weft.gpu.warp_specialized.roles import CONSUMERS, WARPS
from weft.gpu.warp_specialized.store_tile import store_tile

CONSUMER_WARPS = tl.constexpr(WARPS)
_, tma_load, _, reinterpret = gluon_names()


@gluon.jit
def tma_load_tile(
    boxes, pipeline, stage, bar, batch_block, outer_block, k_block, BATCH: gl.constexpr, OUTER: gl.constexpr,
    K: gl.constexpr, DIMENSIONS: gl.constexpr,
):  # fmt: skip
    """Ask for one box of an operand."""
    start = ()
    for i in gl.static_range(len(DIMENSIONS)):
        start += (tma_coords(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, i),)
    to = reinterpret(pipeline.index(stage), boxes.dtype, boxes.block_shape, boxes.layout)
    tma_load(boxes, start, bar, to)


@gluon.jit
def task_of(number, PARAMS: gl.constexpr, AT: gl.constexpr):
    """Which share of its sum a task is, and of which block of D, or of which of those that are taken at once."""
    return number // PARAMS.tasks, number % PARAMS.tasks * PARAMS.consumers.abreast + AT % PARAMS.consumers.abreast


@gluon.jit
def tasks_of(number, PARAMS: gl.constexpr):
    """The tasks of a program, or of a worker with a ring of its own, as a range: every so many, or those that its
    portion of all sums meets."""
    STREAM_K: gl.constexpr = PARAMS.stream
    if STREAM_K is None:
        return number, PARAMS.tasks * PARAMS.boxes.splits, PARAMS.consumers.pipelines * PARAMS.boxes.programs
    else:
        end = range_start(number + 1, STREAM_K)
        return range_start(number, STREAM_K) // STREAM_K.steps, (end - 1) // STREAM_K.steps + 1, 1


@gluon.jit
def share_of(task, number, PARAMS: gl.constexpr, AT: gl.constexpr):
    """Of a task: the share of its sum, of which block of D, the share's first step, and how many they are."""
    STEPS: gl.constexpr = PARAMS.boxes.steps
    STREAM_K: gl.constexpr = PARAMS.stream
    share, block = task_of(task, PARAMS, AT)
    if STREAM_K is None:
        return share, block, share * STEPS, STEPS
    else:
        share, first_step, steps = split_of_tile(task, number, STREAM_K)
        return share, block, first_step, steps


@gluon.jit
def load(number, PARAMS: gl.constexpr, PRODUCER: gl.constexpr, brought):
    """The role that fills a ring: boxes of A and B, step by step, task after task."""
    a, b, z, x_pipe, y_pipe, z_pipe, full, empty = brought
    BOXES: gl.constexpr = PARAMS.boxes
    BATCH: gl.constexpr = BOXES.batch
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    A_BOX: gl.constexpr = BOXES.a_box
    B_BOX: gl.constexpr = BOXES.b_box
    FIRST: gl.constexpr = BOXES.parts[0].n
    SECOND: gl.constexpr = BOXES.parts[-1].n
    TWO: gl.constexpr = len(BOXES.parts) == 2
    ABREAST: gl.constexpr = PARAMS.consumers.abreast
    BYTES: gl.constexpr = (M.tile + ABREAST * N.tile) * K.tile * (a.dtype.primitive_bitwidth // 8)
    BARS: gl.constexpr = PARAMS.rounds * PARAMS.stages
    position = gl.to_tensor(0)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    first_task, end_task, STRIDE = tasks_of(number, PARAMS)
    for task in range(first_task, end_task, STRIDE):
        _share, block, first_step, steps = share_of(task, number, PARAMS, 0)
        batch_block, m_block, n_block = tile_coords(block, M.blocks, N.blocks, BOXES.group)
        for step in range(steps):
            k_block = first_step + step
            at = PRODUCER * PARAMS.stages + stage
            bar = full.index(PRODUCER * BARS + position % BARS)
            mbarrier.wait(empty.index(at), phase)
            mbarrier.expect(bar, BYTES)
            tma_load_tile(a, x_pipe, at, bar, batch_block, m_block, k_block, BATCH, M, K, A_BOX)
            for i in gl.static_range(ABREAST):
                to = i * PARAMS.stages + at
                tma_load_tile(b, y_pipe, to, bar, batch_block, n_block + i, k_block, BATCH, FIRST, K, B_BOX)
                if TWO:
                    tma_load_tile(z, z_pipe, to, bar, batch_block, n_block + i, k_block, BATCH, SECOND, K, B_BOX)
            stage, phase = following(stage, phase, PARAMS.stages)
            position += 1


@gluon.jit
def apply_ahead(
    number, PARAMS: gl.constexpr, TRANSFORMER: gl.constexpr, brought, ready, B_FN: gl.constexpr, PRODUCT: gl.constexpr
):  # fmt: skip
    """The role that applies B's function to boxes of a ring, to those of every so many steps: appliers take turns.

    Barriers tell one round from the next, but not from the one after that. Where an applier does not meet a slot in
    every round, those that it does have barriers of their own.
    """
    _a, _b, _z, _x_pipe, y_pipe, z_pipe, full, _empty = brought
    BOXES: gl.constexpr = PARAMS.boxes
    K: gl.constexpr = BOXES.k
    ALONG_K: gl.constexpr = BOXES.b_along_k
    MASKED: gl.constexpr = BOXES.masked
    AT_ONCE: gl.constexpr = PARAMS.roles.at_once
    STREAM_K: gl.constexpr = PARAMS.stream
    STRIDE: gl.constexpr = PARAMS.consumers.pipelines * BOXES.programs
    PIPELINES: gl.constexpr = PARAMS.consumers.pipelines_of_columns
    PIPELINE: gl.constexpr = TRANSFORMER % PIPELINES
    FIRST: gl.constexpr = TRANSFORMER // PIPELINES
    EVERY: gl.constexpr = PARAMS.roles.transformers // PIPELINES
    BARS: gl.constexpr = PARAMS.rounds * PARAMS.stages
    if STREAM_K is None:
        count = (PARAMS.tasks * BOXES.splits - number + STRIDE - 1) // STRIDE * BOXES.steps
    else:
        start = range_start(number, STREAM_K)
        count = range_start(number + 1, STREAM_K) - start
    for position in range(FIRST, count, EVERY):
        if STREAM_K is None:
            share, _ = task_of(number + position // BOXES.steps * STRIDE, PARAMS, 0)
            k_block = share * BOXES.steps + position % BOXES.steps
        else:
            k_block = (start + position) % STREAM_K.steps
        stage = PARAMS.own_columns[PIPELINE] + position % PARAMS.stages
        mbarrier.wait(full.index(PARAMS.own_rows[PIPELINE] * PARAMS.rounds + position % BARS), position // BARS & 1)
        if len(BOXES.parts) == 2:
            boxes = (y_pipe.index(stage), z_pipe.index(stage))
        else:
            boxes = (y_pipe.index(stage),)
        apply(boxes, k_block, K, ALONG_K, MASKED, CONSUMER_WARPS, AT_ONCE, B_FN, PRODUCT)
        fence_async_shared()
        meet_and_arrive(ready.index(stage))


@gluon.jit
def following(stage, phase, STAGES: gl.constexpr):
    """The next slot of a ring, and the phase of its barriers: it turns with every round."""
    over = stage + 1 == STAGES
    return gl.where(over, 0, stage + 1), gl.where(over, phase ^ 1, phase)


@gluon.jit
def rows_of(x_pipe, stage, PARAMS: gl.constexpr, SHARE: gl.constexpr):
    """A worker's rows of a box of A, as a matrix of rows and k."""
    HEIGHT: gl.constexpr = SHARE.m.tile
    if PARAMS.boxes.a_along_k:
        return x_pipe.index(stage).slice(SHARE.row, HEIGHT, 0)
    else:
        return x_pipe.index(stage).slice(SHARE.row, HEIGHT, 1).permute((1, 0))


@gluon.jit
def columns_of(y_pipe, stage, PARAMS: gl.constexpr):
    """A box of B as a matrix of k and columns."""
    if PARAMS.boxes.b_along_k:
        return y_pipe.index(stage).permute((1, 0))
    else:
        return y_pipe.index(stage)


@gluon.jit
def prologue(
    x_pipe, stage, k_block, PARAMS: gl.constexpr, SHARE: gl.constexpr, A_FN: gl.constexpr, PRODUCT: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """A worker's rows of a box of A in registers, the function applied. What lies past the end of k stays zero."""
    K: gl.constexpr = PARAMS.boxes.k
    DEPTH: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    x = A_FN(rows_of(x_pipe, stage, PARAMS, SHARE).load(LAYOUT)).to(PRODUCT)
    if PARAMS.boxes.masked:
        inside = dim_mask(k_block, gl.arange(0, K.tile, layout=DEPTH), K)
        x = gl.where(inside[None, :], x, gl.to_tensor(0.0).to(PRODUCT))
    return x


@gluon.jit
def moved(x, LAYOUT: gl.constexpr):
    """The same in other registers. Those that matrix instructions read must not be written before they are done, or
    the assembler runs these one at a time; and it sees through a mere copy. The grid is flat: the zero is one."""
    zero = gl.full(x.shape, gl.program_id(2).to(gl.int16), gl.int16, LAYOUT)
    return gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def multiply(x, y_pipe, z_pipe, stage, acc, acc_rest, PARAMS: gl.constexpr):
    """Begin to add the products of one step."""
    acc = warpgroup_mma(x, columns_of(y_pipe, stage, PARAMS), acc, is_async=True)
    if len(PARAMS.boxes.parts) == 2:
        acc_rest = warpgroup_mma(x, columns_of(z_pipe, stage, PARAMS), acc_rest, is_async=True)
    return acc, acc_rest


@gluon.jit
def finished(acc, acc_rest, PENDING: gl.constexpr, PARAMS: gl.constexpr):
    """Wait until the products of no more than `PENDING` steps are still being added."""
    if len(PARAMS.boxes.parts) == 2:
        acc, acc_rest = warpgroup_mma_wait(2 * PENDING, deps=(acc, acc_rest))
        return warpgroup_mma_init(acc), warpgroup_mma_init(acc_rest)
    else:
        return warpgroup_mma_init(warpgroup_mma_wait(PENDING, deps=(acc,))), acc_rest


@gluon.jit
def work(
    number, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, taken, A_FN: gl.constexpr, EPILOGUE: gl.constexpr,
    PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """The role that multiplies and stores."""
    x_pipe, y_pipe, z_pipe, ready, empty, d, staging, alpha = taken
    BOXES: gl.constexpr = PARAMS.boxes
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    SHARE: gl.constexpr = PARAMS.shares[CONSUMER][0]
    REST: gl.constexpr = PARAMS.shares[CONSUMER][-1]
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // PARAMS.product_bits
    WIDTH: gl.constexpr = min(SHARE.n.tile, PARAMS.roles.widest)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, WIDTH, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CONSUMER_WARPS, 1], [16, REST.n.tile, DEPTH])
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // PARAMS.product_bits)
    ROWS_AT: gl.constexpr = PARAMS.own_rows[CONSUMER]
    COLUMNS_AT: gl.constexpr = PARAMS.own_columns[CONSUMER]
    READY_AT: gl.constexpr = COLUMNS_AT if PARAMS.roles.transformers > 0 else ROWS_AT
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    first_task, end_task, STRIDE = tasks_of(number, PARAMS)
    for task in range(first_task, end_task, STRIDE):
        # (1) Find the block of D, and the share of its sum.
        share, block, first_step, steps = share_of(task, number, PARAMS, CONSUMER)
        batch_block, m_block, n_block = tile_coords(block, M.blocks, N.blocks, BOXES.group)

        # (2) Multiply box by box.
        acc = warpgroup_mma_init(gl.full([SHARE.m.tile, SHARE.n.tile], 0, ACCUMULATE, LAYOUT))
        acc_rest = gl.to_tensor(0)  # a role takes no None
        if TWO:
            acc_rest = warpgroup_mma_init(gl.full([REST.m.tile, REST.n.tile], 0, ACCUMULATE, LAYOUT_REST))
        mbarrier.wait(ready.index(READY_AT + stage), phase)
        if A_FN is None:
            x = rows_of(x_pipe, ROWS_AT + stage, PARAMS, SHARE)
            acc, acc_rest = multiply(x, y_pipe, z_pipe, COLUMNS_AT + stage, acc, acc_rest, PARAMS)
            for _ in range(1, steps):
                before = stage
                stage, phase = following(stage, phase, PARAMS.stages)
                mbarrier.wait(ready.index(READY_AT + stage), phase)
                x = rows_of(x_pipe, ROWS_AT + stage, PARAMS, SHARE)
                acc, acc_rest = multiply(x, y_pipe, z_pipe, COLUMNS_AT + stage, acc, acc_rest, PARAMS)
                acc, acc_rest = finished(acc, acc_rest, 1, PARAMS)
                mbarrier.arrive(empty.index(ROWS_AT + before))
        else:
            # (3) Functions are applied to the rows of the next step while those of this one are multiplied.
            x = prologue(x_pipe, ROWS_AT + stage, first_step, PARAMS, SHARE, A_FN, PRODUCT, X_LAYOUT)
            for step in range(1, steps):
                acc, acc_rest = multiply(x, y_pipe, z_pipe, COLUMNS_AT + stage, acc, acc_rest, PARAMS)
                before = stage
                stage, phase = following(stage, phase, PARAMS.stages)
                mbarrier.wait(ready.index(READY_AT + stage), phase)
                k_block = first_step + step
                following_x = prologue(x_pipe, ROWS_AT + stage, k_block, PARAMS, SHARE, A_FN, PRODUCT, X_LAYOUT)
                acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
                x = moved(following_x, X_LAYOUT)
                mbarrier.arrive(empty.index(ROWS_AT + before))
            acc, acc_rest = multiply(x, y_pipe, z_pipe, COLUMNS_AT + stage, acc, acc_rest, PARAMS)
        acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
        mbarrier.arrive(empty.index(ROWS_AT + stage))
        stage, phase = following(stage, phase, PARAMS.stages)

        # (4) Leave the share, or finish the block.
        at_staging = CONSUMER * PARAMS.consumers.buffers
        to = share * BOXES.blocks + block
        store_tile(
            acc, d, staging, at_staging, alpha, to, batch_block, m_block, n_block, PARAMS, SHARE, EPILOGUE
        )  # fmt: skip
        if TWO:
            store_tile(
                acc_rest, d, staging, at_staging, alpha, to, batch_block, m_block, n_block, PARAMS, REST, EPILOGUE
            )  # fmt: skip
    tma.store_wait(0)


@tl.core.builtin
def begin(
    PARAMS: Any, program: Any, other: Any, consumer: Any, transformer: Any, producer: Any, _semantic: Any = None,
    _generator: Any = None,
) -> None:  # fmt: skip
    """Give warps their roles, as many of each as `CUT` says. Each of `worker`, `applier` and `loader` is a function and
    what it takes after the number of its part of the work, `CUT` and its own number; that of the first ring is
    `program`, of a second `other`.

    The compiler takes lists of roles only as they are spelled, hence this is no kernel's code. Nor does Triton's cache
    see it: who changes the order of roles has to clear that.
    """
    params = PARAMS.value
    starts = (program, other)

    def role(what: Any, number: int, pipeline: int) -> tuple[Any, Any]:
        function, arguments = what
        return function, gl.tuple([starts[pipeline], PARAMS, gl.constexpr(number), *arguments])

    consumers = [role(consumer, number, number % params.consumers.pipelines) for number in range(CONSUMERS)]
    transformers = [role(transformer, number, number % params.consumers.pipelines) for number in range(params.roles.transformers)]
    loading = len(params.roles.warps) + 1 - CONSUMERS - params.roles.transformers
    producers = [role(producer, number, number) for number in range(loading)]
    gl.warp_specialize(
        [*consumers, *transformers, *producers], list(params.roles.warps), list(params.roles.registers), _semantic=_semantic,
        _generator=_generator,
    )  # fmt: skip


@gluon.jit
def pipelines(b, b_rest, PARAMS: gl.constexpr, PRODUCT: gl.constexpr):
    """Shared memory for boxes: of A, and of both parts of B; and the second part of B. Where there is but one, it
    stands for the other, which is not read: a role takes no None."""
    BOXES: gl.constexpr = PARAMS.boxes
    M: gl.constexpr = BOXES.m.tile
    K: gl.constexpr = BOXES.k.tile
    STAGES_OF_ALL: gl.constexpr = PARAMS.consumers.pipelines * PARAMS.stages
    COLUMN_SLOTS: gl.constexpr = PARAMS.consumers.abreast * STAGES_OF_ALL
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    X_SHAPE: gl.constexpr = [STAGES_OF_ALL, M, K] if BOXES.a_along_k else [STAGES_OF_ALL, K, M]
    Y_SHAPE: gl.constexpr = [COLUMN_SLOTS, FIRST, K] if BOXES.b_along_k else [COLUMN_SLOTS, K, FIRST]
    Z_SHAPE: gl.constexpr = [COLUMN_SLOTS, SECOND, K] if BOXES.b_along_k else [COLUMN_SLOTS, K, SECOND]
    X_LAYOUT: gl.constexpr = PARAMS.x_layout
    Y_LAYOUT: gl.constexpr = PARAMS.y_layouts[0]
    Z_LAYOUT: gl.constexpr = PARAMS.y_layouts[-1]
    x_pipe = gl.allocate_shared_memory(PRODUCT, X_SHAPE, X_LAYOUT)
    y_pipe = gl.allocate_shared_memory(PRODUCT, Y_SHAPE, Y_LAYOUT)
    if len(BOXES.parts) == 2:
        return x_pipe, y_pipe, gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT), b_rest
    else:
        return x_pipe, y_pipe, y_pipe, b


@gluon.jit(do_not_specialize=["alpha", "beta"])
def ws_kernel(
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
    BOXES: gl.constexpr = PARAMS.boxes
    PIPELINES: gl.constexpr = PARAMS.consumers.pipelines
    STAGES_OF_ALL: gl.constexpr = PIPELINES * PARAMS.stages
    COLUMN_SLOTS: gl.constexpr = PARAMS.consumers.abreast * STAGES_OF_ALL
    x_pipe, y_pipe, z_pipe, z = pipelines(b, b_rest, PARAMS, PRODUCT)
    D_SHAPE: gl.constexpr = PARAMS.d_shape
    D_LAYOUT: gl.constexpr = PARAMS.d_layout
    staging = gl.allocate_shared_memory(d.dtype, [2 * PARAMS.consumers.buffers, D_SHAPE[0], D_SHAPE[1]], D_LAYOUT)
    BARS: gl.constexpr = PARAMS.rounds * STAGES_OF_ALL
    full = gl.allocate_shared_memory(gl.int64, [BARS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES_OF_ALL, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BARS):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(STAGES_OF_ALL):
        mbarrier.init(empty.index(i), count=3 - PIPELINES)
    ready = full
    if PARAMS.roles.transformers > 0:
        ready = gl.allocate_shared_memory(gl.int64, [COLUMN_SLOTS, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(COLUMN_SLOTS):
            mbarrier.init(ready.index(i), count=1)
    pdl_wait()
    program = gl.program_id(0)
    brought = (a, b, z, x_pipe, y_pipe, z_pipe, full, empty)
    taken = (x_pipe, y_pipe, z_pipe, ready, empty, d, staging, alpha)
    other = program + (PIPELINES - 1) * BOXES.programs  # whose blocks a ring of the second worker's own is for
    begin(
        PARAMS, program, other, (work, (taken, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
        (apply_ahead, (brought, ready, B_FN, PRODUCT)), (load, (brought,)),
    )  # fmt: skip

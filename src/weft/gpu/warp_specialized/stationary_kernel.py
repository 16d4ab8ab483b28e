"""The kernel that keeps all of B in shared memory, while rows of A pass by and leave as rows of D.

The same roles as in `specialised_kernel`: one warp or two bring boxes, two groups of four or eight warps multiply. Each
of these workers takes all columns of some rows, so that A's function is applied once to each element. Boxes of A come
in a ring for each worker; or in one, for which shared memory has room beside more of B, in the order of the blocks:
then workers take turns, and while one multiplies, the other applies the epilogue to its block and stores it. It stores
from registers, as shared memory is full. Nothing waits for a store.

Where a worker empties a slot, all of its warps are done with it: Triton puts a barrier before every arrival.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from weft.gpu.common.device import dim_mask, dim_offsets, scalar
from weft.gpu.common.pdl import pdl_wait
from weft.gpu.common.rasterization import tile_coords
from weft.gpu.warp_specialized.arrival import meet_and_arrive
from weft.gpu.warp_specialized.kernel import finished, moved, tma_load_tile
from weft.gpu.warp_specialized.prologue import apply
from weft.gpu.warp_specialized.roles import LOADING
from weft.gpu.warp_specialized.store_tile import split_n

CONSUMERS = tl.constexpr(2)
PRODUCER_REGISTERS = tl.constexpr(LOADING)
AT_ONCE = tl.constexpr(32)  # elements of B that each lane passes through its function at once


@gluon.jit
def load_kept(brought, program, PARAMS: gl.constexpr, PRODUCER: gl.constexpr, B_FN: gl.constexpr):
    """The role that fills a ring; the first one's also brings all boxes of B, each before the box of A that it meets.

    Where a function is applied to B, all of B comes first: workers look at no box of A before that is done, and the
    ring may have fewer slots than a task has boxes.
    """
    a, b, z, x_pipe, y_kept, z_kept, full, empty, kept = brought
    BOXES: gl.constexpr = PARAMS.boxes
    BATCH: gl.constexpr = BOXES.batch
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    A_BOX: gl.constexpr = BOXES.a_box
    ELEMENT: gl.constexpr = a.dtype.primitive_bitwidth // 8
    first_task = program + PRODUCER * BOXES.programs
    if B_FN is not None and PRODUCER == 0:
        for step in range(BOXES.steps):
            keep(b, z, y_kept, z_kept, kept, first_task, step, PARAMS)
    position = gl.to_tensor(0)
    for task in range(first_task, BOXES.blocks, PARAMS.pipelines * BOXES.programs):
        batch_block, m_block, _ = tile_coords(task, M.blocks, N.blocks, BOXES.group)
        for step in range(BOXES.steps):
            if B_FN is None and PRODUCER == 0:  # noqa: SIM102 (known when this is compiled)
                if task == first_task:
                    keep(b, z, y_kept, z_kept, kept, task, step, PARAMS)
            stage, phase = place(position, PARAMS, PRODUCER)
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), phase ^ 1)
            mbarrier.expect(bar, M.tile * K.tile * ELEMENT)
            tma_load_tile(a, x_pipe, stage, bar, batch_block, m_block, step, BATCH, M, K, A_BOX)
            position += 1


@gluon.jit
def keep(b, z, y_kept, z_kept, kept, task, step, PARAMS: gl.constexpr):
    """Ask for the boxes of B of one step."""
    BOXES: gl.constexpr = PARAMS.boxes
    BATCH: gl.constexpr = BOXES.batch
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    B_BOX: gl.constexpr = BOXES.b_box
    FIRST: gl.constexpr = BOXES.parts[0].n
    SECOND: gl.constexpr = BOXES.parts[-1].n
    ELEMENT: gl.constexpr = b.dtype.primitive_bitwidth // 8
    batch_block, _, n_block = tile_coords(task, BOXES.m.blocks, N.blocks, BOXES.group)
    bar = kept.index(step)
    mbarrier.expect(bar, N.tile * K.tile * ELEMENT)
    tma_load_tile(b, y_kept, step, bar, batch_block, n_block, step, BATCH, FIRST, K, B_BOX)
    if len(BOXES.parts) == 2:
        tma_load_tile(z, z_kept, step, bar, batch_block, n_block, step, BATCH, SECOND, K, B_BOX)


@gluon.jit
def place(position, PARAMS: gl.constexpr, OWNER: gl.constexpr):
    """The slot of a box in a ring, and the phase of its barriers: it turns with every round."""
    FIRST: gl.constexpr = OWNER * PARAMS.stages if PARAMS.pipelines == 2 else 0
    return FIRST + position % PARAMS.stages, position // PARAMS.stages & 1


@gluon.jit
def rows_of(x_pipe, stage, PARAMS: gl.constexpr, DEPTH: gl.constexpr):
    """The first of a box of A along k, as a matrix of rows and k."""
    if PARAMS.boxes.a_along_k:
        return x_pipe.index(stage).slice(0, DEPTH, 1)
    else:
        return x_pipe.index(stage).slice(0, DEPTH, 0).permute((1, 0))


@gluon.jit
def columns_of(y_kept, step, PARAMS: gl.constexpr, DEPTH: gl.constexpr):
    """The first of a box of B along k, as a matrix of k and columns."""
    if PARAMS.boxes.b_along_k:
        return y_kept.index(step).slice(0, DEPTH, 1).permute((1, 0))
    else:
        return y_kept.index(step).slice(0, DEPTH, 0)


@gluon.jit
def prologue(
    x_pipe, stage, empty, turn, step, PARAMS: gl.constexpr, DEPTH: gl.constexpr, LAST: gl.constexpr, A_FN: gl.constexpr,
    PRODUCT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The first of a box of A along k in registers, the function applied. The next box may come in its place at once;
    behind the last one it is the other worker's `turn`, in a ring of both. What lies past the end of k stays zero."""
    K: gl.constexpr = PARAMS.boxes.k
    x = rows_of(x_pipe, stage, PARAMS, DEPTH).load(LAYOUT)
    fence_async_shared()  # a barrier does not wait for loads that are on their way, and the next box would not either
    meet_and_arrive(empty.index(stage))
    if LAST and PARAMS.pipelines == 1:
        mbarrier.arrive(turn)
    x = A_FN(x).to(PRODUCT)
    if PARAMS.boxes.masked:
        inside = dim_mask(step, gl.arange(0, DEPTH, layout=gl.SliceLayout(0, LAYOUT)), K)
        x = gl.where(inside[None, :], x, gl.to_tensor(0.0).to(PRODUCT))
    return x


@gluon.jit
def multiply(x, y_kept, z_kept, step, acc, acc_rest, PARAMS: gl.constexpr, DEPTH: gl.constexpr):
    """Begin to add the products of one step."""
    acc = warpgroup_mma(x, columns_of(y_kept, step, PARAMS, DEPTH), acc, is_async=True)
    if len(PARAMS.boxes.parts) == 2:
        acc_rest = warpgroup_mma(x, columns_of(z_kept, step, PARAMS, DEPTH), acc_rest, is_async=True)
    return acc, acc_rest


@gluon.jit
def apply_all(y_kept, z_kept, kept, applied, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, B_FN: gl.constexpr,
              PRODUCT: gl.constexpr):  # fmt: skip
    """Apply B's function to every second step's boxes, and wait until the other worker has done the rest."""
    K: gl.constexpr = PARAMS.boxes.k
    ALONG_K: gl.constexpr = PARAMS.boxes.b_along_k
    MASKED: gl.constexpr = PARAMS.boxes.masked
    WARPS: gl.constexpr = PARAMS.warps
    for step in range(CONSUMER, PARAMS.boxes.steps, CONSUMERS):
        mbarrier.wait(kept.index(step), 0)
        if len(PARAMS.boxes.parts) == 2:
            boxes = (y_kept.index(step), z_kept.index(step))
        else:
            boxes = (y_kept.index(step),)
        apply(boxes, step, K, ALONG_K, MASKED, WARPS, AT_ONCE, B_FN, PRODUCT)
    fence_async_shared()
    meet_and_arrive(applied)
    mbarrier.wait(applied, 0)


@gluon.jit
def store(acc, d, alpha, m_block, n_block, PARAMS: gl.constexpr, PART: gl.constexpr, EPILOGUE: gl.constexpr):
    """Finish an accumulator and store it, piece by piece."""
    pieces = (warpgroup_mma_wait(0, deps=(acc,)),)
    HALVINGS: gl.constexpr = PARAMS.halvings[PART]
    for _ in gl.static_range(HALVINGS):
        pieces = split_n(pieces)
    COUNT: gl.constexpr = len(PARAMS.pieces[PART])
    for i in gl.static_range(COUNT):
        store_piece(pieces[i], d, alpha, m_block, n_block, PARAMS, PART, i, EPILOGUE)


@gluon.jit
def store_piece(
    acc, d, alpha, m_block, n_block, PARAMS: gl.constexpr, PART: gl.constexpr, AT: gl.constexpr,
    EPILOGUE: gl.constexpr,
):  # fmt: skip
    """Finish some columns of an accumulator and store them."""
    N: gl.constexpr = PARAMS.pieces[PART][AT]
    M: gl.constexpr = PARAMS.boxes.m
    WIDE: gl.constexpr = PARAMS.boxes.wide[3]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [PARAMS.warps, 1], [16, N.tile, 256 // PARAMS.product_bits])
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True) * scalar(alpha, acc.dtype)
    if EPILOGUE is not None:
        value = EPILOGUE(value)
    STORED: gl.constexpr = PARAMS.stored[PART]
    row = gl.arange(0, M.tile, layout=gl.SliceLayout(1, STORED))
    column = gl.arange(0, N.tile, layout=gl.SliceLayout(0, STORED))
    to = (d + dim_offsets(m_block, row, M, 3, WIDE)[:, None]) + dim_offsets(n_block, column, N, 3, WIDE)[None, :]
    mask = dim_mask(m_block, row, M)[:, None] & dim_mask(n_block, column, N)[None, :]
    gl.store(to, gl.convert_layout(value.to(d.dtype.element_ty), STORED), mask=mask)


@gluon.jit
def add_products(taken, position, turn, acc, acc_rest, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """Multiply box by box. Of the last one, only what there is along k."""
    x_pipe, y_kept, z_kept, full, empty, kept, _turns, _applied, _d, _alpha = taken
    DEPTH: gl.constexpr = PARAMS.boxes.k.tile
    LAST: gl.constexpr = PARAMS.boxes.steps - 1
    for step in range(LAST):
        stage, phase = place(position + step, PARAMS, CONSUMER)
        mbarrier.wait(kept.index(step), 0)
        mbarrier.wait(full.index(stage), phase)
        x = rows_of(x_pipe, stage, PARAMS, DEPTH)
        acc, acc_rest = multiply(x, y_kept, z_kept, step, acc, acc_rest, PARAMS, DEPTH)
        acc, acc_rest = finished(acc, acc_rest, 1, PARAMS)
        if step > 0:
            before, _ = place(position + step - 1, PARAMS, CONSUMER)
            mbarrier.arrive(empty.index(before))
    stage, phase = place(position + LAST, PARAMS, CONSUMER)
    mbarrier.wait(kept.index(LAST), 0)
    mbarrier.wait(full.index(stage), phase)
    if PARAMS.pipelines == 1:
        meet_and_arrive(turn)  # all warps have taken this turn before the other worker may give the next
    x = rows_of(x_pipe, stage, PARAMS, PARAMS.tail)
    acc, acc_rest = multiply(x, y_kept, z_kept, LAST, acc, acc_rest, PARAMS, PARAMS.tail)
    acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
    if LAST > 0:
        before, _ = place(position + LAST - 1, PARAMS, CONSUMER)
        mbarrier.arrive(empty.index(before))
    mbarrier.arrive(empty.index(stage))
    return acc, acc_rest


@gluon.jit
def add_products_of_function(
    taken, position, turn, acc, acc_rest, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, A_FN: gl.constexpr,
    PRODUCT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The same. The function is applied to the rows of the next step while those of this one are multiplied."""
    x_pipe, y_kept, z_kept, full, empty, kept, _turns, _applied, _d, _alpha = taken
    DEPTH: gl.constexpr = PARAMS.boxes.k.tile
    LAST: gl.constexpr = PARAMS.boxes.steps - 1
    stage, phase = place(position, PARAMS, CONSUMER)
    mbarrier.wait(full.index(stage), phase)
    if LAST == 0:
        last_x = prologue(x_pipe, stage, empty, turn, 0, PARAMS, PARAMS.tail, True, A_FN, PRODUCT, LAYOUT)
    else:
        x = prologue(x_pipe, stage, empty, turn, 0, PARAMS, DEPTH, False, A_FN, PRODUCT, LAYOUT)
        mbarrier.wait(kept.index(0), 0)
        for step in range(1, LAST):
            acc, acc_rest = multiply(x, y_kept, z_kept, step - 1, acc, acc_rest, PARAMS, DEPTH)
            stage, phase = place(position + step, PARAMS, CONSUMER)
            mbarrier.wait(full.index(stage), phase)
            following_x = prologue(x_pipe, stage, empty, turn, step, PARAMS, DEPTH, False, A_FN, PRODUCT, LAYOUT)
            acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
            x = moved(following_x, LAYOUT)
            mbarrier.wait(kept.index(step), 0)
        acc, acc_rest = multiply(x, y_kept, z_kept, LAST - 1, acc, acc_rest, PARAMS, DEPTH)
        stage, phase = place(position + LAST, PARAMS, CONSUMER)
        mbarrier.wait(full.index(stage), phase)
        following_x = prologue(x_pipe, stage, empty, turn, LAST, PARAMS, PARAMS.tail, True, A_FN, PRODUCT, LAYOUT)
        acc, acc_rest = finished(acc, acc_rest, 0, PARAMS)
        last_x = moved(following_x, LAYOUT)
    mbarrier.wait(kept.index(LAST), 0)
    acc, acc_rest = multiply(last_x, y_kept, z_kept, LAST, acc, acc_rest, PARAMS, PARAMS.tail)
    return finished(acc, acc_rest, 0, PARAMS)


@gluon.jit
def work_kept(
    taken, program, PARAMS: gl.constexpr, CONSUMER: gl.constexpr, A_FN: gl.constexpr, B_FN: gl.constexpr,
    EPILOGUE: gl.constexpr, PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """The role that multiplies and stores.

    At a ring of both, a worker looks only when it is its turn: when the other one has seen its last box come. Barriers
    tell one round from the next, but not from the one after that.
    """
    _x_pipe, y_kept, z_kept, _full, _empty, kept, turns, applied, d, alpha = taken
    BOXES: gl.constexpr = PARAMS.boxes
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // PARAMS.product_bits
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [PARAMS.warps, 1], [16, FIRST, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [PARAMS.warps, 1], [16, SECOND, DEPTH])
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // PARAMS.product_bits)
    if B_FN is not None:
        apply_all(y_kept, z_kept, kept, applied, PARAMS, CONSUMER, B_FN, PRODUCT)
    OTHERS: gl.constexpr = BOXES.steps if PARAMS.pipelines == 1 else 0  # boxes between two blocks of a worker
    position = gl.to_tensor(CONSUMER * OTHERS)
    turn = turns.index(1 - CONSUMER)
    phase_of_turn = gl.to_tensor(1 - CONSUMER)
    for task in range(program + CONSUMER * BOXES.programs, BOXES.blocks, CONSUMERS * BOXES.programs):
        # (1) Find the block of D, and wait for the turn where there are turns.
        _, m_block, n_block = tile_coords(task, M.blocks, N.blocks, BOXES.group)
        acc = warpgroup_mma_init(gl.full([M.tile, FIRST], 0, ACCUMULATE, LAYOUT))
        acc_rest = gl.to_tensor(0)  # a role takes no None
        if TWO:
            acc_rest = warpgroup_mma_init(gl.full([M.tile, SECOND], 0, ACCUMULATE, LAYOUT_REST))
        if PARAMS.pipelines == 1:
            mbarrier.wait(turns.index(CONSUMER), phase_of_turn)
            phase_of_turn ^= 1

        # (2) Multiply.
        if A_FN is None:
            acc, acc_rest = add_products(taken, position, turn, acc, acc_rest, PARAMS, CONSUMER)
        else:
            acc, acc_rest = add_products_of_function(
                taken, position, turn, acc, acc_rest, PARAMS, CONSUMER, A_FN, PRODUCT, X_LAYOUT
            )  # fmt: skip
        position += BOXES.steps + OTHERS

        # (3) Finish the block.
        store(acc, d, alpha, m_block, n_block, PARAMS, 0, EPILOGUE)
        if TWO:
            store(acc_rest, d, alpha, m_block, n_block, PARAMS, 1, EPILOGUE)


@gluon.jit(do_not_specialize=["alpha", "beta"])
def stationary_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # of no use: C is not read
    pointers,  # None: functions have no operands
    PARAMS: gl.constexpr,  # specialised_kept.KeptCut
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
    K: gl.constexpr = BOXES.k
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    STAGES_OF_ALL: gl.constexpr = PARAMS.pipelines * PARAMS.stages
    STEPS: gl.constexpr = BOXES.steps
    X_SHAPE: gl.constexpr = [STAGES_OF_ALL, BOXES.m.tile, K.tile] if BOXES.a_along_k else [STAGES_OF_ALL, K.tile, BOXES.m.tile]
    Y_SHAPE: gl.constexpr = [STEPS, FIRST, K.tile] if BOXES.b_along_k else [STEPS, K.tile, FIRST]
    Z_SHAPE: gl.constexpr = [STEPS, SECOND, K.tile] if BOXES.b_along_k else [STEPS, K.tile, SECOND]
    X_LAYOUT: gl.constexpr = PARAMS.x_layout
    Y_LAYOUT: gl.constexpr = PARAMS.y_layouts[0]
    Z_LAYOUT: gl.constexpr = PARAMS.y_layouts[-1]
    x_pipe = gl.allocate_shared_memory(PRODUCT, X_SHAPE, X_LAYOUT)
    y_kept = gl.allocate_shared_memory(PRODUCT, Y_SHAPE, Y_LAYOUT)
    if len(BOXES.parts) == 2:
        z_kept = gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT)
        z = b_rest
    else:  # not read, but a role takes no None
        z_kept = y_kept
        z = b
    full = gl.allocate_shared_memory(gl.int64, [STAGES_OF_ALL, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES_OF_ALL, 1], mbarrier.MBarrierLayout())
    kept = gl.allocate_shared_memory(gl.int64, [STEPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    applied = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES_OF_ALL):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(STEPS):
        mbarrier.init(kept.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    mbarrier.init(applied, count=CONSUMERS)
    pdl_wait()
    program = gl.program_id(0)
    brought = (a, b, z, x_pipe, y_kept, z_kept, full, empty, kept)
    taken = (x_pipe, y_kept, z_kept, full, empty, kept, turns, applied, d, alpha)
    WARPS: gl.constexpr = PARAMS.warps
    REGISTERS: gl.constexpr = PARAMS.registers
    if PARAMS.pipelines == 1:
        gl.warp_specialize(
            [
                (work_kept, (taken, program, PARAMS, 0, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (work_kept, (taken, program, PARAMS, 1, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (load_kept, (brought, program, PARAMS, 0, B_FN)),
            ],
            [WARPS, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (work_kept, (taken, program, PARAMS, 0, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (work_kept, (taken, program, PARAMS, 1, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (load_kept, (brought, program, PARAMS, 0, B_FN)),
                (load_kept, (brought, program, PARAMS, 1, B_FN)),
            ],
            [WARPS, 1, 1],
            [REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS],
        )

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

from weft.gpu.common.device import side_mask
from weft.gpu.common.pdl import come_after
from weft.gpu.common.rasterization import locate
from weft.gpu.common.split_k import part_of_task, portion_start
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.tma.kernel import box_start
from weft.gpu.warp_specialized.arrival import meet_and_arrive
from weft.gpu.warp_specialized.prologue import apply
from weft.gpu.warp_specialized.roles import WARPS, WORKERS
from weft.gpu.warp_specialized.store_tile import leave

WORKER_WARPS = tl.constexpr(WARPS)
_, tma_load, _, reinterpret = gluon_names()


@gluon.jit
def bring(
    boxes, ring, slot, bar, batch_block, outer_block, k_block, BATCH: gl.constexpr, OUTER: gl.constexpr,
    K: gl.constexpr, DIMENSIONS: gl.constexpr,
):  # fmt: skip
    """Ask for one box of an operand."""
    start = ()
    for i in gl.static_range(len(DIMENSIONS)):
        start += (box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, i),)
    to = reinterpret(ring.index(slot), boxes.dtype, boxes.block_shape, boxes.layout)
    tma_load(boxes, start, bar, to)


@gluon.jit
def task_of(number, CUT: gl.constexpr, AT: gl.constexpr):
    """Which share of its sum a task is, and of which block of D, or of which of those that are taken at once."""
    return number // CUT.tasks, number % CUT.tasks * CUT.workers.abreast + AT % CUT.workers.abreast


@gluon.jit
def tasks_of(number, CUT: gl.constexpr):
    """The tasks of a program, or of a worker with a ring of its own, as a range: every so many, or those that its
    portion of all sums meets."""
    STREAM: gl.constexpr = CUT.stream
    if STREAM is None:
        return number, CUT.tasks * CUT.boxes.splits, CUT.workers.rings * CUT.boxes.programs
    else:
        end = portion_start(number + 1, STREAM)
        return portion_start(number, STREAM) // STREAM.steps, (end - 1) // STREAM.steps + 1, 1


@gluon.jit
def share_of(task, number, CUT: gl.constexpr, AT: gl.constexpr):
    """Of a task: the share of its sum, of which block of D, the share's first step, and how many they are."""
    STEPS: gl.constexpr = CUT.boxes.steps
    STREAM: gl.constexpr = CUT.stream
    share, block = task_of(task, CUT, AT)
    if STREAM is None:
        return share, block, share * STEPS, STEPS
    else:
        share, first_step, steps = part_of_task(task, number, STREAM)
        return share, block, first_step, steps


@gluon.jit
def load(number, CUT: gl.constexpr, LOADER: gl.constexpr, brought):
    """The role that fills a ring: boxes of A and B, step by step, task after task."""
    a, b, z, x_ring, y_ring, z_ring, full, empty = brought
    BOXES: gl.constexpr = CUT.boxes
    BATCH: gl.constexpr = BOXES.batch
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    A_BOX: gl.constexpr = BOXES.a_box
    B_BOX: gl.constexpr = BOXES.b_box
    FIRST: gl.constexpr = BOXES.parts[0].n
    SECOND: gl.constexpr = BOXES.parts[-1].n
    TWO: gl.constexpr = len(BOXES.parts) == 2
    ABREAST: gl.constexpr = CUT.workers.abreast
    BYTES: gl.constexpr = (M.tile + ABREAST * N.tile) * K.tile * (a.dtype.primitive_bitwidth // 8)
    BARS: gl.constexpr = CUT.rounds * CUT.stages
    position = gl.to_tensor(0)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    first_task, end_task, STRIDE = tasks_of(number, CUT)
    for task in range(first_task, end_task, STRIDE):
        _share, block, first_step, steps = share_of(task, number, CUT, 0)
        batch_block, m_block, n_block = locate(block, M.blocks, N.blocks, BOXES.group)
        for step in range(steps):
            k_block = first_step + step
            at = LOADER * CUT.stages + slot
            bar = full.index(LOADER * BARS + position % BARS)
            mbarrier.wait(empty.index(at), phase)
            mbarrier.expect(bar, BYTES)
            bring(a, x_ring, at, bar, batch_block, m_block, k_block, BATCH, M, K, A_BOX)
            for i in gl.static_range(ABREAST):
                to = i * CUT.stages + at
                bring(b, y_ring, to, bar, batch_block, n_block + i, k_block, BATCH, FIRST, K, B_BOX)
                if TWO:
                    bring(z, z_ring, to, bar, batch_block, n_block + i, k_block, BATCH, SECOND, K, B_BOX)
            slot, phase = following(slot, phase, CUT.stages)
            position += 1


@gluon.jit
def apply_ahead(
    number, CUT: gl.constexpr, APPLIER: gl.constexpr, brought, ready, B_FN: gl.constexpr, PRODUCT: gl.constexpr
):  # fmt: skip
    """The role that applies B's function to boxes of a ring, to those of every so many steps: appliers take turns.

    Barriers tell one round from the next, but not from the one after that. Where an applier does not meet a slot in
    every round, those that it does have barriers of their own.
    """
    _a, _b, _z, _x_ring, y_ring, z_ring, full, _empty = brought
    BOXES: gl.constexpr = CUT.boxes
    K: gl.constexpr = BOXES.k
    ALONG_K: gl.constexpr = BOXES.b_along_k
    MASKED: gl.constexpr = BOXES.masked
    AT_ONCE: gl.constexpr = CUT.roles.at_once
    STREAM: gl.constexpr = CUT.stream
    STRIDE: gl.constexpr = CUT.workers.rings * BOXES.programs
    RINGS: gl.constexpr = CUT.workers.rings_of_columns
    RING: gl.constexpr = APPLIER % RINGS
    FIRST: gl.constexpr = APPLIER // RINGS
    EVERY: gl.constexpr = CUT.roles.appliers // RINGS
    BARS: gl.constexpr = CUT.rounds * CUT.stages
    if STREAM is None:
        count = (CUT.tasks * BOXES.splits - number + STRIDE - 1) // STRIDE * BOXES.steps
    else:
        start = portion_start(number, STREAM)
        count = portion_start(number + 1, STREAM) - start
    for position in range(FIRST, count, EVERY):
        if STREAM is None:
            share, _ = task_of(number + position // BOXES.steps * STRIDE, CUT, 0)
            k_block = share * BOXES.steps + position % BOXES.steps
        else:
            k_block = (start + position) % STREAM.steps
        slot = CUT.own_columns[RING] + position % CUT.stages
        mbarrier.wait(full.index(CUT.own_rows[RING] * CUT.rounds + position % BARS), position // BARS & 1)
        if len(BOXES.parts) == 2:
            boxes = (y_ring.index(slot), z_ring.index(slot))
        else:
            boxes = (y_ring.index(slot),)
        apply(boxes, k_block, K, ALONG_K, MASKED, WORKER_WARPS, AT_ONCE, B_FN, PRODUCT)
        fence_async_shared()
        meet_and_arrive(ready.index(slot))


@gluon.jit
def following(slot, phase, STAGES: gl.constexpr):
    """The next slot of a ring, and the phase of its barriers: it turns with every round."""
    over = slot + 1 == STAGES
    return gl.where(over, 0, slot + 1), gl.where(over, phase ^ 1, phase)


@gluon.jit
def rows_of(x_ring, slot, CUT: gl.constexpr, SHARE: gl.constexpr):
    """A worker's rows of a box of A, as a matrix of rows and k."""
    HEIGHT: gl.constexpr = SHARE.m.tile
    if CUT.boxes.a_along_k:
        return x_ring.index(slot).slice(SHARE.row, HEIGHT, 0)
    else:
        return x_ring.index(slot).slice(SHARE.row, HEIGHT, 1).permute((1, 0))


@gluon.jit
def columns_of(y_ring, slot, CUT: gl.constexpr):
    """A box of B as a matrix of k and columns."""
    if CUT.boxes.b_along_k:
        return y_ring.index(slot).permute((1, 0))
    else:
        return y_ring.index(slot)


@gluon.jit
def prologue(
    x_ring, slot, k_block, CUT: gl.constexpr, SHARE: gl.constexpr, A_FN: gl.constexpr, PRODUCT: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """A worker's rows of a box of A in registers, the function applied. What lies past the end of k stays zero."""
    K: gl.constexpr = CUT.boxes.k
    DEPTH: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    x = A_FN(rows_of(x_ring, slot, CUT, SHARE).load(LAYOUT)).to(PRODUCT)
    if CUT.boxes.masked:
        inside = side_mask(k_block, gl.arange(0, K.tile, layout=DEPTH), K)
        x = gl.where(inside[None, :], x, gl.to_tensor(0.0).to(PRODUCT))
    return x


@gluon.jit
def moved(x, LAYOUT: gl.constexpr):
    """The same in other registers. Those that matrix instructions read must not be written before they are done, or
    the assembler runs these one at a time; and it sees through a mere copy. The grid is flat: the zero is one."""
    zero = gl.full(x.shape, gl.program_id(2).to(gl.int16), gl.int16, LAYOUT)
    return gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def multiply(x, y_ring, z_ring, slot, acc, acc_rest, CUT: gl.constexpr):
    """Begin to add the products of one step."""
    acc = warpgroup_mma(x, columns_of(y_ring, slot, CUT), acc, is_async=True)
    if len(CUT.boxes.parts) == 2:
        acc_rest = warpgroup_mma(x, columns_of(z_ring, slot, CUT), acc_rest, is_async=True)
    return acc, acc_rest


@gluon.jit
def finished(acc, acc_rest, PENDING: gl.constexpr, CUT: gl.constexpr):
    """Wait until the products of no more than `PENDING` steps are still being added."""
    if len(CUT.boxes.parts) == 2:
        acc, acc_rest = warpgroup_mma_wait(2 * PENDING, deps=(acc, acc_rest))
        return warpgroup_mma_init(acc), warpgroup_mma_init(acc_rest)
    else:
        return warpgroup_mma_init(warpgroup_mma_wait(PENDING, deps=(acc,))), acc_rest


@gluon.jit
def work(
    number, CUT: gl.constexpr, WORKER: gl.constexpr, taken, A_FN: gl.constexpr, EPILOGUE: gl.constexpr,
    PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """The role that multiplies and stores."""
    x_ring, y_ring, z_ring, ready, empty, d, staging, alpha = taken
    BOXES: gl.constexpr = CUT.boxes
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    SHARE: gl.constexpr = CUT.shares[WORKER][0]
    REST: gl.constexpr = CUT.shares[WORKER][-1]
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // CUT.product_bits
    WIDTH: gl.constexpr = min(SHARE.n.tile, CUT.roles.widest)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, WIDTH, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, REST.n.tile, DEPTH])
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // CUT.product_bits)
    ROWS_AT: gl.constexpr = CUT.own_rows[WORKER]
    COLUMNS_AT: gl.constexpr = CUT.own_columns[WORKER]
    READY_AT: gl.constexpr = COLUMNS_AT if CUT.roles.appliers > 0 else ROWS_AT
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    first_task, end_task, STRIDE = tasks_of(number, CUT)
    for task in range(first_task, end_task, STRIDE):
        # (1) Find the block of D, and the share of its sum.
        share, block, first_step, steps = share_of(task, number, CUT, WORKER)
        batch_block, m_block, n_block = locate(block, M.blocks, N.blocks, BOXES.group)

        # (2) Multiply box by box.
        acc = warpgroup_mma_init(gl.full([SHARE.m.tile, SHARE.n.tile], 0, ACCUMULATE, LAYOUT))
        acc_rest = gl.to_tensor(0)  # a role takes no None
        if TWO:
            acc_rest = warpgroup_mma_init(gl.full([REST.m.tile, REST.n.tile], 0, ACCUMULATE, LAYOUT_REST))
        mbarrier.wait(ready.index(READY_AT + slot), phase)
        if A_FN is None:
            x = rows_of(x_ring, ROWS_AT + slot, CUT, SHARE)
            acc, acc_rest = multiply(x, y_ring, z_ring, COLUMNS_AT + slot, acc, acc_rest, CUT)
            for _ in range(1, steps):
                before = slot
                slot, phase = following(slot, phase, CUT.stages)
                mbarrier.wait(ready.index(READY_AT + slot), phase)
                x = rows_of(x_ring, ROWS_AT + slot, CUT, SHARE)
                acc, acc_rest = multiply(x, y_ring, z_ring, COLUMNS_AT + slot, acc, acc_rest, CUT)
                acc, acc_rest = finished(acc, acc_rest, 1, CUT)
                mbarrier.arrive(empty.index(ROWS_AT + before))
        else:
            # (3) Functions are applied to the rows of the next step while those of this one are multiplied.
            x = prologue(x_ring, ROWS_AT + slot, first_step, CUT, SHARE, A_FN, PRODUCT, X_LAYOUT)
            for step in range(1, steps):
                acc, acc_rest = multiply(x, y_ring, z_ring, COLUMNS_AT + slot, acc, acc_rest, CUT)
                before = slot
                slot, phase = following(slot, phase, CUT.stages)
                mbarrier.wait(ready.index(READY_AT + slot), phase)
                k_block = first_step + step
                following_x = prologue(x_ring, ROWS_AT + slot, k_block, CUT, SHARE, A_FN, PRODUCT, X_LAYOUT)
                acc, acc_rest = finished(acc, acc_rest, 0, CUT)
                x = moved(following_x, X_LAYOUT)
                mbarrier.arrive(empty.index(ROWS_AT + before))
            acc, acc_rest = multiply(x, y_ring, z_ring, COLUMNS_AT + slot, acc, acc_rest, CUT)
        acc, acc_rest = finished(acc, acc_rest, 0, CUT)
        mbarrier.arrive(empty.index(ROWS_AT + slot))
        slot, phase = following(slot, phase, CUT.stages)

        # (4) Leave the share, or finish the block.
        at_staging = WORKER * CUT.workers.buffers
        to = share * BOXES.blocks + block
        leave(
            acc, d, staging, at_staging, alpha, to, batch_block, m_block, n_block, CUT, SHARE, EPILOGUE
        )  # fmt: skip
        if TWO:
            leave(
                acc_rest, d, staging, at_staging, alpha, to, batch_block, m_block, n_block, CUT, REST, EPILOGUE
            )  # fmt: skip
    tma.store_wait(0)


@tl.core.builtin
def begin(
    CUT: Any, program: Any, other: Any, worker: Any, applier: Any, loader: Any, _semantic: Any = None,
    _generator: Any = None,
) -> None:  # fmt: skip
    """Give warps their roles, as many of each as `CUT` says. Each of `worker`, `applier` and `loader` is a function and
    what it takes after the number of its part of the work, `CUT` and its own number; that of the first ring is
    `program`, of a second `other`.

    The compiler takes lists of roles only as they are spelled, hence this is no kernel's code. Nor does Triton's cache
    see it: who changes the order of roles has to clear that.
    """
    cut = CUT.value
    starts = (program, other)

    def role(what: Any, number: int, ring: int) -> tuple[Any, Any]:
        function, arguments = what
        return function, gl.tuple([starts[ring], CUT, gl.constexpr(number), *arguments])

    workers = [role(worker, number, number % cut.workers.rings) for number in range(WORKERS)]
    appliers = [role(applier, number, number % cut.workers.rings) for number in range(cut.roles.appliers)]
    loading = len(cut.roles.warps) + 1 - WORKERS - cut.roles.appliers
    loaders = [role(loader, number, number) for number in range(loading)]
    gl.warp_specialize(
        [*workers, *appliers, *loaders], list(cut.roles.warps), list(cut.roles.registers), _semantic=_semantic,
        _generator=_generator,
    )  # fmt: skip


@gluon.jit
def rings(b, b_rest, CUT: gl.constexpr, PRODUCT: gl.constexpr):
    """Shared memory for boxes: of A, and of both parts of B; and the second part of B. Where there is but one, it
    stands for the other, which is not read: a role takes no None."""
    BOXES: gl.constexpr = CUT.boxes
    M: gl.constexpr = BOXES.m.tile
    K: gl.constexpr = BOXES.k.tile
    SLOTS: gl.constexpr = CUT.workers.rings * CUT.stages
    COLUMN_SLOTS: gl.constexpr = CUT.workers.abreast * SLOTS
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    X_SHAPE: gl.constexpr = [SLOTS, M, K] if BOXES.a_along_k else [SLOTS, K, M]
    Y_SHAPE: gl.constexpr = [COLUMN_SLOTS, FIRST, K] if BOXES.b_along_k else [COLUMN_SLOTS, K, FIRST]
    Z_SHAPE: gl.constexpr = [COLUMN_SLOTS, SECOND, K] if BOXES.b_along_k else [COLUMN_SLOTS, K, SECOND]
    X_LAYOUT: gl.constexpr = CUT.x_layout
    Y_LAYOUT: gl.constexpr = CUT.y_layouts[0]
    Z_LAYOUT: gl.constexpr = CUT.y_layouts[-1]
    x_ring = gl.allocate_shared_memory(PRODUCT, X_SHAPE, X_LAYOUT)
    y_ring = gl.allocate_shared_memory(PRODUCT, Y_SHAPE, Y_LAYOUT)
    if len(BOXES.parts) == 2:
        return x_ring, y_ring, gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT), b_rest
    else:
        return x_ring, y_ring, y_ring, b


@gluon.jit(do_not_specialize=["alpha", "beta"])
def specialised_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    d,  # boxes of D, or of the shares of a split sum
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # of no use: C is not read
    pointers,  # None: functions have no operands
    CUT: gl.constexpr,  # specialised_cut.SpecialisedCut
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
    BOXES: gl.constexpr = CUT.boxes
    RINGS: gl.constexpr = CUT.workers.rings
    SLOTS: gl.constexpr = RINGS * CUT.stages
    COLUMN_SLOTS: gl.constexpr = CUT.workers.abreast * SLOTS
    x_ring, y_ring, z_ring, z = rings(b, b_rest, CUT, PRODUCT)
    D_SHAPE: gl.constexpr = CUT.d_shape
    D_LAYOUT: gl.constexpr = CUT.d_layout
    staging = gl.allocate_shared_memory(d.dtype, [2 * CUT.workers.buffers, D_SHAPE[0], D_SHAPE[1]], D_LAYOUT)
    BARS: gl.constexpr = CUT.rounds * SLOTS
    full = gl.allocate_shared_memory(gl.int64, [BARS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BARS):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(empty.index(i), count=3 - RINGS)
    ready = full
    if CUT.roles.appliers > 0:
        ready = gl.allocate_shared_memory(gl.int64, [COLUMN_SLOTS, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(COLUMN_SLOTS):
            mbarrier.init(ready.index(i), count=1)
    come_after()
    program = gl.program_id(0)
    brought = (a, b, z, x_ring, y_ring, z_ring, full, empty)
    taken = (x_ring, y_ring, z_ring, ready, empty, d, staging, alpha)
    other = program + (RINGS - 1) * BOXES.programs  # whose blocks a ring of the second worker's own is for
    begin(
        CUT, program, other, (work, (taken, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
        (apply_ahead, (brought, ready, B_FN, PRODUCT)), (load, (brought,)),
    )  # fmt: skip

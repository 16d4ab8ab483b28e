"""The kernel whose warps have roles: one or two bring boxes to shared memory, and two groups of four multiply.

A group that multiplies is a *worker*. Both work on one block of D, half of its rows each, and share every box of B; or
each takes blocks of its own from a ring of its own, and while one stores its block, or applies functions, the other
multiplies. A's function is applied by workers, in registers. B's is applied by *appliers*, two more groups of four
warps, to boxes where they lie, ahead of the workers. Nothing but barriers in shared memory connects the roles: a
slot of a ring is *full* when its boxes have come, *ready* when B's function has been applied, and *empty* when all that
read it have done so.
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
    warpgroup_mma_wait,
)

from weft.kernels.boxes_kernel import box_start
from weft.kernels.device import scalar, side_mask
from weft.kernels.following import come_after
from weft.kernels.matrix_kernel import locate
from weft.kernels.specialised_functions import apply
from weft.kernels.specialised_roles import LOADING

WORKER_WARPS = tl.constexpr(4)
LOADER_REGISTERS = tl.constexpr(LOADING)


@gluon.jit
def bring(
    boxes, ring, slot, bar, batch_block, outer_block, k_block, BATCH: gl.constexpr, OUTER: gl.constexpr,
    K: gl.constexpr, DIMENSIONS: gl.constexpr,
):  # fmt: skip
    """Ask for one box of an operand."""
    start = ()
    for i in gl.static_range(len(DIMENSIONS)):
        start += (box_start(batch_block, outer_block, k_block, BATCH, OUTER, K, DIMENSIONS, i),)
    to = ring.index(slot)._reinterpret(boxes.dtype, boxes.block_shape, boxes.layout)
    tma.async_copy_global_to_shared(boxes, start, bar, to)


@gluon.jit
def load(brought, first_task, CUT: gl.constexpr, FIRST_SLOT: gl.constexpr, STRIDE: gl.constexpr):
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
    BYTES: gl.constexpr = (M.tile + N.tile) * K.tile * (a.dtype.primitive_bitwidth // 8)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for task in range(first_task, BOXES.blocks * BOXES.splits, STRIDE):
        batch_block, m_block, n_block = locate(task % BOXES.blocks, M.blocks, N.blocks, BOXES.group)
        first_step = task // BOXES.blocks * BOXES.steps
        for step in range(BOXES.steps):
            k_block = first_step + step
            at = FIRST_SLOT + slot
            if CUT.rounds == 2:  # of the one ring there is: every second round has barriers of its own
                bar = full.index(slot + (phase ^ 1) * CUT.stages)
            else:
                bar = full.index(at)
            mbarrier.wait(empty.index(at), phase)
            mbarrier.expect(bar, BYTES)
            bring(a, x_ring, at, bar, batch_block, m_block, k_block, BATCH, M, K, A_BOX)
            bring(b, y_ring, at, bar, batch_block, n_block, k_block, BATCH, FIRST, K, B_BOX)
            if TWO:
                bring(z, z_ring, at, bar, batch_block, n_block, k_block, BATCH, SECOND, K, B_BOX)
            slot, phase = following(slot, phase, CUT.stages)


@gluon.jit
def apply_ahead(
    brought, ready, first_task, CUT: gl.constexpr, FIRST_SLOT: gl.constexpr, STRIDE: gl.constexpr,
    FIRST: gl.constexpr, EVERY: gl.constexpr, B_FN: gl.constexpr, PRODUCT: gl.constexpr,
):  # fmt: skip
    """The role that applies B's function to boxes of a ring, to every so many of them.

    Barriers tell one round from the next, but not from the one after that. Where two appliers take turns at a ring of
    an odd number of slots, each meets a slot in every second round, and those have barriers of their own.
    """
    _a, _b, _z, _x_ring, y_ring, z_ring, full, _empty = brought
    BOXES: gl.constexpr = CUT.boxes
    K: gl.constexpr = BOXES.k
    ALONG_K: gl.constexpr = BOXES.b_along_k
    MASKED: gl.constexpr = BOXES.masked
    AT_ONCE: gl.constexpr = CUT.roles.at_once
    TASKS: gl.constexpr = BOXES.blocks * BOXES.splits
    count = (TASKS - first_task + STRIDE - 1) // STRIDE * BOXES.steps
    for position in range(FIRST, count, EVERY):
        task = first_task + position // BOXES.steps * STRIDE
        k_block = task // BOXES.blocks * BOXES.steps + position % BOXES.steps
        slot = FIRST_SLOT + position % CUT.stages
        BARS: gl.constexpr = CUT.rounds * CUT.stages
        mbarrier.wait(full.index(FIRST_SLOT + position % BARS), position // BARS & 1)
        apply(y_ring.index(slot), k_block, K, ALONG_K, MASKED, WORKER_WARPS, AT_ONCE, B_FN, PRODUCT)
        if len(BOXES.parts) == 2:
            apply(z_ring.index(slot), k_block, K, ALONG_K, MASKED, WORKER_WARPS, AT_ONCE, B_FN, PRODUCT)
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(ready.index(slot))


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
def halved(pieces):
    """The left and the right half of each of some matrices."""
    ROWS: gl.constexpr = pieces[0].shape[0]
    COLUMNS: gl.constexpr = pieces[0].shape[1] // 2
    found = ()
    for i in gl.static_range(len(pieces)):
        found += gl.split(gl.permute(gl.reshape(pieces[i], (ROWS, 2, COLUMNS)), (0, 2, 1)))
    return found


@gluon.jit
def leave_piece(
    acc, d, staging, first_slot, alpha, task, batch_block, m_block, n_block, CUT: gl.constexpr, SHARE: gl.constexpr,
    AT: gl.constexpr, EPILOGUE: gl.constexpr,
):  # fmt: skip
    """Leave some columns of an accumulator as a share of a split sum, or finish them; on their way to memory they are
    nobody's concern."""
    PIECE: gl.constexpr = SHARE.pieces[AT]
    BATCH: gl.constexpr = CUT.boxes.batch
    M: gl.constexpr = PIECE.m
    N: gl.constexpr = PIECE.n
    D_BOX: gl.constexpr = CUT.d_box
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, N.tile, 256 // CUT.product_bits])
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True)
    start = ()
    if CUT.boxes.splits > 1:
        TILE_M: gl.constexpr = CUT.boxes.m.tile
        start += (task * TILE_M + PIECE.row, gl.to_tensor(PIECE.column))
    else:
        value = value * scalar(alpha, acc.dtype)
        if EPILOGUE is not None:
            value = EPILOGUE(value)
        for i in gl.static_range(len(D_BOX)):
            start += (box_start(batch_block, m_block, n_block, BATCH, M, N, D_BOX, i),)
    if CUT.buffers <= AT:  # those before wait for nothing: `leave` did
        tma.store_wait(CUT.buffers - 1)
        gl.thread_barrier()
    slot = staging.index(first_slot + AT % CUT.buffers)
    if CUT.d_along_n:
        slot.store(value.to(d.dtype))
    else:
        slot.permute((1, 0)).store(value.to(d.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(d, start, slot._reinterpret(d.dtype, d.block_shape, d.layout))


@gluon.jit
def leave(
    acc, d, staging, first_slot, alpha, task, batch_block, m_block, n_block, CUT: gl.constexpr, SHARE: gl.constexpr,
    EPILOGUE: gl.constexpr,
):  # fmt: skip
    """The same of all columns, piece by piece."""
    pieces = (warpgroup_mma_wait(0, deps=(acc,)),)
    HALVINGS: gl.constexpr = SHARE.halvings
    for _ in gl.static_range(HALVINGS):
        pieces = halved(pieces)
    tma.store_wait(0)
    gl.thread_barrier()
    for i in gl.static_range(len(pieces)):
        leave_piece(
            pieces[i], d, staging, first_slot, alpha, task, batch_block, m_block, n_block, CUT, SHARE, i, EPILOGUE
        )  # fmt: skip


@gluon.jit
def work(
    taken, first_task, CUT: gl.constexpr, WORKER: gl.constexpr, FIRST_SLOT: gl.constexpr, STRIDE: gl.constexpr,
    A_FN: gl.constexpr, EPILOGUE: gl.constexpr, PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
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
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for task in range(first_task, BOXES.blocks * BOXES.splits, STRIDE):
        # (1) Find the block of D, and the share of its sum.
        batch_block, m_block, n_block = locate(task % BOXES.blocks, M.blocks, N.blocks, BOXES.group)
        first_step = task // BOXES.blocks * BOXES.steps

        # (2) Multiply box by box.
        acc = warpgroup_mma_init(gl.full([SHARE.m.tile, SHARE.n.tile], 0, ACCUMULATE, LAYOUT))
        acc_rest = gl.to_tensor(0)  # a role takes no None
        if TWO:
            acc_rest = warpgroup_mma_init(gl.full([REST.m.tile, REST.n.tile], 0, ACCUMULATE, LAYOUT_REST))
        at = FIRST_SLOT + slot
        mbarrier.wait(ready.index(at), phase)
        if A_FN is None:
            acc, acc_rest = multiply(rows_of(x_ring, at, CUT, SHARE), y_ring, z_ring, at, acc, acc_rest, CUT)
            for _ in range(1, BOXES.steps):
                before = at
                slot, phase = following(slot, phase, CUT.stages)
                at = FIRST_SLOT + slot
                mbarrier.wait(ready.index(at), phase)
                x = rows_of(x_ring, at, CUT, SHARE)
                acc, acc_rest = multiply(x, y_ring, z_ring, at, acc, acc_rest, CUT)
                acc, acc_rest = finished(acc, acc_rest, 1, CUT)
                mbarrier.arrive(empty.index(before))
        else:
            # (3) Functions are applied to the rows of the next step while those of this one are multiplied.
            x = prologue(x_ring, at, first_step, CUT, SHARE, A_FN, PRODUCT, X_LAYOUT)
            for step in range(1, BOXES.steps):
                acc, acc_rest = multiply(x, y_ring, z_ring, at, acc, acc_rest, CUT)
                before = at
                slot, phase = following(slot, phase, CUT.stages)
                at = FIRST_SLOT + slot
                mbarrier.wait(ready.index(at), phase)
                following_x = prologue(x_ring, at, first_step + step, CUT, SHARE, A_FN, PRODUCT, X_LAYOUT)
                acc, acc_rest = finished(acc, acc_rest, 0, CUT)
                x = moved(following_x, X_LAYOUT)
                mbarrier.arrive(empty.index(before))
            acc, acc_rest = multiply(x, y_ring, z_ring, at, acc, acc_rest, CUT)
        acc, acc_rest = finished(acc, acc_rest, 0, CUT)
        mbarrier.arrive(empty.index(at))
        slot, phase = following(slot, phase, CUT.stages)

        # (4) Leave the share, or finish the block.
        at_staging = WORKER * CUT.buffers
        leave(
            acc, d, staging, at_staging, alpha, task, batch_block, m_block, n_block, CUT, SHARE, EPILOGUE
        )  # fmt: skip
        if TWO:
            leave(
                acc_rest, d, staging, at_staging, alpha, task, batch_block, m_block, n_block, CUT, REST, EPILOGUE
            )  # fmt: skip
    tma.store_wait(0)


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
    BESIDE: gl.constexpr,  # beside.Beside
):
    BOXES: gl.constexpr = CUT.boxes
    K: gl.constexpr = BOXES.k
    RINGS: gl.constexpr = 1 if CUT.together else 2
    SLOTS: gl.constexpr = RINGS * CUT.stages
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    TWO: gl.constexpr = len(BOXES.parts) == 2
    X_SHAPE: gl.constexpr = [SLOTS, BOXES.m.tile, K.tile] if BOXES.a_along_k else [SLOTS, K.tile, BOXES.m.tile]
    Y_SHAPE: gl.constexpr = [SLOTS, FIRST, K.tile] if BOXES.b_along_k else [SLOTS, K.tile, FIRST]
    Z_SHAPE: gl.constexpr = [SLOTS, SECOND, K.tile] if BOXES.b_along_k else [SLOTS, K.tile, SECOND]
    X_LAYOUT: gl.constexpr = CUT.x_layout
    Y_LAYOUT: gl.constexpr = CUT.y_layouts[0]
    Z_LAYOUT: gl.constexpr = CUT.y_layouts[-1]
    x_ring = gl.allocate_shared_memory(PRODUCT, X_SHAPE, X_LAYOUT)
    y_ring = gl.allocate_shared_memory(PRODUCT, Y_SHAPE, Y_LAYOUT)
    if TWO:
        z_ring = gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT)
        z = b_rest
    else:  # not read, but a role takes no None
        z_ring = y_ring
        z = b
    D_SHAPE: gl.constexpr = CUT.d_shape
    D_LAYOUT: gl.constexpr = CUT.d_layout
    staging = gl.allocate_shared_memory(d.dtype, [2 * CUT.buffers, D_SHAPE[0], D_SHAPE[1]], D_LAYOUT)
    BARS: gl.constexpr = CUT.rounds * SLOTS
    full = gl.allocate_shared_memory(gl.int64, [BARS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BARS):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(empty.index(i), count=3 - RINGS)
    ready = full
    if CUT.roles.appliers > 0:
        ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(SLOTS):
            mbarrier.init(ready.index(i), count=1)
    come_after()
    program = gl.program_id(0)
    STAGES: gl.constexpr = CUT.stages
    STRIDE: gl.constexpr = RINGS * BOXES.programs
    WORKING: gl.constexpr = CUT.roles.working
    APPLYING: gl.constexpr = CUT.roles.applying
    brought = (a, b, z, x_ring, y_ring, z_ring, full, empty)
    taken = (x_ring, y_ring, z_ring, ready, empty, d, staging, alpha)
    if CUT.together:
        if CUT.roles.appliers == 0:
            gl.warp_specialize(
                [
                    (work, (taken, program, CUT, 0, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (work, (taken, program, CUT, 1, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (load, (brought, program, CUT, 0, STRIDE)),
                ],
                [WORKER_WARPS, 1],
                [WORKING, LOADER_REGISTERS],
            )
        else:
            gl.warp_specialize(
                [
                    (work, (taken, program, CUT, 0, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (work, (taken, program, CUT, 1, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (apply_ahead, (brought, ready, program, CUT, 0, STRIDE, 0, 2, B_FN, PRODUCT)),
                    (apply_ahead, (brought, ready, program, CUT, 0, STRIDE, 1, 2, B_FN, PRODUCT)),
                    (load, (brought, program, CUT, 0, STRIDE)),
                ],
                [WORKER_WARPS, WORKER_WARPS, WORKER_WARPS, 1],
                [WORKING, APPLYING, APPLYING, LOADER_REGISTERS],
            )
    else:
        other = program + BOXES.programs
        if CUT.roles.appliers == 0:
            gl.warp_specialize(
                [
                    (work, (taken, program, CUT, 0, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (work, (taken, other, CUT, 1, STAGES, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (load, (brought, program, CUT, 0, STRIDE)),
                    (load, (brought, other, CUT, STAGES, STRIDE)),
                ],
                [WORKER_WARPS, 1, 1],
                [WORKING, LOADER_REGISTERS, LOADER_REGISTERS],
            )
        else:
            gl.warp_specialize(
                [
                    (work, (taken, program, CUT, 0, 0, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (work, (taken, other, CUT, 1, STAGES, STRIDE, A_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                    (apply_ahead, (brought, ready, program, CUT, 0, STRIDE, 0, 1, B_FN, PRODUCT)),
                    (apply_ahead, (brought, ready, other, CUT, STAGES, STRIDE, 0, 1, B_FN, PRODUCT)),
                    (load, (brought, program, CUT, 0, STRIDE)),
                    (load, (brought, other, CUT, STAGES, STRIDE)),
                ],
                [WORKER_WARPS, WORKER_WARPS, WORKER_WARPS, 1, 1],
                [WORKING, APPLYING, APPLYING, LOADER_REGISTERS, LOADER_REGISTERS],
            )

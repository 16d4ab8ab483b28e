"""The kernel that keeps all of B in shared memory, while rows of A pass by and leave as rows of D.

The same roles as in `specialised_kernel`: one warp or two bring boxes, two groups of four or eight warps multiply. Each
of these workers takes all columns of some rows, so that A's function is applied once to each element. Boxes of A come
in a ring for each worker; or in one, for which shared memory has room beside more of B, in the order of the blocks:
then workers take turns, and while one multiplies, the other applies the epilogue to its block and stores it. It stores
from registers, as shared memory is full. Nothing waits for a store.

Where a worker empties a slot, all of its warps are done with it: the compiler has them meet before an arrival that
follows products, as it sees these read the slot. A test of the machine code holds it to that, see `inspect.unmet`.
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

from weft.gpu.common.device import scalar, side_mask, side_offsets
from weft.gpu.common.pdl import come_after
from weft.gpu.common.rasterization import locate
from weft.gpu.warp_specialized.arrival import meet_and_arrive
from weft.gpu.warp_specialized.kernel import bring, finished, moved
from weft.gpu.warp_specialized.prologue import apply
from weft.gpu.warp_specialized.roles import LOADING
from weft.gpu.warp_specialized.store_tile import halved

WORKERS = tl.constexpr(2)
LOADER_REGISTERS = tl.constexpr(LOADING)
AT_ONCE = tl.constexpr(32)  # elements of B that each lane passes through its function at once


@gluon.jit
def load_kept(brought, program, CUT: gl.constexpr, LOADER: gl.constexpr, B_FN: gl.constexpr):
    """The role that fills a ring; the first one's also brings all boxes of B, each before the box of A that it meets.

    Where a function is applied to B, all of B comes first: workers look at no box of A before that is done, and the
    ring may have fewer slots than a task has boxes.
    """
    a, b, z, x_ring, y_kept, z_kept, full, empty, kept = brought
    BOXES: gl.constexpr = CUT.boxes
    BATCH: gl.constexpr = BOXES.batch
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    A_BOX: gl.constexpr = BOXES.a_box
    ELEMENT: gl.constexpr = a.dtype.primitive_bitwidth // 8
    first_task = program + LOADER * BOXES.programs
    if B_FN is not None and LOADER == 0:
        for step in range(BOXES.steps):
            keep(b, z, y_kept, z_kept, kept, first_task, step, CUT)
    position = gl.to_tensor(0)
    for task in range(first_task, BOXES.blocks, CUT.rings * BOXES.programs):
        batch_block, m_block, _ = locate(task, M.blocks, N.blocks, BOXES.group)
        for step in range(BOXES.steps):
            if B_FN is None and LOADER == 0:  # noqa: SIM102 (known when this is compiled)
                if task == first_task:
                    keep(b, z, y_kept, z_kept, kept, task, step, CUT)
            slot, phase = place(position, CUT, LOADER)
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(bar, M.tile * K.tile * ELEMENT)
            bring(a, x_ring, slot, bar, batch_block, m_block, step, BATCH, M, K, A_BOX)
            position += 1


@gluon.jit
def keep(b, z, y_kept, z_kept, kept, task, step, CUT: gl.constexpr):
    """Ask for the boxes of B of one step."""
    BOXES: gl.constexpr = CUT.boxes
    BATCH: gl.constexpr = BOXES.batch
    N: gl.constexpr = BOXES.n
    K: gl.constexpr = BOXES.k
    B_BOX: gl.constexpr = BOXES.b_box
    FIRST: gl.constexpr = BOXES.parts[0].n
    SECOND: gl.constexpr = BOXES.parts[-1].n
    ELEMENT: gl.constexpr = b.dtype.primitive_bitwidth // 8
    batch_block, _, n_block = locate(task, BOXES.m.blocks, N.blocks, BOXES.group)
    bar = kept.index(step)
    mbarrier.expect(bar, N.tile * K.tile * ELEMENT)
    bring(b, y_kept, step, bar, batch_block, n_block, step, BATCH, FIRST, K, B_BOX)
    if len(BOXES.parts) == 2:
        bring(z, z_kept, step, bar, batch_block, n_block, step, BATCH, SECOND, K, B_BOX)


@gluon.jit
def place(position, CUT: gl.constexpr, OWNER: gl.constexpr):
    """The slot of a box in a ring, and the phase of its barriers: it turns with every round."""
    FIRST: gl.constexpr = OWNER * CUT.stages if CUT.rings == 2 else 0
    return FIRST + position % CUT.stages, position // CUT.stages & 1


@gluon.jit
def rows_of(x_ring, slot, CUT: gl.constexpr, DEPTH: gl.constexpr):
    """The first of a box of A along k, as a matrix of rows and k."""
    if CUT.boxes.a_along_k:
        return x_ring.index(slot).slice(0, DEPTH, 1)
    else:
        return x_ring.index(slot).slice(0, DEPTH, 0).permute((1, 0))


@gluon.jit
def columns_of(y_kept, step, CUT: gl.constexpr, DEPTH: gl.constexpr):
    """The first of a box of B along k, as a matrix of k and columns."""
    if CUT.boxes.b_along_k:
        return y_kept.index(step).slice(0, DEPTH, 1).permute((1, 0))
    else:
        return y_kept.index(step).slice(0, DEPTH, 0)


@gluon.jit
def prologue(
    x_ring, slot, empty, turn, step, CUT: gl.constexpr, DEPTH: gl.constexpr, LAST: gl.constexpr, A_FN: gl.constexpr,
    PRODUCT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The first of a box of A along k in registers, the function applied. The next box may come in its place at once;
    behind the last one it is the other worker's `turn`, in a ring of both. What lies past the end of k stays zero."""
    K: gl.constexpr = CUT.boxes.k
    x = rows_of(x_ring, slot, CUT, DEPTH).load(LAYOUT)
    fence_async_shared()  # a barrier does not wait for loads that are on their way, and the next box would not either
    meet_and_arrive(empty.index(slot))
    if LAST and CUT.rings == 1:
        mbarrier.arrive(turn)
    x = A_FN(x).to(PRODUCT)
    if CUT.boxes.masked:
        inside = side_mask(step, gl.arange(0, DEPTH, layout=gl.SliceLayout(0, LAYOUT)), K)
        x = gl.where(inside[None, :], x, gl.to_tensor(0.0).to(PRODUCT))
    return x


@gluon.jit
def multiply(x, y_kept, z_kept, step, acc, acc_rest, CUT: gl.constexpr, DEPTH: gl.constexpr):
    """Begin to add the products of one step."""
    acc = warpgroup_mma(x, columns_of(y_kept, step, CUT, DEPTH), acc, is_async=True)
    if len(CUT.boxes.parts) == 2:
        acc_rest = warpgroup_mma(x, columns_of(z_kept, step, CUT, DEPTH), acc_rest, is_async=True)
    return acc, acc_rest


@gluon.jit
def apply_all(y_kept, z_kept, kept, applied, CUT: gl.constexpr, WORKER: gl.constexpr, B_FN: gl.constexpr,
              PRODUCT: gl.constexpr):  # fmt: skip
    """Apply B's function to every second step's boxes, and wait until the other worker has done the rest."""
    K: gl.constexpr = CUT.boxes.k
    ALONG_K: gl.constexpr = CUT.boxes.b_along_k
    MASKED: gl.constexpr = CUT.boxes.masked
    WARPS: gl.constexpr = CUT.warps
    for step in range(WORKER, CUT.boxes.steps, WORKERS):
        mbarrier.wait(kept.index(step), 0)
        if len(CUT.boxes.parts) == 2:
            boxes = (y_kept.index(step), z_kept.index(step))
        else:
            boxes = (y_kept.index(step),)
        apply(boxes, step, K, ALONG_K, MASKED, WARPS, AT_ONCE, B_FN, PRODUCT)
    fence_async_shared()
    meet_and_arrive(applied)
    mbarrier.wait(applied, 0)


@gluon.jit
def store(acc, d, alpha, m_block, n_block, CUT: gl.constexpr, PART: gl.constexpr, EPILOGUE: gl.constexpr):
    """Finish an accumulator and store it, piece by piece."""
    pieces = (warpgroup_mma_wait(0, deps=(acc,)),)
    HALVINGS: gl.constexpr = CUT.halvings[PART]
    for _ in gl.static_range(HALVINGS):
        pieces = halved(pieces)
    COUNT: gl.constexpr = len(CUT.pieces[PART])
    for i in gl.static_range(COUNT):
        store_piece(pieces[i], d, alpha, m_block, n_block, CUT, PART, i, EPILOGUE)


@gluon.jit
def store_piece(
    acc, d, alpha, m_block, n_block, CUT: gl.constexpr, PART: gl.constexpr, AT: gl.constexpr,
    EPILOGUE: gl.constexpr,
):  # fmt: skip
    """Finish some columns of an accumulator and store them."""
    N: gl.constexpr = CUT.pieces[PART][AT]
    M: gl.constexpr = CUT.boxes.m
    WIDE: gl.constexpr = CUT.boxes.wide[3]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CUT.warps, 1], [16, N.tile, 256 // CUT.product_bits])
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True) * scalar(alpha, acc.dtype)
    if EPILOGUE is not None:
        value = EPILOGUE(value)
    STORED: gl.constexpr = CUT.stored[PART]
    row = gl.arange(0, M.tile, layout=gl.SliceLayout(1, STORED))
    column = gl.arange(0, N.tile, layout=gl.SliceLayout(0, STORED))
    to = (d + side_offsets(m_block, row, M, 3, WIDE)[:, None]) + side_offsets(n_block, column, N, 3, WIDE)[None, :]
    mask = side_mask(m_block, row, M)[:, None] & side_mask(n_block, column, N)[None, :]
    gl.store(to, gl.convert_layout(value.to(d.dtype.element_ty), STORED), mask=mask)


@gluon.jit
def add_products(taken, position, turn, acc, acc_rest, CUT: gl.constexpr, WORKER: gl.constexpr):
    """Multiply box by box. Of the last one, only what there is along k."""
    x_ring, y_kept, z_kept, full, empty, kept, _turns, _applied, _d, _alpha = taken
    DEPTH: gl.constexpr = CUT.boxes.k.tile
    LAST: gl.constexpr = CUT.boxes.steps - 1
    for step in range(LAST):
        slot, phase = place(position + step, CUT, WORKER)
        mbarrier.wait(kept.index(step), 0)
        mbarrier.wait(full.index(slot), phase)
        x = rows_of(x_ring, slot, CUT, DEPTH)
        acc, acc_rest = multiply(x, y_kept, z_kept, step, acc, acc_rest, CUT, DEPTH)
        acc, acc_rest = finished(acc, acc_rest, 1, CUT)
        if step > 0:
            before, _ = place(position + step - 1, CUT, WORKER)
            mbarrier.arrive(empty.index(before))
    slot, phase = place(position + LAST, CUT, WORKER)
    mbarrier.wait(kept.index(LAST), 0)
    mbarrier.wait(full.index(slot), phase)
    if CUT.rings == 1:
        meet_and_arrive(turn)  # all warps have taken this turn before the other worker may give the next
    x = rows_of(x_ring, slot, CUT, CUT.tail)
    acc, acc_rest = multiply(x, y_kept, z_kept, LAST, acc, acc_rest, CUT, CUT.tail)
    acc, acc_rest = finished(acc, acc_rest, 0, CUT)
    if LAST > 0:
        before, _ = place(position + LAST - 1, CUT, WORKER)
        mbarrier.arrive(empty.index(before))
    mbarrier.arrive(empty.index(slot))
    return acc, acc_rest


@gluon.jit
def add_products_of_function(
    taken, position, turn, acc, acc_rest, CUT: gl.constexpr, WORKER: gl.constexpr, A_FN: gl.constexpr,
    PRODUCT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The same. The function is applied to the rows of the next step while those of this one are multiplied."""
    x_ring, y_kept, z_kept, full, empty, kept, _turns, _applied, _d, _alpha = taken
    DEPTH: gl.constexpr = CUT.boxes.k.tile
    LAST: gl.constexpr = CUT.boxes.steps - 1
    slot, phase = place(position, CUT, WORKER)
    mbarrier.wait(full.index(slot), phase)
    if LAST == 0:
        last_x = prologue(x_ring, slot, empty, turn, 0, CUT, CUT.tail, True, A_FN, PRODUCT, LAYOUT)
    else:
        x = prologue(x_ring, slot, empty, turn, 0, CUT, DEPTH, False, A_FN, PRODUCT, LAYOUT)
        mbarrier.wait(kept.index(0), 0)
        for step in range(1, LAST):
            acc, acc_rest = multiply(x, y_kept, z_kept, step - 1, acc, acc_rest, CUT, DEPTH)
            slot, phase = place(position + step, CUT, WORKER)
            mbarrier.wait(full.index(slot), phase)
            following_x = prologue(x_ring, slot, empty, turn, step, CUT, DEPTH, False, A_FN, PRODUCT, LAYOUT)
            acc, acc_rest = finished(acc, acc_rest, 0, CUT)
            x = moved(following_x, LAYOUT)
            mbarrier.wait(kept.index(step), 0)
        acc, acc_rest = multiply(x, y_kept, z_kept, LAST - 1, acc, acc_rest, CUT, DEPTH)
        slot, phase = place(position + LAST, CUT, WORKER)
        mbarrier.wait(full.index(slot), phase)
        following_x = prologue(x_ring, slot, empty, turn, LAST, CUT, CUT.tail, True, A_FN, PRODUCT, LAYOUT)
        acc, acc_rest = finished(acc, acc_rest, 0, CUT)
        last_x = moved(following_x, LAYOUT)
    mbarrier.wait(kept.index(LAST), 0)
    acc, acc_rest = multiply(last_x, y_kept, z_kept, LAST, acc, acc_rest, CUT, CUT.tail)
    return finished(acc, acc_rest, 0, CUT)


@gluon.jit
def work_kept(
    taken, program, CUT: gl.constexpr, WORKER: gl.constexpr, A_FN: gl.constexpr, B_FN: gl.constexpr,
    EPILOGUE: gl.constexpr, PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr,
):  # fmt: skip
    """The role that multiplies and stores.

    At a ring of both, a worker looks only when it is its turn: when the other one has seen its last box come. Barriers
    tell one round from the next, but not from the one after that.
    """
    _x_ring, y_kept, z_kept, _full, _empty, kept, turns, applied, d, alpha = taken
    BOXES: gl.constexpr = CUT.boxes
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // CUT.product_bits
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CUT.warps, 1], [16, FIRST, DEPTH])
    LAYOUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [CUT.warps, 1], [16, SECOND, DEPTH])
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 32 // CUT.product_bits)
    if B_FN is not None:
        apply_all(y_kept, z_kept, kept, applied, CUT, WORKER, B_FN, PRODUCT)
    OTHERS: gl.constexpr = BOXES.steps if CUT.rings == 1 else 0  # boxes between two blocks of a worker
    position = gl.to_tensor(WORKER * OTHERS)
    turn = turns.index(1 - WORKER)
    phase_of_turn = gl.to_tensor(1 - WORKER)
    for task in range(program + WORKER * BOXES.programs, BOXES.blocks, WORKERS * BOXES.programs):
        # (1) Find the block of D, and wait for the turn where there are turns.
        _, m_block, n_block = locate(task, M.blocks, N.blocks, BOXES.group)
        acc = warpgroup_mma_init(gl.full([M.tile, FIRST], 0, ACCUMULATE, LAYOUT))
        acc_rest = gl.to_tensor(0)  # a role takes no None
        if TWO:
            acc_rest = warpgroup_mma_init(gl.full([M.tile, SECOND], 0, ACCUMULATE, LAYOUT_REST))
        if CUT.rings == 1:
            mbarrier.wait(turns.index(WORKER), phase_of_turn)
            phase_of_turn ^= 1

        # (2) Multiply.
        if A_FN is None:
            acc, acc_rest = add_products(taken, position, turn, acc, acc_rest, CUT, WORKER)
        else:
            acc, acc_rest = add_products_of_function(
                taken, position, turn, acc, acc_rest, CUT, WORKER, A_FN, PRODUCT, X_LAYOUT
            )  # fmt: skip
        position += BOXES.steps + OTHERS

        # (3) Finish the block.
        store(acc, d, alpha, m_block, n_block, CUT, 0, EPILOGUE)
        if TWO:
            store(acc_rest, d, alpha, m_block, n_block, CUT, 1, EPILOGUE)


@gluon.jit(do_not_specialize=["alpha", "beta"])
def kept_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,  # of no use: C is not read
    pointers,  # None: functions have no operands
    CUT: gl.constexpr,  # specialised_kept.KeptCut
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
    K: gl.constexpr = BOXES.k
    FIRST: gl.constexpr = BOXES.parts[0].n.tile
    SECOND: gl.constexpr = BOXES.parts[-1].n.tile
    SLOTS: gl.constexpr = CUT.rings * CUT.stages
    STEPS: gl.constexpr = BOXES.steps
    X_SHAPE: gl.constexpr = [SLOTS, BOXES.m.tile, K.tile] if BOXES.a_along_k else [SLOTS, K.tile, BOXES.m.tile]
    Y_SHAPE: gl.constexpr = [STEPS, FIRST, K.tile] if BOXES.b_along_k else [STEPS, K.tile, FIRST]
    Z_SHAPE: gl.constexpr = [STEPS, SECOND, K.tile] if BOXES.b_along_k else [STEPS, K.tile, SECOND]
    X_LAYOUT: gl.constexpr = CUT.x_layout
    Y_LAYOUT: gl.constexpr = CUT.y_layouts[0]
    Z_LAYOUT: gl.constexpr = CUT.y_layouts[-1]
    x_ring = gl.allocate_shared_memory(PRODUCT, X_SHAPE, X_LAYOUT)
    y_kept = gl.allocate_shared_memory(PRODUCT, Y_SHAPE, Y_LAYOUT)
    if len(BOXES.parts) == 2:
        z_kept = gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT)
        z = b_rest
    else:  # not read, but a role takes no None
        z_kept = y_kept
        z = b
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    kept = gl.allocate_shared_memory(gl.int64, [STEPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    applied = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(STEPS):
        mbarrier.init(kept.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    mbarrier.init(applied, count=WORKERS)
    come_after()
    program = gl.program_id(0)
    brought = (a, b, z, x_ring, y_kept, z_kept, full, empty, kept)
    taken = (x_ring, y_kept, z_kept, full, empty, kept, turns, applied, d, alpha)
    WARPS: gl.constexpr = CUT.warps
    REGISTERS: gl.constexpr = CUT.registers
    if CUT.rings == 1:
        gl.warp_specialize(
            [
                (work_kept, (taken, program, CUT, 0, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (work_kept, (taken, program, CUT, 1, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (load_kept, (brought, program, CUT, 0, B_FN)),
            ],
            [WARPS, 1],
            [REGISTERS, LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (work_kept, (taken, program, CUT, 0, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (work_kept, (taken, program, CUT, 1, A_FN, B_FN, EPILOGUE, PRODUCT, ACCUMULATE)),
                (load_kept, (brought, program, CUT, 0, B_FN)),
                (load_kept, (brought, program, CUT, 1, B_FN)),
            ],
            [WARPS, 1, 1],
            [REGISTERS, LOADER_REGISTERS, LOADER_REGISTERS],
        )

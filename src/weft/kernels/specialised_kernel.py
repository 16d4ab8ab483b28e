"""The kernel whose warps have roles: one or two bring boxes to shared memory, and two groups of four multiply.

A group that multiplies is a *worker*. Both work on one block of D, half of its rows each, and share every box of B; or
each takes blocks of its own from a ring of its own, and while one stores its block, or applies functions, the other
multiplies. Nothing but barriers in shared memory connects the roles: a slot of a ring is *full* when its boxes have
come, and *empty* when all that read it have done so.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from weft.kernels.boxes_kernel import box_start
from weft.kernels.device import batch_offset, finish, side_mask, side_offsets
from weft.kernels.matrix_kernel import locate

WORKER_WARPS = tl.constexpr(4)
WORKER_REGISTERS = tl.constexpr(240)
LOADER_REGISTERS = tl.constexpr(24)


@triton.jit
def share_offsets(place, SHARE: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a worker's share of a block: (batch block, m block, n block, rows, columns)."""
    batch_block, m_block, n_block, rows, columns = place
    M: tl.constexpr = SHARE.m
    N: tl.constexpr = SHARE.n
    BATCH: tl.constexpr = SHARE.batch
    WIDE: tl.constexpr = SHARE.wide[TENSOR]
    offsets = batch_offset(batch_block, BATCH, TENSOR, WIDE)
    if M.present[TENSOR]:
        offsets = offsets + side_offsets(m_block, rows, M, TENSOR, WIDE)[:, None]
    if N.present[TENSOR]:
        offsets = offsets + side_offsets(n_block, columns, N, TENSOR, WIDE)[None, :]
    return offsets


@triton.jit
def share_mask(place, SHARE: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = SHARE.m
    N: tl.constexpr = SHARE.n
    if M.present[TENSOR] and N.present[TENSOR]:
        return side_mask(place[1], place[3], M)[:, None] & side_mask(place[2], place[4], N)[None, :]
    elif M.present[TENSOR]:
        return side_mask(place[1], place[3], M)[:, None]
    elif N.present[TENSOR]:
        return side_mask(place[2], place[4], N)[None, :]
    else:
        return place[0] >= 0


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
def load(
    a, b, b_rest, x_ring, y_ring, z_ring, full, empty, first_task, CUT: gl.constexpr, FIRST_SLOT: gl.constexpr,
    STRIDE: gl.constexpr,
):  # fmt: skip
    """The role that fills a ring: boxes of A and B, step by step, task after task."""
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
            bar = full.index(at)
            mbarrier.wait(empty.index(at), phase)
            mbarrier.expect(bar, BYTES)
            bring(a, x_ring, at, bar, batch_block, m_block, k_block, BATCH, M, K, A_BOX)
            bring(b, y_ring, at, bar, batch_block, n_block, k_block, BATCH, FIRST, K, B_BOX)
            if TWO:
                bring(b_rest, z_ring, at, bar, batch_block, n_block, k_block, BATCH, SECOND, K, B_BOX)
            slot, phase = following(slot, phase, CUT.stages)


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
def late():
    """Zero, as no compiler knows before: offsets that are the same for every task are computed anew for each, rather
    than kept in registers that the accumulators need."""
    zero = gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    return gl.multiple_of(zero, 16)


@gluon.jit
def leave_piece(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT: gl.constexpr,
    SHARE: gl.constexpr, AT: gl.constexpr, LAYOUT: gl.constexpr, C_FN: gl.constexpr, EPILOGUE: gl.constexpr,
    RESULT: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """Leave some columns of an accumulator as a share of a split sum, or finish them."""
    PIECE: gl.constexpr = SHARE.pieces[AT]
    rows = gl.arange(0, PIECE.m.tile, layout=gl.SliceLayout(1, LAYOUT))
    columns = late() + gl.arange(0, PIECE.n.tile, layout=gl.SliceLayout(0, LAYOUT))
    if CUT.boxes.splits > 1:
        M: gl.constexpr = CUT.boxes.m
        N: gl.constexpr = CUT.boxes.n
        base = task.to(gl.int64) * (M.tile * N.tile)
        within = (PIECE.row + rows)[:, None] * N.tile + (PIECE.column + columns)[None, :]
        gl.store(parts + base + within, acc)
    else:
        place = (batch_block, m_block, n_block, rows, columns)
        finish(
            acc, c, d, pointers, alpha, beta, place, PIECE, share_offsets, share_mask, C_FN, EPILOGUE, None, RESULT,
            BESIDE,
        )  # fmt: skip


@gluon.jit
def halved(pieces, LAYOUT: gl.constexpr):
    """The left and the right half of each of some matrices."""
    ROWS: gl.constexpr = pieces[0].shape[0]
    COLUMNS: gl.constexpr = pieces[0].shape[1] // 2
    found = ()
    for i in gl.static_range(len(pieces)):
        left, right = gl.split(gl.permute(gl.reshape(pieces[i], (ROWS, 2, COLUMNS)), (0, 2, 1)))
        found += (gl.convert_layout(left, LAYOUT, assert_trivial=True),)
        found += (gl.convert_layout(right, LAYOUT, assert_trivial=True),)
    return found


@gluon.jit
def leave(
    acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT: gl.constexpr,
    SHARE: gl.constexpr, C_FN: gl.constexpr, EPILOGUE: gl.constexpr, RESULT: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """The same of all columns, piece by piece: addresses of all at once would not fit in registers."""
    COUNT: gl.constexpr = len(SHARE.pieces)
    DEPTH: gl.constexpr = 256 // CUT.product_bits
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, SHARE.n.tile // COUNT, DEPTH])
    pieces = (warpgroup_mma_wait(0, deps=(acc,)),)
    if COUNT >= 2:
        HALF: gl.constexpr = gl.NVMMADistributedLayout(
            [3, 0], [WORKER_WARPS, 1], [16, SHARE.n.tile // 2, DEPTH]
        )
        pieces = halved(pieces, HALF)
    if COUNT == 4:
        pieces = halved(pieces, LAYOUT)
    for i in gl.static_range(COUNT):
        leave_piece(
            pieces[i], c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, SHARE, i,
            LAYOUT, C_FN, EPILOGUE, RESULT, BESIDE,
        )  # fmt: skip


@gluon.jit
def work(
    x_ring, y_ring, z_ring, full, empty, c, d, parts, pointers, alpha, beta, first_task, CUT: gl.constexpr,
    WORKER: gl.constexpr, FIRST_SLOT: gl.constexpr, STRIDE: gl.constexpr, A_FN: gl.constexpr, C_FN: gl.constexpr,
    EPILOGUE: gl.constexpr, PRODUCT: gl.constexpr, ACCUMULATE: gl.constexpr, RESULT: gl.constexpr,
    BESIDE: gl.constexpr,
):  # fmt: skip
    """The role that multiplies and stores."""
    BOXES: gl.constexpr = CUT.boxes
    M: gl.constexpr = BOXES.m
    N: gl.constexpr = BOXES.n
    SHARE: gl.constexpr = CUT.shares[WORKER][0]
    REST: gl.constexpr = CUT.shares[WORKER][-1]
    TWO: gl.constexpr = len(BOXES.parts) == 2
    DEPTH: gl.constexpr = 256 // CUT.product_bits
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, SHARE.n.tile, DEPTH])
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
        mbarrier.wait(full.index(at), phase)
        if A_FN is None:
            acc, acc_rest = multiply(rows_of(x_ring, at, CUT, SHARE), y_ring, z_ring, at, acc, acc_rest, CUT)
            for _ in range(1, BOXES.steps):
                before = at
                slot, phase = following(slot, phase, CUT.stages)
                at = FIRST_SLOT + slot
                mbarrier.wait(full.index(at), phase)
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
                mbarrier.wait(full.index(at), phase)
                following_x = prologue(x_ring, at, first_step + step, CUT, SHARE, A_FN, PRODUCT, X_LAYOUT)
                acc, acc_rest = finished(acc, acc_rest, 0, CUT)
                x = moved(following_x, X_LAYOUT)
                mbarrier.arrive(empty.index(before))
            acc, acc_rest = multiply(x, y_ring, z_ring, at, acc, acc_rest, CUT)
        acc, acc_rest = finished(acc, acc_rest, 0, CUT)
        mbarrier.arrive(empty.index(at))
        slot, phase = following(slot, phase, CUT.stages)

        # (4) Leave the share, or finish the block.
        leave(
            acc, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT, SHARE,
            C_FN, EPILOGUE, RESULT, BESIDE,
        )  # fmt: skip
        if TWO:
            leave(
                acc_rest, c, d, parts, pointers, alpha, beta, task, batch_block, m_block, n_block, CUT,
                REST, C_FN, EPILOGUE, RESULT, BESIDE,
            )  # fmt: skip


@gluon.jit(do_not_specialize=["alpha", "beta"])
def specialised_kernel(
    a,  # boxes of (M, K), or of (K, M)
    b,  # boxes of (N, K), or of (K, N), for the first part of N
    b_rest,  # the same for the second; None where there is but one
    c,  # None where nothing is added, or the sum is split
    d,  # None where the sum is split
    parts,  # shares of split sums; None where they are whole
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
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
    z_ring = None
    if TWO:
        z_ring = gl.allocate_shared_memory(PRODUCT, Z_SHAPE, Z_LAYOUT)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=3 - RINGS)
    program = gl.program_id(0)
    STRIDE: gl.constexpr = BOXES.programs
    STAGES: gl.constexpr = CUT.stages
    NONE: gl.constexpr = None  # a role takes no plain None
    if CUT.together:
        gl.warp_specialize(
            [
                (
                    work,
                    (
                        x_ring, y_ring, z_ring if TWO else NONE, full, empty, NONE if c is None else c,
                        NONE if d is None else d, NONE if parts is None else parts,
                        NONE if pointers is None else pointers, alpha, beta, program, CUT, 0, 0, STRIDE, A_FN, C_FN,
                        EPILOGUE, PRODUCT, ACCUMULATE, RESULT, BESIDE,
                    ),
                ),
                (
                    work,
                    (
                        x_ring, y_ring, z_ring if TWO else NONE, full, empty, NONE if c is None else c,
                        NONE if d is None else d, NONE if parts is None else parts,
                        NONE if pointers is None else pointers, alpha, beta, program, CUT, 1, 0, STRIDE, A_FN, C_FN,
                        EPILOGUE, PRODUCT, ACCUMULATE, RESULT, BESIDE,
                    ),
                ),
                (
                    load,
                    (
                        a, b, b_rest if TWO else NONE, x_ring, y_ring, z_ring if TWO else NONE, full, empty, program, CUT,
                        0, STRIDE,
                    ),
                ),
            ],
            [WORKER_WARPS, 1],
            [WORKER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip
    else:
        other = program + STRIDE
        gl.warp_specialize(
            [
                (
                    work,
                    (
                        x_ring, y_ring, z_ring if TWO else NONE, full, empty, NONE if c is None else c,
                        NONE if d is None else d, NONE if parts is None else parts,
                        NONE if pointers is None else pointers, alpha, beta, program, CUT, 0, 0, 2 * STRIDE, A_FN, C_FN,
                        EPILOGUE, PRODUCT, ACCUMULATE, RESULT, BESIDE,
                    ),
                ),
                (
                    work,
                    (
                        x_ring, y_ring, z_ring if TWO else NONE, full, empty, NONE if c is None else c,
                        NONE if d is None else d, NONE if parts is None else parts,
                        NONE if pointers is None else pointers, alpha, beta, other, CUT, 1, STAGES, 2 * STRIDE, A_FN, C_FN,
                        EPILOGUE, PRODUCT, ACCUMULATE, RESULT, BESIDE,
                    ),
                ),
                (
                    load,
                    (
                        a, b, b_rest if TWO else NONE, x_ring, y_ring, z_ring if TWO else NONE, full, empty, program, CUT,
                        0, 2 * STRIDE,
                    ),
                ),
                (
                    load,
                    (
                        a, b, b_rest if TWO else NONE, x_ring, y_ring, z_ring if TWO else NONE, full, empty, other, CUT,
                        STAGES, 2 * STRIDE,
                    ),
                ),
            ],
            [WORKER_WARPS, 1, 1],
            [WORKER_REGISTERS, LOADER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip

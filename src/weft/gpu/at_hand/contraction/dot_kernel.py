"""The kernel at hand on matrix units (or `tl.dot`'s own loops for float32 and the like), for any extents.

Rows and columns of an output tile are one axis each, or two where an operand and D run along different modes. Where
nothing is known of runs, the tile of an operand is loaded in the order in which neighbouring lanes meet neighbours in
memory, and transposed on its way to the matrix units. There is a kernel for each order: chosen in a branch within the
loop, both orders together kept every tile in the registers of a dot operand across the branch, 1.6 KB of them spilled.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.at_hand.device import axis_extent, axis_offset, block_of, spread_mask, spread_offsets
from weft.gpu.common.device import finish, gathered, gathered_step, load_or_zero
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.common.tiles import converted


@triton.jit
def side_index(start, lane, SIDE: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of one side of the tile, whose axes are flattened, the last one fastest."""
    if len(SIDE) == 1:
        return start[0] + lane
    elif I == 0:
        return start[0] + lane // SIDE[1].tile
    else:
        return start[1] + lane % SIDE[1].tile


@triton.jit
def lane_offset(
    starts, lane, numbers, SIDE: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets along axis `I` of one side."""
    AXIS: tl.constexpr = SIDE[I]
    return axis_offset(side_index(starts, lane, SIDE, I), numbers, AXIS, TENSOR, WIDE)


@triton.jit
def lane_inside(starts, lane, numbers, SIDE: tl.constexpr, I: tl.constexpr):
    """Which indices along axis `I` of one side exist."""
    AXIS: tl.constexpr = SIDE[I]
    return side_index(starts, lane, SIDE, I) < axis_extent(numbers, AXIS)


@triton.jit
def side_offsets(starts, lane, numbers, SIDE: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in a tensor of the lanes of one side, (m) or (n) or (k)."""
    offset = lane.to(tl.int64) * 0 if WIDE else lane * 0
    for i in tl.static_range(len(SIDE)):
        if SIDE[i].present[TENSOR]:
            offset = offset + lane_offset(starts, lane, numbers, SIDE, i, TENSOR, WIDE)
    return offset


@triton.jit
def side_mask(starts, lane, numbers, SIDE: tl.constexpr):
    """Which of them exist."""
    mask = lane >= 0
    for i in tl.static_range(len(SIDE)):
        mask &= lane_inside(starts, lane, numbers, SIDE, i)
    return mask


@triton.jit
def operand_offsets(
    place, OWN: tl.constexpr, OWN_AT: tl.constexpr, PARAMS: tl.constexpr, TENSOR: tl.constexpr, ROWS: tl.constexpr
):
    """Offsets in a tensor of a tile of an operand, at (outer, m, n, k): (own side, k), or (k, own side) where `ROWS`
    is false. `OWN` are the axes of its own side, `OWN_AT` where that stands in the place."""
    OUTER: tl.constexpr = PARAMS.outer
    K: tl.constexpr = PARAMS.k_side
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    numbers = place[4]
    offsets = place[0].to(tl.int64) * 0 if WIDE else place[0] * 0
    if OUTER.present[TENSOR]:
        offsets = axis_offset(place[0], numbers, OUTER, TENSOR, WIDE)
    if PARAMS.present[OWN_AT][TENSOR]:
        own = side_offsets(place[OWN_AT], tl.arange(0, PARAMS.tile[OWN_AT - 1]), numbers, OWN, TENSOR, WIDE)
        offsets = offsets + (own[:, None] if ROWS else own[None, :])
    if PARAMS.present[3][TENSOR]:
        depth = side_offsets(place[3], tl.arange(0, PARAMS.k.tile), numbers, K, TENSOR, WIDE)
        offsets = offsets + (depth[None, :] if ROWS else depth[:, None])
    return offsets


@triton.jit
def operand_mask(
    place, OWN: tl.constexpr, OWN_AT: tl.constexpr, PARAMS: tl.constexpr, TENSOR: tl.constexpr, ROWS: tl.constexpr
):
    """Which of them exist."""
    K: tl.constexpr = PARAMS.k_side
    numbers = place[4]
    mask = place[0] >= 0
    if PARAMS.present[OWN_AT][TENSOR]:
        own = side_mask(place[OWN_AT], tl.arange(0, PARAMS.tile[OWN_AT - 1]), numbers, OWN)
        mask = mask & (own[:, None] if ROWS else own[None, :])
    if PARAMS.present[3][TENSOR]:
        depth = side_mask(place[3], tl.arange(0, PARAMS.k.tile), numbers, K)
        mask = mask & (depth[None, :] if ROWS else depth[:, None])
    return mask


@triton.jit
def a_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of A, (m, k)."""
    OWN: tl.constexpr = PARAMS.m
    return operand_offsets(place, OWN, 1, PARAMS, TENSOR, True)


@triton.jit
def a_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    OWN: tl.constexpr = PARAMS.m
    return operand_mask(place, OWN, 1, PARAMS, TENSOR, True)


@triton.jit
def b_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, (k, n)."""
    OWN: tl.constexpr = PARAMS.n
    return operand_offsets(place, OWN, 2, PARAMS, TENSOR, False)


@triton.jit
def b_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    OWN: tl.constexpr = PARAMS.n
    return operand_mask(place, OWN, 2, PARAMS, TENSOR, False)


@triton.jit
def d_starts(place):
    """First indices along the axes of D's tile, in the order of `PARAMS.axes`."""
    return (place[0],) + place[1] + place[2]


@triton.jit
def d_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of an output tile, every axis a dimension of its own."""
    AXES: tl.constexpr = PARAMS.axes
    RANK: tl.constexpr = len(PARAMS.stored)
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return spread_offsets(d_starts(place), place[4], AXES, TENSOR, RANK, WIDE)


@triton.jit
def d_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    AXES: tl.constexpr = PARAMS.axes
    RANK: tl.constexpr = len(PARAMS.stored)
    return spread_mask(d_starts(place), place[4], AXES, TENSOR, RANK)


@triton.jit
def load_a(a, place, PARAMS: tl.constexpr):
    """A tile of A, (m, k)."""
    if not PARAMS.transposed[0]:
        return load_or_zero(a + a_offsets(place, PARAMS, 0), a_mask(place, PARAMS, 0))
    else:
        OWN: tl.constexpr = PARAMS.m
        offsets = operand_offsets(place, OWN, 1, PARAMS, 0, False)
        return tl.trans(load_or_zero(a + offsets, operand_mask(place, OWN, 1, PARAMS, 0, False)))


@triton.jit
def load_b(b, place, PARAMS: tl.constexpr):
    """A tile of B, (k, n)."""
    if not PARAMS.transposed[1]:
        return load_or_zero(b + b_offsets(place, PARAMS, 1), b_mask(place, PARAMS, 1))
    else:
        OWN: tl.constexpr = PARAMS.n
        offsets = operand_offsets(place, OWN, 2, PARAMS, 1, True)
        return tl.trans(load_or_zero(b + offsets, operand_mask(place, OWN, 2, PARAMS, 1, True)))


@triton.jit
def factor(
    x, known, pointers, place, ENTRIES: tl.constexpr, PARAMS: tl.constexpr, FN: tl.constexpr, PRODUCT: tl.constexpr,
    ROWS: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """What is multiplied of a tile of an operand: its function applied in the product type, nothing past the end of k.

    `ROWS`: its rows run along m, else its columns along n.
    """
    x = converted(x, PRODUCT)
    if FN is not None:
        K: tl.constexpr = PARAMS.k
        x = FN(x, *gathered_step(known, pointers, place, ENTRIES, K, PARAMS, OFFSETS, MASK)).to(PRODUCT)
        SIDE: tl.constexpr = PARAMS.k_side
        inside = side_mask(place[3], tl.arange(0, PARAMS.k.tile), place[4], SIDE)
        x = tl.where(inside[None, :] if ROWS else inside[:, None], x, 0)
    return x


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def dot_kernel(
    a,
    b,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    numbers,  # extents, strides and all that follows from them, see `axes` and `params`
    PARAMS: tl.constexpr,  # DotParams
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    AUX: tl.constexpr,  # AuxParams
):
    """D = epilogue(alpha * sum over k of a_fn(A) * b_fn(B) + beta * c_fn(C)), one output tile for each program."""
    pdl_begin()
    AXES: tl.constexpr = PARAMS.axes
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    AUX_A: tl.constexpr = AUX.a
    AUX_B: tl.constexpr = AUX.b

    # (1) Find this program's output tile and its part of the sum.
    left = tl.program_id(0)
    n_starts = ()
    for i in tl.static_range(len(N)):
        left, block = block_of(left, numbers, N, len(N) - 1 - i)
        n_starts = (block * N[len(N) - 1 - i].tile,) + n_starts  # noqa: RUF005  Triton unpacks nothing
    m_starts = ()
    for i in tl.static_range(len(M)):
        left, block = block_of(left, numbers, M, len(M) - 1 - i)
        m_starts = (block * M[len(M) - 1 - i].tile,) + m_starts  # noqa: RUF005
    split, outer = block_of(left, numbers, AXES, 0)
    first_step = split * numbers[0]
    last_step = tl.minimum(first_step + numbers[0], numbers[1])
    tile = (outer, m_starts, n_starts, (0,), numbers)

    TILE: tl.constexpr = PARAMS.tile
    STORED: tl.constexpr = PARAMS.stored
    acc = tl.zeros(TILE, dtype=ACCUMULATE)
    known_a = gathered(pointers, tile, AUX_A, PARAMS, a_offsets, a_mask)
    known_b = gathered(pointers, tile, AUX_B, PARAMS, b_offsets, b_mask)
    for step in range(first_step, last_step):
        place = (outer, m_starts, n_starts, (step * K.tile,), numbers)
        # (2.1) Load tiles of A and B, and apply their functions.
        x = factor(load_a(a, place, PARAMS), known_a, pointers, place, AUX_A, PARAMS, A_FN, PRODUCT, True,
                   a_offsets, a_mask)  # fmt: skip
        y = factor(load_b(b, place, PARAMS), known_b, pointers, place, AUX_B, PARAMS, B_FN, PRODUCT, False,
                   b_offsets, b_mask)  # fmt: skip
        # (2.2) Multiply and accumulate.
        if PARAMS.widen:
            x = x.to(ACCUMULATE)
            y = y.to(ACCUMULATE)
        acc = tl.dot(x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=K.tile, out_dtype=ACCUMULATE)

    # (3) Apply C and the epilogue, store; a part of a sum goes to its workspace.
    d += split.to(tl.int64) * numbers[2] * PARAMS.axes[0].runs[3].divisor
    finish(
        tl.reshape(acc, STORED), (c, d, pointers), (alpha, beta), tile, PARAMS, d_offsets, d_mask,
        (C_FN, EPILOGUE, None), RESULT, AUX,
    )  # fmt: skip

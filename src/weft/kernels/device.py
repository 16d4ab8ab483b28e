"""What the kernels share: from block numbers and lanes to offsets and masks. Device code, inlined everywhere."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def axis_start(block, SIDE: tl.constexpr, I: tl.constexpr):
    """First index along axis `I` of the block that has number `block` on its side."""
    AXIS: tl.constexpr = SIDE.axes[I]
    return (block // AXIS.pitch) % AXIS.blocks * AXIS.tile


@triton.jit
def lane_index(block, lane, SIDE: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of the lanes of a flattened tile side."""
    AXIS: tl.constexpr = SIDE.axes[I]
    return axis_start(block, SIDE, I) + lane // AXIS.inner % AXIS.tile


@triton.jit
def spread_index(block, SIDE: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of a tile, as a vector."""
    AXIS: tl.constexpr = SIDE.axes[I]
    return axis_start(block, SIDE, I) + tl.arange(0, AXIS.tile)


@triton.jit
def axis_offset(index, SIDE: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset of a flattened index along axis `I`: its mixed-radix digits, innermost first, times the strides."""
    AXIS: tl.constexpr = SIDE.axes[I]
    rest = index.to(tl.int64) if WIDE else index
    offset = rest * 0
    for i in tl.static_range(len(AXIS.extents)):
        if i + 1 < len(AXIS.extents):
            offset += rest % AXIS.extents[i] * AXIS.strides[TENSOR][i]
            rest = rest // AXIS.extents[i]
        else:
            offset += rest * AXIS.strides[TENSOR][i]
    return offset


@triton.jit
def in_runs(offset, LENGTH: tl.constexpr, DIVISOR: tl.constexpr):
    """State what the division by extents hides from the compiler: see `geometry.Run`."""
    return tl.max_contiguous(tl.multiple_of(offset, DIVISOR), LENGTH)


@triton.jit
def lane_offsets(block, lane, SIDE: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in one tensor of some lanes of a flattened tile side."""
    offset = lane * 0
    for i in tl.static_range(len(SIDE.axes)):
        offset += axis_offset(lane_index(block, lane, SIDE, i), SIDE, i, TENSOR, WIDE)
    return offset


@triton.jit
def side_offsets(block, lane, SIDE: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in one tensor of all lanes of a flattened tile side, their contiguity stated to the compiler."""
    RUN: tl.constexpr = SIDE.runs[TENSOR]
    return in_runs(lane_offsets(block, lane, SIDE, TENSOR, WIDE), RUN.length, RUN.divisor)


@triton.jit
def batch_offset(block, SIDE: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset in one tensor of a block of single indices: a scalar."""
    offset = block * 0
    for i in tl.static_range(len(SIDE.axes)):
        offset += axis_offset(axis_start(block, SIDE, i), SIDE, i, TENSOR, WIDE)
    return offset


@triton.jit
def side_mask(block, lane, SIDE: tl.constexpr):
    """Which lanes of a flattened tile side lie inside every axis."""
    mask = lane >= 0
    for i in tl.static_range(len(SIDE.axes)):
        if not SIDE.axes[i].exact:
            mask &= lane_index(block, lane, SIDE, i) < SIDE.axes[i].extent
    return mask


@triton.jit
def along(vector, PLACE: tl.constexpr, RANK: tl.constexpr):
    """A vector as dimension `PLACE` of a tensor of `RANK` dimensions."""
    for dimension in tl.static_range(RANK):
        if dimension != PLACE:
            vector = tl.expand_dims(vector, dimension)
    return vector


@triton.jit
def spread_axis(
    block, SIDE: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets along axis `I`, as its dimension of the tile."""
    AXIS: tl.constexpr = SIDE.axes[I]
    RUN: tl.constexpr = AXIS.runs[TENSOR]
    offset = axis_offset(spread_index(block, SIDE, I), SIDE, I, TENSOR, WIDE)
    return along(in_runs(offset, RUN.length, RUN.divisor), AXIS.place, RANK)


@triton.jit
def spread_offsets(block, SIDE: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Like `side_offsets`, every axis of the tile as a dimension of its own: 1 long where the tensor has it not."""
    offset = block * 0
    for i in tl.static_range(len(SIDE.axes)):
        if SIDE.axes[i].place < 0:
            offset = offset + axis_offset(axis_start(block, SIDE, i), SIDE, i, TENSOR, WIDE)
        elif SIDE.axes[i].present[TENSOR]:
            offset = offset + spread_axis(block, SIDE, i, TENSOR, RANK, WIDE)
    return offset


@triton.jit
def inside(block, SIDE: tl.constexpr, I: tl.constexpr, RANK: tl.constexpr):
    """Which indices along axis `I` exist, as its dimension of the tile."""
    AXIS: tl.constexpr = SIDE.axes[I]
    return along(spread_index(block, SIDE, I) < AXIS.extent, AXIS.place, RANK)


@triton.jit
def spread_mask(block, SIDE: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr):
    """Like `side_mask`, every axis of the tile as a dimension of its own, for the axes that a tensor has (4: all)."""
    mask = block >= 0
    for i in tl.static_range(len(SIDE.axes)):
        if SIDE.axes[i].place >= 0 and not SIDE.axes[i].exact and SIDE.axes[i].present[TENSOR]:
            mask = mask & inside(block, SIDE, i, RANK)
    return mask


@triton.jit
def load_tile(pointers, row_mask, column_mask, ROWS_EXACT: tl.constexpr, COLUMNS_EXACT: tl.constexpr):
    """A tile by pointers, zero outside the masks; no mask where the tiles end with the extents."""
    if ROWS_EXACT and COLUMNS_EXACT:
        return tl.load(pointers)
    elif ROWS_EXACT:
        return tl.load(pointers, mask=column_mask[None, :], other=0)
    elif COLUMNS_EXACT:
        return tl.load(pointers, mask=row_mask[:, None], other=0)
    else:
        return tl.load(pointers, mask=row_mask[:, None] & column_mask[None, :], other=0)


@triton.jit
def scalar(bits, DTYPE: tl.constexpr):
    """`alpha` or `beta` from the 64 bits it travels in: of a double for real types, of an integer for the others."""
    bits = bits.to(tl.int64)  # the interpreter makes small numbers narrower, whatever the parameter says
    if DTYPE.is_floating():
        return bits.to(tl.float64, bitcast=True).to(DTYPE)
    else:
        return bits.to(DTYPE)


@triton.jit
def finish(acc, c, alpha, beta, offsets_c, mask, C_FN: tl.constexpr, EPILOGUE: tl.constexpr, DTYPE: tl.constexpr):
    """`epilogue(alpha * acc + beta * c_fn(C))` in the accumulator's type, rounded to D's."""
    value = acc * scalar(alpha, acc.dtype)
    if c is not None:
        addend = tl.load(c + tl.broadcast_to(offsets_c, acc.shape), mask=mask, other=0).to(acc.dtype)
        if C_FN is not None:
            addend = C_FN(addend).to(acc.dtype)
        value += addend * scalar(beta, acc.dtype)
    if EPILOGUE is not None:
        value = EPILOGUE(value)
    return value.to(DTYPE)

"""Addresses of a kernel: from places of tiles and lanes to offsets and masks. Device code, inlined everywhere.

A dim of a tile (batch, m, n, k, or all of D) is a `tiling.TiledDim`, and the place of a tile is its number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.triton_versions import ODD_RUNS_STATED

ANY = tl.constexpr(-1)  # in the place of a tensor's number: the axes of all of them


@triton.jit
def axis_start(at, DIM: tl.constexpr, I: tl.constexpr):
    """First index along axis `I` of the tile at a place of its dim."""
    AXIS: tl.constexpr = DIM.axes[I]
    return (at // AXIS.pitch) % AXIS.blocks * AXIS.step + AXIS.first


@triton.jit
def lane_index(at, lane, DIM: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of the lanes of a flattened dim of a tile."""
    AXIS: tl.constexpr = DIM.axes[I]
    return axis_start(at, DIM, I) + lane // AXIS.inner % AXIS.tile


@triton.jit
def spread_index(at, DIM: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of a tile, as a vector."""
    AXIS: tl.constexpr = DIM.axes[I]
    return axis_start(at, DIM, I) + tl.arange(0, AXIS.tile)


@triton.jit
def digits_offset(
    index, DIM: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr, FROM: tl.constexpr = 0
):
    """Offset of a flattened index along axis `I`: its mixed-radix digits, innermost first, times the strides.

    `index` counts from digit `FROM` on; those before are none of it.
    """
    AXIS: tl.constexpr = DIM.axes[I]
    rest = index.to(tl.int64) if WIDE else index
    offset = rest * 0
    for i in tl.static_range(FROM, len(AXIS.extents)):
        if i + 1 < len(AXIS.extents):
            offset += rest % AXIS.extents[i] * AXIS.strides[TENSOR][i]
            rest = rest // AXIS.extents[i]
        else:
            offset += rest * AXIS.strides[TENSOR][i]
    return offset


@triton.jit
def run_offset(index, DIM: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of all indices of a tile along axis `I`, with a statement of what the division by extents hides from the
    compiler: see `tiling.Run`.

    The statement stands on the operation that makes the offset. On a value that a function is given, or gets from
    another, it would be lost when the function is inlined.
    """
    AXIS: tl.constexpr = DIM.axes[I]
    if len(AXIS.extents) < 2:
        return digits_offset(index, DIM, I, TENSOR, WIDE)
    else:
        LENGTH: tl.constexpr = AXIS.runs[TENSOR].length
        DIVISOR: tl.constexpr = AXIS.runs[TENSOR].divisor
        rest = index.to(tl.int64) if WIDE else index
        outer = digits_offset(rest // AXIS.extents[0], DIM, I, TENSOR, WIDE, 1)
        offset = rest % AXIS.extents[0] * AXIS.strides[TENSOR][0] + outer
        if ODD_RUNS_STATED and LENGTH == 1 and AXIS.stretches[TENSOR] > 1:  # tells the axis of neighbours, no more
            return tl.max_contiguous(tl.multiple_of(offset, DIVISOR), 2)
        else:
            return tl.max_contiguous(tl.multiple_of(offset, DIVISOR), LENGTH)


@triton.jit
def lane_offsets(at, lane, DIM: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr, WHOLE: tl.constexpr = False):
    """Offsets in one tensor of some lanes of a flattened dim of a tile; of all of them where `WHOLE`."""
    offset = lane * 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].present[TENSOR]:
            if WHOLE and DIM.axes[i].inner == 1:
                offset += run_offset(lane_index(at, lane, DIM, i), DIM, i, TENSOR, WIDE)
            else:
                offset += digits_offset(lane_index(at, lane, DIM, i), DIM, i, TENSOR, WIDE)
    return offset


@triton.jit
def dim_offsets(at, lane, DIM: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in one tensor of all lanes of a flattened dim of a tile."""
    return lane_offsets(at, lane, DIM, TENSOR, WIDE, True)


@triton.jit
def batch_offset(at, DIM: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset in one tensor of a tile of single indices: a scalar."""
    offset = at * 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].present[TENSOR]:
            offset += digits_offset(axis_start(at, DIM, i), DIM, i, TENSOR, WIDE)
    return offset


@triton.jit
def dim_mask(at, lane, DIM: tl.constexpr):
    """Which lanes of a flattened dim of a tile are inside every axis."""
    mask = lane >= 0
    for i in tl.static_range(len(DIM.axes)):
        if not DIM.axes[i].exact:
            mask &= lane_index(at, lane, DIM, i) < DIM.axes[i].extent
    return mask


@triton.jit
def along(vector, PLACE: tl.constexpr, RANK: tl.constexpr):
    """A vector as dimension `PLACE` of a tensor of `RANK` dimensions."""
    for dimension in tl.static_range(RANK):
        if dimension != PLACE:
            vector = tl.expand_dims(vector, dimension)
    return vector


@triton.jit
def spread_axis(at, DIM: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Offsets along axis `I`, as its dimension of the tile; of one index where it is none of the tile's."""
    AXIS: tl.constexpr = DIM.axes[I]
    if AXIS.place < 0:
        return digits_offset(axis_start(at, DIM, I), DIM, I, TENSOR, WIDE)
    else:
        return along(run_offset(spread_index(at, DIM, I), DIM, I, TENSOR, WIDE), AXIS.place, RANK)


@triton.jit
def spread_offsets(at, DIM: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Like `dim_offsets`, every axis of the tile as a dimension of its own: 1 long where the tensor has it not."""
    offset = at * 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].present[TENSOR]:
            offset = offset + spread_axis(at, DIM, i, TENSOR, RANK, WIDE)
    return offset


@triton.jit
def inside(at, DIM: tl.constexpr, I: tl.constexpr, RANK: tl.constexpr):
    """Which indices along axis `I` exist, as its dimension of the tile."""
    AXIS: tl.constexpr = DIM.axes[I]
    return along(spread_index(at, DIM, I) < AXIS.extent, AXIS.place, RANK)


@triton.jit
def spread_mask(at, DIM: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr):
    """Like `dim_mask`, every axis of the tile as a dimension of its own, for the axes that a tensor (or `ANY`) has."""
    mask = at >= 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].place >= 0 and not DIM.axes[i].exact and DIM.axes[i].present[TENSOR]:
            mask = mask & inside(at, DIM, i, RANK)
    return mask

"""Addresses of a kernel: from places of tiles and lanes to offsets and masks. Device code, inlined everywhere.

A dim of a tile (batch, m, n, k, or all of D) has one of two forms. In `tiling.TiledDim` extents and strides are
compiled in, and the place of a tile is its number. In `generic_axes.GenericDim` they come with the launch, and the
place of a tile is the first indices along the axes and the launch's numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.triton_versions import ODD_RUNS_STATED

ANY = tl.constexpr(-1)  # in the place of a tensor's number: the axes of all of them


@triton.jit
def quotient(index, magic, shift):
    """`index` over the divisor that `magic` gave these for; all of 32 bits, the index not negative."""
    index = index.to(tl.uint32, bitcast=True)
    high = tl.umulhi(index, magic.to(tl.uint32, bitcast=True))
    return ((high + index) >> shift.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)


@triton.jit
def starts_of(program, numbers, DIM: tl.constexpr, FROM: tl.constexpr = 0):
    """First indices along the axes of a dim from number `FROM` on, the last one fastest, and what is left of a
    program's number."""
    starts = ()
    for i in tl.static_range(len(DIM.axes) - FROM):
        program, start = start_of(program, numbers, DIM, len(DIM.axes) - 1 - i)
        starts = (start,) + starts  # noqa: RUF005  Triton unpacks nothing
    return starts, program


@triton.jit
def start_of(program, numbers, DIM: tl.constexpr, I: tl.constexpr):
    """The rest of a program's number once axis `I` has taken its block, and the first index of that block."""
    AXIS: tl.constexpr = DIM.axes[I]
    FIRST: tl.constexpr = AXIS.numbers
    left = quotient(program, numbers[FIRST + 1], numbers[FIRST + 2])
    return left, (program - left * numbers[FIRST]) * AXIS.tile


@triton.jit
def step_place(step, numbers, PARAMS: tl.constexpr):
    """The place of a step along k."""
    if PARAMS.k.generic:
        return (step * PARAMS.k.tile,), numbers
    else:
        return step.to(tl.int64) if PARAMS.wide_index else step


@triton.jit
def digits_from(index, numbers, AXIS: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr, FROM: tl.constexpr):
    """Sum of digit times stride of an index that counts from digit `FROM` on."""
    FIRST: tl.constexpr = AXIS.numbers + 4
    STRIDES: tl.constexpr = AXIS.strides[TENSOR]
    DIGITS: tl.constexpr = AXIS.digits
    rest = index
    offset = index.to(tl.int64) * 0 if WIDE else index * 0
    for i in tl.static_range(FROM, DIGITS):
        digit = rest
        if i + 1 < DIGITS:
            rest = quotient(rest, numbers[FIRST + 3 * i + 1], numbers[FIRST + 3 * i + 2])
            digit = digit - rest * numbers[FIRST + 3 * i]
        if WIDE:
            digit = digit.to(tl.int64)
        offset += digit * numbers[STRIDES + i]
    return offset


@triton.jit
def generic_offset(index, numbers, AXIS: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset of a flattened index along an axis that a tensor moves along.

    The compiler is given runs where the offset is made: on a value that a function returns it would be lost.
    """
    LENGTH: tl.constexpr = AXIS.runs[TENSOR].length
    DIVISOR: tl.constexpr = AXIS.runs[TENSOR].divisor
    FIRST: tl.constexpr = AXIS.numbers + 4
    if LENGTH == 1:
        return digits_from(index, numbers, AXIS, TENSOR, WIDE, 0) * DIVISOR
    else:
        rest = quotient(index, numbers[FIRST + 1], numbers[FIRST + 2])
        outer = digits_from(rest, numbers, AXIS, TENSOR, WIDE, 1) * DIVISOR
        return tl.max_contiguous(tl.multiple_of(index - rest * numbers[FIRST] + outer, DIVISOR), LENGTH)


@triton.jit
def generic_extent(numbers, AXIS: tl.constexpr):
    """The extent, as the multiple that it surely is: masks of runs are then the same for all of a run."""
    return numbers[AXIS.numbers + 3] * AXIS.unit


@triton.jit
def axis_start(at, DIM: tl.constexpr, I: tl.constexpr):
    """First index along axis `I` of the tile at a place of its dim."""
    AXIS: tl.constexpr = DIM.axes[I]
    if DIM.generic:
        return at[0][I]
    else:
        return (at // AXIS.pitch) % AXIS.blocks * AXIS.step + AXIS.first


@triton.jit
def not_negative(at, DIM: tl.constexpr):
    """A scalar of a tile's place that sums and masks begin with."""
    if not DIM.generic:
        return at
    elif DIM.axes[0].place < 0:
        return at[0][0]
    else:
        return tl.zeros((), tl.int32)


@triton.jit
def lane_index(at, lane, DIM: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of the lanes of a flattened dim of a tile."""
    AXIS: tl.constexpr = DIM.axes[I]
    if DIM.generic and I == 0:
        return at[0][I] + lane // AXIS.inner
    elif DIM.generic:
        return at[0][I] + lane // AXIS.inner % AXIS.tile
    else:
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
    """Offset of a flattened index along axis `I` that is compiled in: its mixed-radix digits, innermost first, times
    the strides.

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
def axis_offset(at, index, DIM: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset of a flattened index along axis `I`."""
    if DIM.generic:
        AXIS: tl.constexpr = DIM.axes[I]
        return generic_offset(index, at[1], AXIS, TENSOR, WIDE)
    else:
        return digits_offset(index, DIM, I, TENSOR, WIDE)


@triton.jit
def run_offset(at, index, DIM: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of all indices of a tile along axis `I`, with a statement of what the division by extents hides from the
    compiler: see `tiling.Run`.

    The statement stands on the operation that makes the offset. On a value that a function is given, or gets from
    another, it would be lost when the function is inlined.
    """
    AXIS: tl.constexpr = DIM.axes[I]
    if DIM.generic:
        return generic_offset(index, at[1], AXIS, TENSOR, WIDE)
    elif len(AXIS.extents) < 2:
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
                offset += run_offset(at, lane_index(at, lane, DIM, i), DIM, i, TENSOR, WIDE)
            else:
                offset += axis_offset(at, lane_index(at, lane, DIM, i), DIM, i, TENSOR, WIDE)
    return offset


@triton.jit
def dim_offsets(at, lane, DIM: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in one tensor of all lanes of a flattened dim of a tile."""
    return lane_offsets(at, lane, DIM, TENSOR, WIDE, True)


@triton.jit
def batch_offset(at, DIM: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset in one tensor of a tile of single indices: a scalar."""
    offset = not_negative(at, DIM) * 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].present[TENSOR]:
            offset += axis_offset(at, axis_start(at, DIM, i), DIM, i, TENSOR, WIDE)
    return offset


@triton.jit
def exists(at, index, DIM: tl.constexpr, I: tl.constexpr):
    """Which indices along axis `I` are inside it."""
    AXIS: tl.constexpr = DIM.axes[I]
    if DIM.generic:
        return index < generic_extent(at[1], AXIS)
    else:
        return index < AXIS.extent


@triton.jit
def dim_mask(at, lane, DIM: tl.constexpr):
    """Which lanes of a flattened dim of a tile are inside every axis."""
    mask = lane >= 0
    for i in tl.static_range(len(DIM.axes)):
        if not DIM.axes[i].exact:
            mask &= exists(at, lane_index(at, lane, DIM, i), DIM, i)
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
        return axis_offset(at, axis_start(at, DIM, I), DIM, I, TENSOR, WIDE)
    else:
        return along(run_offset(at, spread_index(at, DIM, I), DIM, I, TENSOR, WIDE), AXIS.place, RANK)


@triton.jit
def spread_offsets(at, DIM: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Like `dim_offsets`, every axis of the tile as a dimension of its own: 1 long where the tensor has it not."""
    offset = not_negative(at, DIM) * 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].present[TENSOR]:
            offset = offset + spread_axis(at, DIM, i, TENSOR, RANK, WIDE)
    return offset


@triton.jit
def inside(at, DIM: tl.constexpr, I: tl.constexpr, RANK: tl.constexpr):
    """Which indices along axis `I` exist, as its dimension of the tile."""
    AXIS: tl.constexpr = DIM.axes[I]
    return along(exists(at, spread_index(at, DIM, I), DIM, I), AXIS.place, RANK)


@triton.jit
def spread_mask(at, DIM: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr):
    """Like `dim_mask`, every axis of the tile as a dimension of its own, for the axes that a tensor (or `ANY`) has."""
    mask = not_negative(at, DIM) >= 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].place >= 0 and not DIM.axes[i].exact and DIM.axes[i].present[TENSOR]:
            mask = mask & inside(at, DIM, i, RANK)
    return mask

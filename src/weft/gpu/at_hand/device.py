"""From numbers that come with the launch to offsets and masks. Device code, inlined everywhere."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import along


@triton.jit
def quotient(index, magic, shift):
    """`index` over the divisor that `axes.magic` gave these for; all of 32 bits, the index not negative."""
    index = index.to(tl.uint32, bitcast=True)
    high = tl.umulhi(index, magic.to(tl.uint32, bitcast=True))
    return ((high + index) >> shift.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)


@triton.jit
def block_of(program, numbers, AXES: tl.constexpr, I: tl.constexpr):
    """What is left of a program's number once axis `I` has taken its block, and that block."""
    AXIS: tl.constexpr = AXES[I]
    FIRST: tl.constexpr = AXIS.numbers
    left = quotient(program, numbers[FIRST + 1], numbers[FIRST + 2])
    return left, program - left * numbers[FIRST]


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
def axis_offset(index, numbers, AXIS: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr):
    """Offset of a flattened index along an axis that a tensor moves along.

    The compiler is told of runs where the offset is made: on a value that a function returns it would be lost.
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
def axis_extent(numbers, AXIS: tl.constexpr):
    """The extent, as the multiple that it surely is: masks of runs are then the same for all of a run."""
    return numbers[AXIS.numbers + 3] * AXIS.unit


@triton.jit
def lanes_of(start, AXIS: tl.constexpr):
    """The indices of a tile along one axis."""
    return start + tl.arange(0, AXIS.tile)


@triton.jit
def spread_offset(
    start, numbers, AXES: tl.constexpr, I: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets along axis `I`, as its dimension of the tile; of one index where a program has but one."""
    AXIS: tl.constexpr = AXES[I]
    if AXIS.place < 0:
        return axis_offset(start, numbers, AXIS, TENSOR, WIDE)
    else:
        return along(axis_offset(lanes_of(start, AXIS), numbers, AXIS, TENSOR, WIDE), AXIS.place, RANK)


@triton.jit
def spread_offsets(starts, numbers, AXES: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Offsets in a tensor of a tile, every axis a dimension of its own: 1 long where the tensor does not have it.

    `starts` has the first index along each axis.
    """
    offset = starts[0].to(tl.int64) * 0 if WIDE else starts[0] * 0
    for i in tl.static_range(len(AXES)):
        if AXES[i].present[TENSOR]:
            offset = offset + spread_offset(starts[i], numbers, AXES, i, TENSOR, RANK, WIDE)
    return offset


@triton.jit
def inside(start, numbers, AXES: tl.constexpr, I: tl.constexpr, RANK: tl.constexpr):
    """Which indices along axis `I` exist, as its dimension of the tile."""
    AXIS: tl.constexpr = AXES[I]
    return along(lanes_of(start, AXIS) < axis_extent(numbers, AXIS), AXIS.place, RANK)


@triton.jit
def spread_mask(starts, numbers, AXES: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr):
    """Which of them exist."""
    mask = starts[0] >= 0
    for i in tl.static_range(len(AXES)):
        if AXES[i].place >= 0 and AXES[i].present[TENSOR]:
            mask = mask & inside(starts[i], numbers, AXES, i, RANK)
    return mask

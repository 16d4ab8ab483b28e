"""Steps that kernels share: how they begin, addresses, loads, scalars, operands of functions, and the end of a tile.

Device code, inlined everywhere. A dim of a tile (batch, m, n, k, or all of D) is a `tiling.TiledDim`, and the place of
a tile is its number.

How a launch follows the one before it. On Hopper and later a launch may be *dependent by program* (CUDA C++ Programming
Guide, "Programmatic Dependent Launch"): it begins when all programs of the launch before have said so, and itself waits
until they have ended and what they wrote is seen. So the microsecond between two launches, in which the device would
start programs, passes alongside the first one's last programs. On an H200 a product of 200^3 takes 2.9 us after another
instead of 3.5, a permutation of a megaword 2.6 instead of 3.2.

Every kernel of weft waits before anything else, and only then lets the next launch come: whoever waits for a launch has
waited for all that were before it. A launch that is not weft's waits for the whole of weft's, as ever.

Programs that come so take SMs as these become free. Kernels that stay on the device for long, with an order of
tiles that makes neighbours share what the cache holds, lose more by that than they gain (3 % of a product of 5184^3):
such kernels launch early only when they are short, and release their dependents only at exit.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.fn.triton.device_math import to_type
from weft.gpu.common.release import PDL_OPTION
from weft.gpu.common.triton_versions import ODD_RUNS_STATED
from weft.planner.target import interpreting


@tl.core.builtin
def _pdl_wait(_semantic: Any = None) -> None:
    if getattr(_semantic.builder.options, PDL_OPTION, False):
        gdc_wait(_semantic=_semantic)


@tl.core.builtin
def _pdl_begin(_semantic: Any = None) -> None:
    if getattr(_semantic.builder.options, PDL_OPTION, False):
        gdc_wait(_semantic=_semantic)
        gdc_launch_dependents(_semantic=_semantic)


def _nothing() -> None:
    """Wait for nothing: in the interpreter each launch ends before the next begins."""


pdl_wait = _nothing if interpreting() else _pdl_wait
"""Wait for all launches before this one: the first statement of kernels that stay on the device."""

pdl_begin = _nothing if interpreting() else _pdl_begin
"""The same, and then let the next launch come: the first statement of all others."""


ANY = tl.constexpr(-1)  # in the place of a tensor's number: the axes of all of them


@triton.jit
def axis_start(at, DIM: tl.constexpr, I: tl.constexpr):
    """First index along axis `I` of the tile at a place of its dim."""
    AXIS: tl.constexpr = DIM.axes[I]
    return (at // AXIS.pitch) % AXIS.blocks * AXIS.step + AXIS.first


@triton.jit
def lane_index(at, lane, DIM: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of the lanes of a flattened dim of a tile."""
    return axis_start(at, DIM, I) + lane // DIM.axes[I].inner % DIM.axes[I].tile


@triton.jit
def spread_index(at, DIM: tl.constexpr, I: tl.constexpr):
    """Indices along axis `I` of a tile, as a vector."""
    return axis_start(at, DIM, I) + tl.arange(0, DIM.axes[I].tile)


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
    if DIM.axes[I].place < 0:
        return digits_offset(axis_start(at, DIM, I), DIM, I, TENSOR, WIDE)
    else:
        return along(run_offset(spread_index(at, DIM, I), DIM, I, TENSOR, WIDE), DIM.axes[I].place, RANK)


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
    return along(spread_index(at, DIM, I) < DIM.axes[I].extent, DIM.axes[I].place, RANK)


@triton.jit
def spread_mask(at, DIM: tl.constexpr, TENSOR: tl.constexpr, RANK: tl.constexpr):
    """Like `dim_mask`, every axis of the tile as a dimension of its own, for the axes that a tensor (or `ANY`) has."""
    mask = at >= 0
    for i in tl.static_range(len(DIM.axes)):
        if DIM.axes[i].place >= 0 and not DIM.axes[i].exact and DIM.axes[i].present[TENSOR]:
            mask = mask & inside(at, DIM, i, RANK)
    return mask


@triton.jit
def load_or_zero(pointers, mask):
    """The values at some pointers, zero where the mask is false. No integer converts to fp8."""
    ZERO: tl.constexpr = 0.0 if pointers.dtype.scalar.element_ty.is_floating() else 0
    return tl.load(pointers, mask=mask, other=ZERO)


@triton.jit
def load_tile(pointers, row_mask, column_mask, ROWS_EXACT: tl.constexpr, COLUMNS_EXACT: tl.constexpr):
    """A tile by pointers, zero outside the masks; no mask where the tiles end with the extents."""
    if ROWS_EXACT and COLUMNS_EXACT:
        return tl.load(pointers)
    elif ROWS_EXACT:
        return load_or_zero(pointers, column_mask[None, :])
    elif COLUMNS_EXACT:
        return load_or_zero(pointers, row_mask[:, None])
    else:
        return load_or_zero(pointers, row_mask[:, None] & column_mask[None, :])


@triton.jit
def tf32_digits(value):
    """float32 values cut to the digits that a TF32 product takes anyway. What it is for is to bring an operand into
    registers: no compiler takes it away."""
    return (value.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def scalar(bits, DTYPE: tl.constexpr):
    """`alpha` or `beta` from the 64 bits it travels in: of a double for real types, of an integer for the others."""
    bits = bits.to(tl.int64)  # the interpreter makes small numbers narrower, whatever the parameter says
    if DTYPE.is_floating():
        return bits.to(tl.float64, bitcast=True).to(DTYPE)
    else:
        return bits.to(DTYPE)


@triton.jit
def gathered(pointers, place, ENTRIES: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr):
    """The auxiliary operands of a function (`AuxEntry`), broadcast (extent 1) along axes they do not depend on.

    `OFFSETS(place, CUT, TENSOR)` and `MASK(place, CUT, TENSOR)` say where a tensor's elements of this tile are. A
    coordinate is its own offset: nothing is loaded.
    """
    values = ()
    for i in tl.static_range(len(ENTRIES)):
        values += (gathered_one(pointers, place, ENTRIES, i, PARAMS, OFFSETS, MASK),)
    return values


@triton.jit
def gathered_one(
    pointers, place, ENTRIES: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """One of them."""
    offsets = OFFSETS(place, PARAMS, ENTRIES[I].tensor)
    if ENTRIES[I].pointer < 0:
        return tl.cast(offsets, tl.int64 if ENTRIES[I].long else tl.int32)
    else:
        return load_or_zero(pointers[ENTRIES[I].pointer] + offsets, MASK(place, PARAMS, ENTRIES[I].tensor))


@triton.jit
def gathered_step(
    known, pointers, place, ENTRIES: tl.constexpr, K: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """The auxiliary operands of a function in a step along k; what does not move along k is `known` from before the
    first."""
    values = ()
    for i in tl.static_range(len(ENTRIES)):
        if K.present[ENTRIES[i].tensor]:
            values += (gathered_one(pointers, place, ENTRIES, i, PARAMS, OFFSETS, MASK),)
        else:
            values += (known[i],)
    return values


@triton.jit
def finish(
    acc, tensors, factors, place, PARAMS: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr, OP: tl.constexpr
):
    """Store `finished` of one tile; `tensors` are (C or None, D, pointers of auxiliary operands and further
    results)."""
    value = finished(acc, tensors[0], tensors[2], factors, place, PARAMS, OFFSETS, MASK, OP)
    offsets_d = tl.broadcast_to(OFFSETS(place, PARAMS, 3), acc.shape)
    tl.store(tensors[1] + offsets_d, value, mask=tl.broadcast_to(MASK(place, PARAMS, ANY), acc.shape))


@triton.jit
def finished(
    acc, c, pointers, factors, place, PARAMS: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr, OP: tl.constexpr
):
    """A tile of D: `epilogue(alpha * acc + beta * c_fn(C))`, or `epilogue(reduce(acc, c_fn(C)))`.

    Computed in the accumulator's type and rounded to D's. C may be None, `factors` are (alpha, beta), `OP` is a
    `KernelOperation`; `OFFSETS` and `MASK` are as for `gathered`. An epilogue that yields several values has the
    others stored through the pointers of further results.
    """
    alpha = factors[0]
    beta = factors[1]
    REDUCE: tl.constexpr = OP.reduce
    AUX: tl.constexpr = OP.aux
    mask = tl.broadcast_to(MASK(place, PARAMS, ANY), acc.shape)
    value = acc
    if REDUCE is None:
        value = value * scalar(alpha, acc.dtype)
    if c is not None:
        offsets_c = tl.broadcast_to(OFFSETS(place, PARAMS, 2), acc.shape)
        addend = load_or_zero(c + offsets_c, mask).to(acc.dtype)
        if OP.c_fn is not None:
            addend = OP.c_fn(addend, *gathered(pointers, place, AUX.c, PARAMS, OFFSETS, MASK)).to(acc.dtype)
        if REDUCE is None:
            value += addend * scalar(beta, acc.dtype)
        else:
            value = REDUCE(value, addend).to(acc.dtype)
    if OP.epilogue is not None:
        value = OP.epilogue(value, *gathered(pointers, place, AUX.epilogue, PARAMS, OFFSETS, MASK))
    for i in tl.static_range(len(AUX.outputs)):
        other = pointers[AUX.outputs[i].pointer]
        offsets = tl.broadcast_to(OFFSETS(place, PARAMS, AUX.outputs[i].tensor), acc.shape)
        more = to_type(tl.broadcast_to(value[i + 1], acc.shape), other.dtype.element_ty)
        tl.store(other + offsets, more, mask=mask)
    return to_type(value if len(AUX.outputs) == 0 else tl.broadcast_to(value[0], acc.shape), OP.result)

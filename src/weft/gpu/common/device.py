"""Steps that kernels share: loads, scalars, operands of functions, and the end of a tile. Device code, inlined
everywhere."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_math import to_type
from weft.gpu.common.addresses import ANY


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
    TENSOR: tl.constexpr = ENTRIES[I][0]  # fields by number: a tuple on its way through calls loses their names
    POINTER: tl.constexpr = ENTRIES[I][1]
    offsets = OFFSETS(place, PARAMS, TENSOR)
    if POINTER < 0:
        return tl.cast(offsets, tl.int64 if ENTRIES[I][2] else tl.int32)
    else:
        return load_or_zero(pointers[POINTER] + offsets, MASK(place, PARAMS, TENSOR))


@triton.jit
def gathered_step(
    known, pointers, place, ENTRIES: tl.constexpr, K: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """The auxiliary operands of a function in a step along k; what does not move along k is `known` from before the
    first."""
    values = ()
    for i in tl.static_range(len(ENTRIES)):
        if K.present[ENTRIES[i][0]]:
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
    C_FN: tl.constexpr = OP.c_fn
    EPILOGUE: tl.constexpr = OP.epilogue
    REDUCE: tl.constexpr = OP.reduce
    RESULT: tl.constexpr = OP.result
    AUX: tl.constexpr = OP.aux
    AUX_C: tl.constexpr = AUX.c
    AUX_D: tl.constexpr = AUX.epilogue
    mask = tl.broadcast_to(MASK(place, PARAMS, ANY), acc.shape)
    value = acc
    if REDUCE is None:
        value = value * scalar(alpha, acc.dtype)
    if c is not None:
        offsets_c = tl.broadcast_to(OFFSETS(place, PARAMS, 2), acc.shape)
        addend = load_or_zero(c + offsets_c, mask).to(acc.dtype)
        if C_FN is not None:
            addend = C_FN(addend, *gathered(pointers, place, AUX_C, PARAMS, OFFSETS, MASK)).to(acc.dtype)
        if REDUCE is None:
            value += addend * scalar(beta, acc.dtype)
        else:
            value = REDUCE(value, addend).to(acc.dtype)
    if EPILOGUE is not None:
        value = EPILOGUE(value, *gathered(pointers, place, AUX_D, PARAMS, OFFSETS, MASK))
    for i in tl.static_range(len(AUX.outputs)):
        other = pointers[AUX.outputs[i][1]]
        offsets = tl.broadcast_to(OFFSETS(place, PARAMS, AUX.outputs[i][0]), acc.shape)
        more = to_type(tl.broadcast_to(value[i + 1], acc.shape), other.dtype.element_ty)
        tl.store(other + offsets, more, mask=mask)
    return to_type(value if len(AUX.outputs) == 0 else tl.broadcast_to(value[0], acc.shape), RESULT)

"""What complex kernels do to a tile before they store it: alpha, C, the functions, and further results.

Functions are called with the parts of complex values, and with reals as they are; `PARAMS` says which they take and
yield: `of_reals` (A or X, C, epilogue), `c_fn_complex`, and `parts` of each result of the epilogue. It also has the
tile's extents (`stored`) and the kinds of C and D. `OFFSETS(place, PARAMS, TENSOR)` and `MASK(place, PARAMS, TENSOR)`
say where a tensor's elements of the tile lie, and which exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.complex_elements import KINDS
from weft.gpu.common.device import ANY, load_or_zero, scalar
from weft.gpu.complex.parts import load_parts, store_parts, times

REALS = tl.constexpr(KINDS.index("reals"))
WORDS = tl.constexpr(KINDS.index("words"))


@triton.jit
def call(FN: tl.constexpr, OF_REALS: tl.constexpr, re, im, aux_args):
    """All that a function yields, of the parts of a complex value or of a real one."""
    if OF_REALS:
        return FN(re, *aux_args)
    else:
        return FN(re, im, *aux_args)


@triton.jit
def apply(FN: tl.constexpr, COMPLEX: tl.constexpr, OF_REALS: tl.constexpr, re, im, aux_args):
    """Both parts of what a function yields, where that is one value."""
    value = call(FN, OF_REALS, re, im, aux_args)
    if COMPLEX:
        return value
    else:
        return value, tl.zeros_like(value)


@triton.jit
def load_aux(
    pointers, place, ENTRIES: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr
):  # fmt: skip
    """A function's auxiliary operands (`aux_operands.Entry`), each 1 long along the axes it does not move along: one
    value for what is real, two for what is complex, as in the function's parameters."""
    values = ()
    for i in tl.static_range(len(ENTRIES)):
        values += load_aux_one(pointers, place, ENTRIES, i, PARAMS, OFFSETS, MASK)
    return values


@triton.jit
def load_aux_one(
    pointers, place, ENTRIES: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """One of them."""
    RANK: tl.constexpr = len(PARAMS.stored)
    TENSOR: tl.constexpr = ENTRIES[I][0]  # fields by number: a tuple on its way through calls loses their names
    POINTER: tl.constexpr = ENTRIES[I][1]
    KIND: tl.constexpr = ENTRIES[I][3]
    offsets = OFFSETS(place, PARAMS, TENSOR)
    mask = MASK(place, PARAMS, TENSOR)
    if POINTER < 0:
        return (tl.cast(offsets, tl.int64 if ENTRIES[I][2] else tl.int32),)
    elif KIND == REALS:
        return (load_or_zero(pointers[POINTER] + offsets, mask),)
    elif KIND == WORDS:
        return load_parts(pointers[POINTER], offsets, mask, "words", RANK)
    elif len(offsets.shape) > 0:
        return load_parts(pointers[POINTER], offsets, tl.broadcast_to(mask, offsets.shape), "pairs", RANK)
    else:
        x = pointers[POINTER] + 2 * offsets
        return tl.load(x), tl.load(x + 1)


@triton.jit
def finish_parts(
    re, im, tensors, factors, place, PARAMS: tl.constexpr, functions, SCALE: tl.constexpr, AUX: tl.constexpr,
    OFFSETS: tl.constexpr, MASK: tl.constexpr, C_MASK: tl.constexpr,
):  # fmt: skip
    """Both parts of epilogue(alpha * value + beta * c_fn(C)) of a tile; its further results are stored.

    `tensors` are (C or None, pointers of auxiliary operands and further results), `factors` the bits of both parts of
    alpha and of beta, applied in type `SCALE` (None: they are not), `functions` (c_fn, epilogue). Loads of C are masked
    along the axes of tensor `C_MASK`: its own, or all (`ANY`).
    """
    c = tensors[0]
    pointers = tensors[1]
    C_FN: tl.constexpr = functions[0]
    EPILOGUE: tl.constexpr = functions[1]
    STORED: tl.constexpr = PARAMS.stored
    C_KIND: tl.constexpr = PARAMS.c_kind
    AUX_C: tl.constexpr = AUX.c
    if SCALE is not None:
        re, im = times(re.to(SCALE), im.to(SCALE), scalar(factors[0], SCALE), scalar(factors[1], SCALE))
        if c is not None:
            mask = tl.broadcast_to(MASK(place, PARAMS, C_MASK), STORED)
            offsets = tl.broadcast_to(OFFSETS(place, PARAMS, 2), STORED)
            c_re, c_im = load_parts(c, offsets, mask, C_KIND, len(STORED))
            c_re = c_re.to(SCALE)
            c_im = c_im.to(SCALE)
            if C_FN is not None:
                aux_args = load_aux(pointers, place, AUX_C, PARAMS, OFFSETS, MASK)
                c_re, c_im = apply(C_FN, PARAMS.c_fn_complex, PARAMS.of_reals[1], c_re, c_im, aux_args)
            c_re, c_im = times(c_re.to(SCALE), c_im.to(SCALE), scalar(factors[2], SCALE), scalar(factors[3], SCALE))
            re += c_re
            im += c_im
    if EPILOGUE is not None:
        re, im = apply_epilogue(re, im, pointers, place, EPILOGUE, PARAMS, AUX, OFFSETS, MASK)
    return re, im


@triton.jit
def apply_epilogue(
    re, im, pointers, place, EPILOGUE: tl.constexpr, PARAMS: tl.constexpr, AUX: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """The epilogue's first result; the others are stored."""
    ENTRIES: tl.constexpr = AUX.epilogue
    OUTPUTS: tl.constexpr = AUX.outputs
    OF_REALS: tl.constexpr = PARAMS.of_reals[2]
    aux_args = load_aux(pointers, place, ENTRIES, PARAMS, OFFSETS, MASK)
    if len(OUTPUTS) == 0:
        return apply(EPILOGUE, PARAMS.parts[0][1] > 0, OF_REALS, re, im, aux_args)
    else:
        values = call(EPILOGUE, OF_REALS, re, im, aux_args)
        for i in tl.static_range(len(OUTPUTS)):
            store_output(pointers, values, place, OUTPUTS, i, PARAMS, OFFSETS, MASK)
        return parts_at(values, PARAMS, 0)


@triton.jit
def parts_at(values, PARAMS: tl.constexpr, I: tl.constexpr):
    """Both parts of one of several results; the second is 0 where it has none."""
    PARTS: tl.constexpr = PARAMS.parts[I]
    re = values[PARTS[0]]
    if PARTS[1] < 0:
        return re, tl.zeros_like(re)
    else:
        return re, values[PARTS[1]]


@triton.jit
def store_output(
    pointers, values, place, OUTPUTS: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """Store a result after the first through a pointer of its own."""
    STORED: tl.constexpr = PARAMS.stored
    RANK: tl.constexpr = len(STORED)
    TENSOR: tl.constexpr = OUTPUTS[I][0]
    KIND: tl.constexpr = OUTPUTS[I][3]
    d = pointers[OUTPUTS[I][1]]
    re, im = parts_at(values, PARAMS, I + 1)
    re = tl.broadcast_to(re, STORED)
    im = tl.broadcast_to(im, STORED)
    offsets = tl.broadcast_to(OFFSETS(place, PARAMS, TENSOR), STORED)
    mask = tl.broadcast_to(MASK(place, PARAMS, ANY), STORED)
    if KIND == REALS:
        store_parts(d, re, im, offsets, mask, d.dtype.element_ty, "reals", RANK)
    elif KIND == WORDS:
        store_parts(d, re, im, offsets, mask, tl.float32, "words", RANK)
    else:
        store_parts(d, re, im, offsets, mask, d.dtype.element_ty, "pairs", RANK)

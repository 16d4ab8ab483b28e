"""Device functions for complex values: their parts, and the end of a sum."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import ANY, along, gathered_one, scalar


@triton.jit
def part(RANK: tl.constexpr):
    """0 for the real part and 1 for the imaginary one, as dimension `RANK`."""
    return along(tl.arange(0, 2), RANK, RANK + 1)


@triton.jit
def pair_offsets(offsets, RANK: tl.constexpr):
    """Offsets of both parts of complex elements, along one more dimension."""
    return 2 * tl.expand_dims(offsets, RANK) + part(RANK)


@triton.jit
def pair_mask(mask, RANK: tl.constexpr):
    return tl.expand_dims(mask, RANK) & (part(RANK) >= 0)


@triton.jit
def word(re, im):
    """A complex64 as the 64 bits that it is in memory."""
    low = re.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (im.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def load_parts(x, offsets, mask, KIND: tl.constexpr, RANK: tl.constexpr):
    """Both parts of the elements at some offsets, zeros where the mask is false. The second part of reals is 0."""
    if KIND == "words":
        words = tl.load(x + offsets, mask=mask, other=0)
        re = words.to(tl.int32).to(tl.float32, bitcast=True)
        im = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    elif KIND == "pairs":
        re, im = tl.split(tl.load(x + pair_offsets(offsets, RANK), mask=pair_mask(mask, RANK), other=0))
    else:
        re = tl.load(x + offsets, mask=mask, other=0)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def store_parts(d, re, im, offsets, mask, RESULT: tl.constexpr, KIND: tl.constexpr, RANK: tl.constexpr):
    """Store them; of reals, the first part."""
    re = re.to(RESULT)
    if KIND == "words":
        tl.store(d + offsets, word(re, im.to(RESULT)), mask=mask)
    elif KIND == "pairs":
        tl.store(d + pair_offsets(offsets, RANK), tl.join(re, im.to(RESULT)), mask=pair_mask(mask, RANK))
    else:
        tl.store(d + offsets, re, mask=mask)


@triton.jit
def times(re, im, by_re, by_im):
    """A complex product; a factor without imaginary part meets no infinity with its zero."""
    real = by_im == 0
    return tl.where(real, re * by_re, re * by_re - im * by_im), tl.where(real, im * by_re, re * by_im + im * by_re)


REALS, WORDS = tl.constexpr(0), tl.constexpr(1)  # places in `operation.KINDS`


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
    """A function's auxiliary operands (`operation.AuxEntry`), broadcast (extent 1) along axes they do not depend on.

    A real operand is one value, a complex one two, as in the function's parameters.
    """
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
    if POINTER < 0 or KIND == REALS:
        return (gathered_one(pointers, place, ENTRIES, I, PARAMS, OFFSETS, MASK),)
    else:
        offsets = OFFSETS(place, PARAMS, TENSOR)
        mask = MASK(place, PARAMS, TENSOR)
        if KIND == WORDS:
            return load_parts(pointers[POINTER], offsets, mask, "words", RANK)
        elif len(offsets.shape) > 0:
            return load_parts(pointers[POINTER], offsets, tl.broadcast_to(mask, offsets.shape), "pairs", RANK)
        else:
            x = pointers[POINTER] + 2 * offsets
            return tl.load(x), tl.load(x + 1)


@triton.jit
def finish_parts(
    re, im, tensors, factors, place, PARAMS: tl.constexpr, OP: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr, C_MASK: tl.constexpr,
):  # fmt: skip
    """Both parts of epilogue(alpha * value + beta * c_fn(C)) of a tile; its further results are stored.

    `tensors` are (C or None, pointers of auxiliary operands and further results), `factors` the bits of both parts of
    alpha and of beta, `OP` a `ComplexOperation`. Loads of C are masked along the axes of tensor `C_MASK`: its own, or
    all (`ANY`).
    """
    c = tensors[0]
    pointers = tensors[1]
    SCALE: tl.constexpr = OP.scale
    STORED: tl.constexpr = PARAMS.stored
    C_KIND: tl.constexpr = OP.c_kind
    AUX_C: tl.constexpr = OP.aux.c
    if SCALE is not None:
        re, im = times(re.to(SCALE), im.to(SCALE), scalar(factors[0], SCALE), scalar(factors[1], SCALE))
        if c is not None:
            mask = tl.broadcast_to(MASK(place, PARAMS, C_MASK), STORED)
            offsets = tl.broadcast_to(OFFSETS(place, PARAMS, 2), STORED)
            c_re, c_im = load_parts(c, offsets, mask, C_KIND, len(STORED))
            c_re = c_re.to(SCALE)
            c_im = c_im.to(SCALE)
            if OP.c_fn is not None:
                aux_args = load_aux(pointers, place, AUX_C, PARAMS, OFFSETS, MASK)
                c_re, c_im = apply(OP.c_fn, OP.to_complex[1], OP.of_reals[1], c_re, c_im, aux_args)
            c_re, c_im = times(c_re.to(SCALE), c_im.to(SCALE), scalar(factors[2], SCALE), scalar(factors[3], SCALE))
            re += c_re
            im += c_im
    if OP.epilogue is not None:
        re, im = apply_epilogue(re, im, pointers, place, PARAMS, OP, OFFSETS, MASK)
    return re, im


@triton.jit
def apply_epilogue(
    re, im, pointers, place, PARAMS: tl.constexpr, OP: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr
):
    """The epilogue's first result; the others are stored."""
    ENTRIES: tl.constexpr = OP.aux.epilogue
    OUTPUTS: tl.constexpr = OP.aux.outputs
    OF_REALS: tl.constexpr = OP.of_reals[2]
    aux_args = load_aux(pointers, place, ENTRIES, PARAMS, OFFSETS, MASK)
    if len(OUTPUTS) == 0:
        return apply(OP.epilogue, OP.to_complex[2], OF_REALS, re, im, aux_args)
    else:
        values = call(OP.epilogue, OF_REALS, re, im, aux_args)
        for i in tl.static_range(len(OUTPUTS)):
            store_output(pointers, values, place, i, PARAMS, OP, OFFSETS, MASK)
        return parts_at(values, OP, 0)


@triton.jit
def parts_at(values, OP: tl.constexpr, I: tl.constexpr):
    """Both parts of one of several results; the second is 0 where it has none."""
    PARTS: tl.constexpr = OP.parts[I]
    re = values[PARTS[0]]
    if PARTS[1] < 0:
        return re, tl.zeros_like(re)
    else:
        return re, values[PARTS[1]]


@triton.jit
def store_output(
    pointers, values, place, I: tl.constexpr, PARAMS: tl.constexpr, OP: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """Store a result after the first through a pointer of its own."""
    STORED: tl.constexpr = PARAMS.stored
    RANK: tl.constexpr = len(STORED)
    OUTPUTS: tl.constexpr = OP.aux.outputs
    TENSOR: tl.constexpr = OUTPUTS[I][0]
    KIND: tl.constexpr = OUTPUTS[I][3]
    d = pointers[OUTPUTS[I][1]]
    re, im = parts_at(values, OP, I + 1)
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

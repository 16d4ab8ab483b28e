"""The kernel that moves complex numbers and computes with them: one block per program, as pairs (re, im) of reals.

It is the permutation kernel for complex elements: read along the source's run, written along D's. A complex64 travels
as one word of 64 bits, so that runs are as long as they look; a complex128 as the last dimension of a tile, of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.complex_elements import KINDS
from weft.gpu.common.device import ANY, along, load_or_zero, scalar, spread_mask, spread_offsets
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.permute.kernel import permute_dims

REALS = tl.constexpr(KINDS.index("reals"))
WORDS = tl.constexpr(KINDS.index("words"))


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
def load_pair(
    x, block, R: tl.constexpr, TENSOR: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr
):
    """Both parts of a block: of words, of pairs, or of real numbers, whose second part is 0."""
    RANK: tl.constexpr = len(TILE)
    offsets = tl.broadcast_to(spread_offsets(block, R, TENSOR, RANK, WIDE), TILE)
    mask = tl.broadcast_to(spread_mask(block, R, TENSOR, RANK), TILE)
    return read_pair(x, offsets, mask, KIND, RANK)


@triton.jit
def read_pair(x, offsets, mask, KIND: tl.constexpr, RANK: tl.constexpr):
    """Both parts of the elements at some offsets, zeros where the mask is false."""
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
def store_pair(d, re, im, offsets, mask, RESULT: tl.constexpr, KIND: tl.constexpr, RANK: tl.constexpr):
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


@triton.jit
def called(FN: tl.constexpr, OF_REALS: tl.constexpr, re, im, aux_args):
    """All that a function yields, of the parts of a complex value or of a real one."""
    if OF_REALS:
        return FN(re, *aux_args)
    else:
        return FN(re, im, *aux_args)


@triton.jit
def applied(FN: tl.constexpr, COMPLEX: tl.constexpr, OF_REALS: tl.constexpr, re, im, aux_args):
    """A function of complex values, or of real ones, which yields complex or real ones."""
    value = called(FN, OF_REALS, re, im, aux_args)
    if COMPLEX:
        return value
    else:
        return value, tl.zeros_like(value)


@triton.jit
def aux_parts(
    pointers, place, ENTRIES: tl.constexpr, PARAMS: tl.constexpr, RANK: tl.constexpr, OFFSETS: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """What a function takes beside the value (`beside.Entry`), each 1 long along the axes it does not move along: one
    value for what is real, two for what is complex, as in the function's parameters.

    `OFFSETS(place, CUT, TENSOR)` and `MASK(place, CUT, TENSOR)` say where a tensor's elements of this tile lie.
    """
    values = ()
    for i in tl.static_range(len(ENTRIES)):
        values += one_aux(pointers, place, ENTRIES, i, PARAMS, RANK, OFFSETS, MASK)
    return values


@triton.jit
def one_aux(
    pointers, place, ENTRIES: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr, RANK: tl.constexpr,
    OFFSETS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """One of them."""
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
        return read_pair(pointers[POINTER], offsets, mask, "words", RANK)
    elif len(offsets.shape) > 0:
        return read_pair(pointers[POINTER], offsets, tl.broadcast_to(mask, offsets.shape), "pairs", RANK)
    else:
        x = pointers[POINTER] + 2 * offsets
        return tl.load(x), tl.load(x + 1)


@triton.jit
def ended(
    re, im, pointers, place, EPILOGUE: tl.constexpr, OF_REALS: tl.constexpr, PARTS: tl.constexpr, AUX: tl.constexpr,
    PARAMS: tl.constexpr, TILE: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """The epilogue's first result; the others are stored."""
    ENTRIES: tl.constexpr = AUX.epilogue
    OUTPUTS: tl.constexpr = AUX.outputs
    aux_args = aux_parts(pointers, place, ENTRIES, PARAMS, len(TILE), OFFSETS, MASK)
    if len(OUTPUTS) == 0:
        return applied(EPILOGUE, PARTS[0][1] > 0, OF_REALS, re, im, aux_args)
    else:
        values = called(EPILOGUE, OF_REALS, re, im, aux_args)
        for i in tl.static_range(len(OUTPUTS)):
            store_other(pointers, values, place, OUTPUTS, PARTS, i, PARAMS, TILE, OFFSETS, MASK)
        return parts_at(values, PARTS, 0)


@triton.jit
def parts_at(values, PARTS: tl.constexpr, I: tl.constexpr):
    """Both parts of one of several results; the second is 0 where it has none."""
    re = values[PARTS[I][0]]
    if PARTS[I][1] < 0:
        return re, tl.zeros_like(re)
    else:
        return re, values[PARTS[I][1]]


@triton.jit
def store_other(
    pointers, values, place, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, I: tl.constexpr, PARAMS: tl.constexpr,
    TILE: tl.constexpr, OFFSETS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Store a result after the first through a pointer of its own."""
    RANK: tl.constexpr = len(TILE)
    TENSOR: tl.constexpr = OUTPUTS[I][0]
    KIND: tl.constexpr = OUTPUTS[I][3]
    d = pointers[OUTPUTS[I][1]]
    re, im = parts_at(values, PARTS, I + 1)
    re = tl.broadcast_to(re, TILE)
    im = tl.broadcast_to(im, TILE)
    offsets = tl.broadcast_to(OFFSETS(place, PARAMS, TENSOR), TILE)
    mask = tl.broadcast_to(MASK(place, PARAMS, ANY), TILE)
    if KIND == REALS:
        store_pair(d, re, im, offsets, mask, d.dtype.element_ty, "reals", RANK)
    elif KIND == WORDS:
        store_pair(d, re, im, offsets, mask, tl.float32, "words", RANK)
    else:
        store_pair(d, re, im, offsets, mask, d.dtype.element_ty, "pairs", RANK)


@triton.jit
def block_offsets(block, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a block as D has it."""
    R: tl.constexpr = PARAMS.r
    return spread_offsets(block, R, TENSOR, len(PARAMS.tile), PARAMS.wide[TENSOR])


@triton.jit
def block_mask(block, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    R: tl.constexpr = PARAMS.r
    return spread_mask(block, R, TENSOR, len(PARAMS.tile))


@triton.jit(do_not_specialize=["alpha", "alpha_im", "beta", "beta_im"])
def pairs_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    alpha_im: tl.int64,
    beta: tl.int64,
    beta_im: tl.int64,
    pointers,  # of operands of functions and of further results; None where there are none
    PARAMS: tl.constexpr,  # pairs.PairsParams
    FN: tl.constexpr,
    C_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    COMPUTE: tl.constexpr,  # real type of what the function sees
    SCALE: tl.constexpr,  # and of what alpha and beta are applied in, None where they are not
    RESULT: tl.constexpr,
    AUX: tl.constexpr,  # aux_operands.AuxParams, of X in the place of A
):
    pdl_begin()
    R: tl.constexpr = PARAMS.r
    TILE: tl.constexpr = PARAMS.tile
    RANK: tl.constexpr = len(TILE)
    block = tl.program_id(0)
    if PARAMS.wide_index:
        block = block.to(tl.int64)

    # (1) Read the block along the source's run, each element once, and permute it to D's order.
    R_OF_X: tl.constexpr = PARAMS.r_of_x
    TILE_OF_X: tl.constexpr = PARAMS.tile_of_x
    ORDER: tl.constexpr = PARAMS.order
    KIND_OF_X: tl.constexpr = PARAMS.kinds[0]
    KIND_OF_C: tl.constexpr = PARAMS.kinds[1]
    KIND: tl.constexpr = PARAMS.kinds[2]
    UNIT: tl.constexpr = 2 if KIND_OF_X == "pairs" else 1  # elements of the pointer in one of X
    re, im = load_pair(x, block, R_OF_X, 0, TILE_OF_X, PARAMS.wide[0], KIND_OF_X)
    if PARAMS.conjugate:
        im = -im
    if PARAMS.fold > 0:  # the products with the other factor's real part are followed by those with its imaginary part
        by_im, im_by_im = load_pair(x + PARAMS.fold * UNIT, block, R_OF_X, 0, TILE_OF_X, PARAMS.wide[0], KIND_OF_X)
        if PARAMS.conjugate:
            im_by_im = -im_by_im
        if PARAMS.negate:
            re += im_by_im
            im -= by_im
        else:
            re -= im_by_im
            im += by_im
    if PARAMS.thirds > 0:  # re re, im im and (re + im) (re + im)
        im_im, _ = load_pair(x + PARAMS.thirds, block, R_OF_X, 0, TILE_OF_X, PARAMS.wide[0], KIND_OF_X)
        every, _ = load_pair(x + 2 * PARAMS.thirds, block, R_OF_X, 0, TILE_OF_X, PARAMS.wide[0], KIND_OF_X)
        im = every - re - im_im
        re -= im_im
    re = permute_dims(re, ORDER).to(COMPUTE)
    im = permute_dims(im, ORDER).to(COMPUTE)

    # (2) Apply the function, the scaling, what is added, and the epilogue.
    AUX_X: tl.constexpr = AUX.a
    AUX_C: tl.constexpr = AUX.c
    PARTS: tl.constexpr = PARAMS.parts
    if FN is not None:
        aux_args = aux_parts(pointers, block, AUX_X, PARAMS, RANK, block_offsets, block_mask)
        re, im = applied(FN, PARAMS.fn_complex, PARAMS.of_reals[0], re, im, aux_args)
    if SCALE is not None:
        re, im = times(re.to(SCALE), im.to(SCALE), scalar(alpha, SCALE), scalar(alpha_im, SCALE))
        if c is not None:
            c_re, c_im = load_pair(c, block, R, 2, TILE, PARAMS.wide[2], KIND_OF_C)
            c_re = c_re.to(SCALE)
            c_im = c_im.to(SCALE)
            if C_FN is not None:
                aux_c = aux_parts(pointers, block, AUX_C, PARAMS, RANK, block_offsets, block_mask)
                c_re, c_im = applied(C_FN, PARAMS.c_fn_complex, PARAMS.of_reals[1], c_re, c_im, aux_c)
            c_re, c_im = times(c_re.to(SCALE), c_im.to(SCALE), scalar(beta, SCALE), scalar(beta_im, SCALE))
            re += c_re
            im += c_im
    if EPILOGUE is not None:
        re, im = ended(
            re, im, pointers, block, EPILOGUE, PARAMS.of_reals[2], PARTS, AUX, PARAMS, TILE, block_offsets, block_mask
        )

    # (3) Write it in D's order: once, as two or three real numbers, or as the two rows of the matrix that multiplies a
    # pair (re, im) by it.
    offsets = tl.broadcast_to(spread_offsets(block, R, 3, RANK, PARAMS.wide[3]), TILE)
    mask = tl.broadcast_to(spread_mask(block, R, ANY, RANK), TILE)
    if PARAMS.form == "plain":
        store_pair(d, re, im, offsets, mask, RESULT, KIND, RANK)
    elif PARAMS.form == "halves" or PARAMS.form == "thirds":
        tl.store(d + offsets, re.to(RESULT), mask=mask)
        tl.store(d + offsets + PARAMS.jump, im.to(RESULT), mask=mask)
        if PARAMS.form == "thirds":
            tl.store(d + offsets + 2 * PARAMS.jump, (re + im).to(RESULT), mask=mask)
    elif PARAMS.form == "along":
        factor_re = re
        factor_im = -im
        if PARAMS.negate:
            factor_re = -factor_re
            factor_im = -factor_im
        store_pair(d, re, factor_im, offsets, mask, RESULT, KIND, RANK)
        store_pair(d, im, factor_re, offsets + PARAMS.jump, mask, RESULT, KIND, RANK)
    else:
        store_pair(d, re, im, offsets, mask, RESULT, KIND, RANK)
        if PARAMS.negate:
            store_pair(d, im, -re, offsets + PARAMS.jump, mask, RESULT, KIND, RANK)
        else:
            store_pair(d, -im, re, offsets + PARAMS.jump, mask, RESULT, KIND, RANK)

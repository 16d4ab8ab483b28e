"""Complex elements within a kernel: two tiles of reals, the real and the imaginary parts.

A tensor of complex numbers lies interleaved (re, im, re, im). A complex64 travels as one word of 64 bits, so that runs
are as long as they look; a complex128, or a complex64 at four bytes, as a last dimension of two. Which of the three it
is, is its kind: see `common.complex_elements`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import along


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

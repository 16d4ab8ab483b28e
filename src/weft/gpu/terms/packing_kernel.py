"""float32 values to terms of a shorter type, and the verdict whether float16 terms lose too much: on the device.

    words   [scheme that serves, bits of what its sums are multiplied by, bits of the largest |A|, of the largest |B|,
             for each row of A and then each column of B: how many values are near to the largest]

clear_kernel     zeros
peak_kernel      the largest magnitude: its bits are ordered as the magnitudes are, with infinity and NaN last
terms_kernel     the terms; of scaled values it counts those that are near
verdict_kernel   reads peaks and counts, and writes the first two words

Programs stay and take one tile after the other, so that a launch that has nothing to do is over at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import pdl_begin


@triton.jit(do_not_specialize=["alpha", "beta"])
def clear_kernel(words, alpha: tl.int64, beta: tl.int64, pointers, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    pdl_begin()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(words + at, tl.zeros((BLOCK,), tl.int32), mask=at < COUNT)


@triton.jit
def exponent_of(peak):
    """The power of two that the magnitude with these bits is scaled by: the result is 2^14 or more, below 2^15."""
    return tl.minimum(tl.maximum(14 - ((peak >> 23) - 127), -100), 100)


@triton.jit
def power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def tile_of(tile, PACK: tl.constexpr):
    """Batch, rows, indices of k, and which of them there are."""
    K_TILES: tl.constexpr = (PACK.k + PACK.tile - 1) // PACK.tile
    ROW_TILES: tl.constexpr = (PACK.rows + PACK.tile - 1) // PACK.tile
    batch = tile // (K_TILES * ROW_TILES)
    within = tile % (K_TILES * ROW_TILES)
    rows = within // K_TILES * PACK.tile + tl.arange(0, PACK.tile)
    k = within % K_TILES * PACK.tile + tl.arange(0, PACK.tile)
    return batch, rows, k, (rows < PACK.rows)[:, None] & (k < PACK.k)[None, :]


@triton.jit
def offsets_of(batch, rows, k, STEPS: tl.constexpr):
    across = (rows.to(tl.int64) * STEPS[1])[:, None] + (k.to(tl.int64) * STEPS[2])[None, :]
    return batch.to(tl.int64) * STEPS[0] + across


@triton.jit(do_not_specialize=["alpha", "beta"])
def peak_kernel(x, words, alpha: tl.int64, beta: tl.int64, pointers, PACK: tl.constexpr):
    pdl_begin()
    TILE: tl.constexpr = PACK.tile
    READ: tl.constexpr = PACK.read
    most = tl.zeros([TILE, TILE], tl.int32)
    for tile in range(tl.program_id(0), PACK.tiles, PACK.programs):
        batch, rows, k, mask = tile_of(tile, PACK)
        value = tl.load(x + offsets_of(batch, rows, k, READ), mask=mask, other=0.0)
        most = tl.maximum(most, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.atomic_max(words + 2 + PACK.side, tl.max(tl.max(most, 1), 0), sem="relaxed")


@triton.jit(do_not_specialize=["alpha", "beta"])
def terms_kernel(
    x,  # (batch, rows, k)
    words,  # None where nothing is scaled and there is no verdict
    terms,  # (terms, batch, rows, k)
    alpha: tl.int64,
    beta: tl.int64,
    pointers,
    PACK: tl.constexpr,  # packing.PackParams
):
    pdl_begin()
    COUNT: tl.constexpr = PACK.terms
    READ: tl.constexpr = PACK.read
    WRITTEN: tl.constexpr = PACK.written
    tiles = PACK.tiles
    scale = 1.0
    if PACK.scaled:
        scale = power_of_two(exponent_of(tl.load(words + 2 + PACK.side)))
    elif words is not None:
        tiles = tl.where(tl.load(words) == 0, tiles, 0)
    for tile in range(tl.program_id(0), tiles, PACK.programs):
        batch, rows, k, mask = tile_of(tile, PACK)
        rest = tl.load(x + offsets_of(batch, rows, k, READ), mask=mask, other=0.0) * scale
        if PACK.scaled:
            near = tl.sum((tl.abs(rest) >= PACK.near).to(tl.int32), 1)
            counts = words + PACK.first_count + batch * PACK.rows + rows
            tl.atomic_add(counts, near, mask=rows < PACK.rows, sem="relaxed")
        to = terms + offsets_of(batch, rows, k, WRITTEN)
        for i in tl.static_range(COUNT):
            term = rest.to(PACK.term)
            tl.store(to + i * PACK.apart, term, mask=mask)
            rest = (rest - term.to(tl.float32)) * PACK.shift


@triton.jit(do_not_specialize=["alpha", "beta"])
def verdict_kernel(
    words, alpha: tl.int64, beta: tl.int64, pointers, COUNTS: tl.constexpr, LEAST: tl.constexpr, RANGE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Scheme 1 serves where each row and each column has `LEAST` near values, and both peaks are within `RANGE` powers
    of two of 1."""
    pdl_begin()
    least = tl.full((BLOCK,), LEAST, tl.int32)
    for start in range(0, COUNTS, BLOCK):
        at = start + tl.arange(0, BLOCK)
        least = tl.minimum(least, tl.load(words + 4 + at, mask=at < COUNTS, other=LEAST))
    a = tl.load(words + 2)
    b = tl.load(words + 3)
    top = tl.maximum(a, b) >> 23
    low = tl.minimum(a, b) >> 23
    serves = (tl.min(least, 0) >= LEAST) & (top < 127 + RANGE) & (low >= 127 - RANGE)
    tl.store(words, serves.to(tl.int32))
    tl.store(words + 1, (127 - tl.where(serves, exponent_of(a) + exponent_of(b), 0)) << 23)

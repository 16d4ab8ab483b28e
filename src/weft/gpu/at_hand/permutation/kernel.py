"""The permutation at hand: a tile is loaded in the order of X and stored in that of D, for any extents."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.at_hand.device import block_of, spread_mask, spread_offsets
from weft.gpu.common.device import load_or_zero, scalar
from weft.gpu.common.pdl import pdl_begin


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def hand_permute_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # extents and strides, see `axes`
    PARAMS: tl.constexpr,  # HandPermuteParams
    FN: tl.constexpr,
    COMPUTE: tl.constexpr,  # what the function sees
    RESULT: tl.constexpr,
    SCALE: tl.constexpr,  # what alpha and beta are applied in, None where they are not
    CONJUGATE: tl.constexpr,  # values are pairs of reals along the innermost mode; the second is negated
):
    """D = alpha * fn(X permuted) + beta * C."""
    pdl_begin()
    # (1) Find the tile.
    LOAD: tl.constexpr = PARAMS.load
    STORE: tl.constexpr = PARAMS.store
    left, run = block_of(tl.program_id(0), numbers, LOAD, 3)
    left, along_x = block_of(left, numbers, LOAD, 2)
    outer, along_d = block_of(left, numbers, LOAD, 1)
    starts = (outer, along_d * PARAMS.tile[0], along_x * PARAMS.tile[1], run * PARAMS.tile[2])

    # (2) Load it, each element of X once, and exchange its dimensions.
    offsets_x = spread_offsets(starts, numbers, LOAD, 0, 3, PARAMS.wide[0])
    value = load_or_zero(x + offsets_x, spread_mask(starts, numbers, LOAD, -1, 3))
    value = tl.permute(value, (1, 0, 2))

    # (3) Apply the function and the scaling, and add C.
    if FN is not None:
        value = FN(value.to(COMPUTE))
    offsets_d = spread_offsets(starts, numbers, STORE, 3, 3, PARAMS.wide[3])
    mask = spread_mask(starts, numbers, STORE, -1, 3)
    value = tl.broadcast_to(value, offsets_d.shape)
    if CONJUGATE:
        value = tl.where(offsets_d % 2 == 1, -value, value)
    if SCALE is not None:
        value = value.to(SCALE) * scalar(alpha, SCALE)
        if c is not None:
            offsets_c = spread_offsets(starts, numbers, STORE, 2, 3, PARAMS.wide[2])
            value += load_or_zero(c + offsets_c, mask).to(SCALE) * scalar(beta, SCALE)

    # (4) Store it.
    tl.store(d + offsets_d, value.to(RESULT), mask=mask)

"""The permutation kernel: one block of D per program, read along the source's run and written along D's.

Both runs are axes of the tile. Loads take the layout that suits the source, stores the one that suits D; between them
the block passes once through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.device import load_or_zero, scalar, spread_mask, spread_offsets


@triton.jit(do_not_specialize=["alpha", "beta"])
def permute_kernel(
    x,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    CUT: tl.constexpr,  # permute.PermuteCut
    FN: tl.constexpr,
    COMPUTE: tl.constexpr,  # what the function sees
    SCALE: tl.constexpr,  # what alpha and beta are applied in, None where they are not
    RESULT: tl.constexpr,
    CONJUGATE: tl.constexpr,  # values are pairs of reals along the innermost mode; the second is negated
):
    R: tl.constexpr = CUT.r
    RANK: tl.constexpr = len(CUT.tile)
    block = tl.program_id(0)
    if CUT.wide_index:
        block = block.to(tl.int64)

    # (1) Read the block, each element of the source once.
    value = load_or_zero(x + spread_offsets(block, R, 0, RANK, CUT.wide[0]), spread_mask(block, R, 0, RANK))

    # (2) Apply the function, the scaling and what is added.
    if FN is not None:
        value = FN(value.to(COMPUTE))
    TILE: tl.constexpr = CUT.tile
    value = tl.broadcast_to(value, TILE)
    offsets_d = tl.broadcast_to(spread_offsets(block, R, 3, RANK, CUT.wide[3]), TILE)
    if CONJUGATE:
        value = tl.where(offsets_d % 2 == 1, -value, value)
    if SCALE is not None:
        value = value.to(SCALE) * scalar(alpha, SCALE)
        if c is not None:
            offsets_c = spread_offsets(block, R, 2, RANK, CUT.wide[2])
            addend = load_or_zero(c + offsets_c, spread_mask(block, R, 2, RANK))
            value += addend.to(SCALE) * scalar(beta, SCALE)

    # (3) Write it in D's order.
    mask = tl.broadcast_to(spread_mask(block, R, 4, RANK), TILE)
    tl.store(d + offsets_d, value.to(RESULT), mask=mask)

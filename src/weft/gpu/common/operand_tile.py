"""Where a tile of A or B lies in memory, and which of its elements exist."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import batch_offset, dim_mask, dim_offsets


@triton.jit
def tile_offsets(
    place, OUTER: tl.constexpr, K: tl.constexpr, BATCH: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets in a tensor of a tile of an operand, at (batch, outer, k), rows along its own dim."""
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if OUTER.present[TENSOR]:
        offsets = offsets + dim_offsets(place[1], tl.arange(0, OUTER.tile), OUTER, TENSOR, WIDE)[:, None]
    if K.present[TENSOR]:
        offsets = offsets + dim_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[None, :]
    return offsets


@triton.jit
def tile_mask(place, OUTER: tl.constexpr, K: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    mask = place[0] >= 0
    if OUTER.present[TENSOR] and not OUTER.exact:
        mask = mask & dim_mask(place[1], tl.arange(0, OUTER.tile), OUTER)[:, None]
    if K.present[TENSOR] and not K.exact:
        mask = mask & dim_mask(place[2], tl.arange(0, K.tile), K)[None, :]
    return mask


@triton.jit
def a_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of A, at (batch, m, k)."""
    M: tl.constexpr = PARAMS.m
    K: tl.constexpr = PARAMS.k_of_a
    BATCH: tl.constexpr = PARAMS.batch
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    return tile_offsets(place, M, K, BATCH, TENSOR, WIDE)


@triton.jit
def a_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = PARAMS.m
    K: tl.constexpr = PARAMS.k_of_a
    return tile_mask(place, M, K, TENSOR)


@triton.jit
def b_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, at (batch, n, k)."""
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    BATCH: tl.constexpr = PARAMS.batch
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if N.present[TENSOR]:
        offsets = offsets + dim_offsets(place[1], tl.arange(0, N.tile), N, TENSOR, WIDE)[None, :]
    if K.present[TENSOR]:
        offsets = offsets + dim_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[:, None]
    return offsets


@triton.jit
def b_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    N: tl.constexpr = PARAMS.n
    K: tl.constexpr = PARAMS.k
    mask = place[0] >= 0
    if N.present[TENSOR] and not N.exact:
        mask = mask & dim_mask(place[1], tl.arange(0, N.tile), N)[None, :]
    if K.present[TENSOR] and not K.exact:
        mask = mask & dim_mask(place[2], tl.arange(0, K.tile), K)[:, None]
    return mask

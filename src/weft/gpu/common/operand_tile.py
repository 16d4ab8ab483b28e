"""Where a tile of A or B lies in memory, and which of its elements exist."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import batch_offset, side_mask, side_offsets


@triton.jit
def tile_offsets(
    place, OUTER: tl.constexpr, K: tl.constexpr, BATCH: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets in a tensor of a tile of an operand, its block (batch, outer, k), rows along its own side."""
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if OUTER.present[TENSOR]:
        offsets = offsets + side_offsets(place[1], tl.arange(0, OUTER.tile), OUTER, TENSOR, WIDE)[:, None]
    if K.present[TENSOR]:
        offsets = offsets + side_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[None, :]
    return offsets


@triton.jit
def tile_mask(place, OUTER: tl.constexpr, K: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    mask = place[0] >= 0
    if OUTER.present[TENSOR] and not OUTER.exact:
        mask = mask & side_mask(place[1], tl.arange(0, OUTER.tile), OUTER)[:, None]
    if K.present[TENSOR] and not K.exact:
        mask = mask & side_mask(place[2], tl.arange(0, K.tile), K)[None, :]
    return mask


@triton.jit
def a_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of A, its block (batch, m, k)."""
    M: tl.constexpr = CUT.m
    K: tl.constexpr = CUT.k_of_a
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    return tile_offsets(place, M, K, BATCH, TENSOR, WIDE)


@triton.jit
def a_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = CUT.m
    K: tl.constexpr = CUT.k_of_a
    return tile_mask(place, M, K, TENSOR)


@triton.jit
def b_offsets(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, its block (batch, n, k)."""
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    BATCH: tl.constexpr = CUT.batch
    WIDE: tl.constexpr = CUT.wide[TENSOR]
    offsets = batch_offset(place[0], BATCH, TENSOR, WIDE)
    if N.present[TENSOR]:
        offsets = offsets + side_offsets(place[1], tl.arange(0, N.tile), N, TENSOR, WIDE)[None, :]
    if K.present[TENSOR]:
        offsets = offsets + side_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)[:, None]
    return offsets


@triton.jit
def b_mask(place, CUT: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    N: tl.constexpr = CUT.n
    K: tl.constexpr = CUT.k
    mask = place[0] >= 0
    if N.present[TENSOR] and not N.exact:
        mask = mask & side_mask(place[1], tl.arange(0, N.tile), N)[None, :]
    if K.present[TENSOR] and not K.exact:
        mask = mask & side_mask(place[2], tl.arange(0, K.tile), K)[:, None]
    return mask

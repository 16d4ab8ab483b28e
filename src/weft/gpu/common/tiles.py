"""Device functions for tiles: their order, their conversion, loads of operands and stores of results."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from weft.gpu.common.device import batch_offset, dim_mask, dim_offsets, finish, spread_mask, spread_offsets
from weft.planner.target import interpreting


@triton.jit
def tile_coords(program, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The output tile of a program, (batch, m, n), from the numbers of tiles along m and n. Programs take groups of
    `GROUP` rows of tiles, so that those that run together share operands in L2."""
    batch_block = program // (ROWS * COLUMNS)
    within = program % (ROWS * COLUMNS)
    first = within // (GROUP * COLUMNS) * GROUP
    height = tl.minimum(ROWS - first, GROUP)
    m_block = first + within % (GROUP * COLUMNS) % height
    n_block = within % (GROUP * COLUMNS) // height
    return batch_block, m_block, n_block


@tl.core.builtin
def _materialize(tile: Any, _semantic: Any = None) -> Any:
    bits = tile.dtype.primitive_bitwidth
    if bits > 32 or not _multiplies_by_groups(_semantic):
        return tile
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=32 // bits, _semantic=_semantic
    )


@tl.core.builtin
def _sync_for_wgmma(_semantic: Any = None) -> None:
    if _multiplies_by_groups(_semantic):
        tl.debug_barrier(_semantic=_semantic)


def _multiplies_by_groups(semantic: Any) -> bool:
    """Whether matrix units serve groups of four warps: on NVIDIA GPUs from Hopper on."""
    options = semantic.builder.options
    return options.backend_name == "cuda" and int(options.arch.removeprefix("sm")) >= 90


materialize = (lambda tile: tile) if interpreting() else _materialize
"""A tile of an operand that is in registers where the program is now. No instruction, and nothing on other devices."""

sync_for_wgmma = (lambda: None) if interpreting() else _sync_for_wgmma
"""All threads of the program meet. Nothing on other devices, whose matrix units read registers alone."""


# Four elements: the bytes x + 128, each under the byte of 1024 in float16; then less 1024 + 128.
_BYTES_TO_HALVES = """
{
    .reg .b32 bytes, offset;
    mov.b32 offset, 0x64806480;
    xor.b32 bytes, $2, 0x80808080;
    prmt.b32 $0, bytes, 0x64646464, 0x4140;
    prmt.b32 $1, bytes, 0x64646464, 0x4342;
    sub.f16x2 $0, $0, offset;
    sub.f16x2 $1, $1, offset;
}
"""


@tl.core.builtin
def _converted(tile: Any, dtype: Any, _semantic: Any = None) -> Any:
    dtype = tl.core._unwrap_if_constexpr(dtype)
    bytes_to_halves = tile.dtype == tl.int8 and dtype == tl.float16
    if not bytes_to_halves or _semantic.builder.options.backend_name != "cuda":
        return tile.to(dtype, _semantic=_semantic)
    return tl.inline_asm_elementwise(
        _BYTES_TO_HALVES, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4, _semantic=_semantic
    )


converted = (lambda tile, dtype: tile.to(dtype)) if interpreting() else _converted
"""A tile, or one element, as `dtype`."""


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


@triton.jit
def block_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of an output tile, (batch, m, n), every axis as a dimension of its own."""
    batch_block, m_block, n_block = place
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    BATCH: tl.constexpr = PARAMS.batch
    RANK: tl.constexpr = len(PARAMS.stored)
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = spread_offsets(m_block, M, TENSOR, RANK, WIDE) + spread_offsets(n_block, N, TENSOR, RANK, WIDE)
    return offsets + batch_offset(batch_block, BATCH, TENSOR, WIDE)


@triton.jit
def block_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Which of them exist."""
    M: tl.constexpr = PARAMS.m
    N: tl.constexpr = PARAMS.n
    RANK: tl.constexpr = len(PARAMS.stored)
    return spread_mask(place[1], M, TENSOR, RANK) & spread_mask(place[2], N, TENSOR, RANK)


@triton.jit
def store_block(
    acc, tensors, factors, place, PARAMS: tl.constexpr, functions, RESULT: tl.constexpr, AUX: tl.constexpr
):
    """See the output tile (batch, m, n) with every axis as a dimension of its own, apply C and the epilogue, store it
    in D's order. `tensors`, `factors` and `functions` are those of `finish`."""
    STORED: tl.constexpr = PARAMS.stored
    finish(
        tl.reshape(acc, STORED), tensors, factors, place, PARAMS, block_offsets, block_mask, functions, RESULT, AUX
    )


@triton.jit
def partial_offsets(program, PARAMS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Where some columns of a program's split-K partial lie in the workspace: tile after tile, row after row."""
    rows = tl.arange(0, PARAMS.m.tile)[:, None]
    columns = FIRST + tl.arange(0, COLUMNS)[None, :]
    return tl.cast(program, tl.int64) * (PARAMS.m.tile * PARAMS.n.tile) + rows * PARAMS.n.tile + columns

"""Device functions for tiles: their order, their conversion, loads of operands and stores of results.

And the second kernel of split sums, which adds the partial sums of every tile of D in a fixed order and finishes it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from weft.gpu.common import device
from weft.gpu.common.device import pdl_begin
from weft.planner.target import interpreting


@triton.jit
def tile_coords(program, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The output tile of a program, (batch, m, n), from the numbers of tiles along m and n. Programs take groups of
    `GROUP` rows of tiles, of -`GROUP` columns where it is negative, so that those that run together share operands in
    L2."""
    batch_block = program // (ROWS * COLUMNS)
    within = program % (ROWS * COLUMNS)
    if GROUP > 0:
        m_block, n_block = _in_groups(within, ROWS, COLUMNS, GROUP)
    else:
        n_block, m_block = _in_groups(within, COLUMNS, ROWS, -GROUP)
    return batch_block, m_block, n_block


@triton.jit
def _in_groups(within, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    first = within // (GROUP * COLUMNS) * GROUP
    height = tl.minimum(ROWS - first, GROUP)
    return first + within % (GROUP * COLUMNS) % height, within % (GROUP * COLUMNS) // height


@tl.core.builtin
def _materialize(tile: Any, _semantic: Any = None) -> Any:
    bits = tile.dtype.primitive_bitwidth
    if bits > 32 or not _multiplies_by_groups(_semantic):
        return tile
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=32 // bits, _semantic=_semantic
    )


@tl.core.builtin
def _settled(acc: Any, _semantic: Any = None) -> Any:
    if acc.dtype.primitive_bitwidth != 32 or not 90 <= _cuda_architecture(_semantic) < 100:
        return acc
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [acc], dtype=acc.dtype, is_pure=False, pack=1, _semantic=_semantic
    )


@tl.core.builtin
def _sync_for_wgmma(_semantic: Any = None) -> None:
    if _multiplies_by_groups(_semantic):
        tl.debug_barrier(_semantic=_semantic)


def _multiplies_by_groups(semantic: Any) -> bool:
    """Whether matrix units serve groups of four warps: on NVIDIA GPUs from Hopper on."""
    return _cuda_architecture(semantic) >= 90


def _cuda_architecture(semantic: Any) -> int:
    """The compute capability that is compiled for, times ten; 0 where it is no NVIDIA GPU's."""
    options = semantic.builder.options
    return int(options.arch.removeprefix("sm")) if options.backend_name == "cuda" else 0


materialize = (lambda tile: tile) if interpreting() else _materialize
"""A tile of an operand that is in registers where the program is now. No instruction, and nothing on other devices."""

settled = (lambda acc: acc) if interpreting() else _settled
"""A sum whose products are all made where the program is now. No instruction, and nothing on devices but Hopper's.

A wgmma reads the factor that is in registers while the program goes on. Up to 3.9 Triton starts the next step before
the last has read its own, and assemblers before CUDA 13.3 put both into the same registers: wrong sums now and then
(issue 9433 of triton-lang/triton, seen on an H200). So a sum is settled in each step where A comes in registers.
"""

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
    place, OWN: tl.constexpr, K: tl.constexpr, BATCH: tl.constexpr, TENSOR: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr = True,
):  # fmt: skip
    """Offsets in a tensor of a tile of an operand, at (batch, its own dim, k), rows along its own dim; along k where
    `ROWS` is false."""
    offsets = device.batch_offset(place[0], BATCH, TENSOR, WIDE)
    if OWN.present[TENSOR]:
        own = device.dim_offsets(place[1], tl.arange(0, OWN.tile), OWN, TENSOR, WIDE)
        offsets = offsets + (own[:, None] if ROWS else own[None, :])
    if K.present[TENSOR]:
        depth = device.dim_offsets(place[2], tl.arange(0, K.tile), K, TENSOR, WIDE)
        offsets = offsets + (depth[None, :] if ROWS else depth[:, None])
    return offsets


@triton.jit
def tile_mask(
    place, OWN: tl.constexpr, K: tl.constexpr, BATCH: tl.constexpr, TENSOR: tl.constexpr, ROWS: tl.constexpr = True
):
    """The mask of a tile's elements that exist."""
    mask = place[0] >= 0
    if OWN.present[TENSOR] and not OWN.exact:
        own = device.dim_mask(place[1], tl.arange(0, OWN.tile), OWN)
        mask = mask & (own[:, None] if ROWS else own[None, :])
    if K.present[TENSOR] and not K.exact:
        depth = device.dim_mask(place[2], tl.arange(0, K.tile), K)
        mask = mask & (depth[None, :] if ROWS else depth[:, None])
    return mask


@triton.jit
def a_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of A, at (batch, m, k)."""
    return tile_offsets(place, PARAMS.m, PARAMS.k_of_a, PARAMS.batch, TENSOR, PARAMS.wide[TENSOR])


@triton.jit
def a_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The mask of the elements that exist in a tile of A."""
    return tile_mask(place, PARAMS.m, PARAMS.k_of_a, PARAMS.batch, TENSOR)


@triton.jit
def b_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of a tile of B, at (batch, n, k)."""
    return tile_offsets(place, PARAMS.n, PARAMS.k, PARAMS.batch, TENSOR, PARAMS.wide[TENSOR], False)


@triton.jit
def b_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The mask of the elements that exist in a tile of B."""
    return tile_mask(place, PARAMS.n, PARAMS.k, PARAMS.batch, TENSOR, False)


@triton.jit
def rows_and_columns(a, b, place, rows, columns, PARAMS: tl.constexpr):
    """Pointers to `rows` of A and `columns` of B of an output tile (batch, m, n) at the start of k, and which exist."""
    batch_block, m_block, n_block = place
    a_rows = a + device.batch_offset(batch_block, PARAMS.batch, 0, PARAMS.wide[0])
    a_rows += device.dim_offsets(m_block, rows, PARAMS.m, 0, PARAMS.wide[0])
    b_columns = b + device.batch_offset(batch_block, PARAMS.batch, 1, PARAMS.wide[1])
    b_columns += device.dim_offsets(n_block, columns, PARAMS.n, 1, PARAMS.wide[1])
    return a_rows, b_columns, device.dim_mask(m_block, rows, PARAMS.m), device.dim_mask(n_block, columns, PARAMS.n)


@triton.jit
def block_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of an output tile, (batch, m, n), every axis as a dimension of its own."""
    RANK: tl.constexpr = len(PARAMS.stored)
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = device.spread_offsets(place[1], PARAMS.m, TENSOR, RANK, WIDE)
    offsets = offsets + device.spread_offsets(place[2], PARAMS.n, TENSOR, RANK, WIDE)
    return offsets + device.batch_offset(place[0], PARAMS.batch, TENSOR, WIDE)


@triton.jit
def block_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The mask of the elements that exist in a block."""
    RANK: tl.constexpr = len(PARAMS.stored)
    return device.spread_mask(place[1], PARAMS.m, TENSOR, RANK) & device.spread_mask(place[2], PARAMS.n, TENSOR, RANK)


@triton.jit
def store_block(acc, tensors, factors, place, PARAMS: tl.constexpr, OP: tl.constexpr):
    """See the output tile (batch, m, n) with every axis as a dimension of its own, apply C and the epilogue, store it
    in D's order. `tensors` and `factors` are those of `finish`."""
    device.finish(tl.reshape(acc, PARAMS.stored), tensors, factors, place, PARAMS, block_offsets, block_mask, OP)


@triton.jit
def partial_offsets(program, PARAMS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Where some columns of a program's split-K partial are stored in the workspace: tile after tile, row after row."""
    rows = tl.arange(0, PARAMS.m.tile)[:, None]
    columns = FIRST + tl.arange(0, COLUMNS)[None, :]
    return tl.cast(program, tl.int64) * (PARAMS.m.tile * PARAMS.n.tile) + rows * PARAMS.n.tile + columns


@triton.jit
def range_start(number, STREAM_K: tl.constexpr):
    """The first step of a work range."""
    return number * STREAM_K.base + tl.minimum(number, STREAM_K.longer)


@triton.jit
def range_of(step, STREAM_K: tl.constexpr):
    """The work range that has a step."""
    LONGER: tl.constexpr = STREAM_K.longer * (STREAM_K.base + 1)
    short = STREAM_K.longer + (step - LONGER) // STREAM_K.base
    return tl.where(step < LONGER, step // (STREAM_K.base + 1), short)


@triton.jit
def splits_of(block, STREAM_K: tl.constexpr):
    """How many partials the sum of an output tile has."""
    first = block // STREAM_K.n_tiles * STREAM_K.steps
    return range_of(first + STREAM_K.steps - 1, STREAM_K) - range_of(first, STREAM_K) + 1


@triton.jit
def split_of_tile(work_tile, number, STREAM_K: tl.constexpr):
    """The share of a work range in a work tile: the number of its part of the sum, its first step, and how many
    steps."""
    before = work_tile * STREAM_K.steps
    first = tl.maximum(range_start(number, STREAM_K) - before, 0)
    end = tl.minimum(range_start(number + 1, STREAM_K) - before, STREAM_K.steps)
    return number - range_of(before, STREAM_K), first, end - first


@triton.jit
def subtile_offsets(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in a tensor of some rows of an output tile: (batch tile, m tile, n tile, rows, columns). They are a
    matrix, along what the tensor does not have of one row or column."""
    batch_block, m_block, n_block, rows, columns = place
    WIDE: tl.constexpr = PARAMS.wide[TENSOR]
    offsets = device.batch_offset(batch_block, PARAMS.batch, TENSOR, WIDE)
    if PARAMS.m.present[TENSOR]:
        offsets = offsets + device.lane_offsets(m_block, rows, PARAMS.m, TENSOR, WIDE)[:, None]
    if PARAMS.n.present[TENSOR]:
        offsets = offsets + device.lane_offsets(n_block, columns, PARAMS.n, TENSOR, WIDE)[None, :]
    elif not PARAMS.m.present[TENSOR]:
        offsets = offsets + (rows * 0)[:, None]
    return offsets


@triton.jit
def subtile_mask(place, PARAMS: tl.constexpr, TENSOR: tl.constexpr):
    """The mask of the elements that exist in a subtile."""
    N: tl.constexpr = PARAMS.n
    if PARAMS.m.present[TENSOR] and N.present[TENSOR]:
        return device.dim_mask(place[1], place[3], PARAMS.m)[:, None] & device.dim_mask(place[2], place[4], N)[None, :]
    elif PARAMS.m.present[TENSOR]:
        return device.dim_mask(place[1], place[3], PARAMS.m)[:, None]
    elif N.present[TENSOR]:
        return device.dim_mask(place[2], place[4], N)[None, :]
    else:
        return place[0] >= 0


@triton.jit(do_not_specialize=["alpha", "beta"])
def reduce_splits_kernel(
    partials,
    c,  # None where nothing is added
    d,
    alpha: tl.int64,
    beta: tl.int64,
    pointers,
    PARAMS: tl.constexpr,
    ROWS: tl.constexpr,  # of an output tile that one program takes: there are few tiles, and programs should be many
    COLUMNS: tl.constexpr,  # the same
    STORED: tl.constexpr,  # rows and columns of a partial, which may be fewer than those of an output tile
    STREAM_K: tl.constexpr,  # tells how many partials each output tile has; None where all have as many
    OP: tl.constexpr,  # KernelOperation
):
    """Add the partials of some rows and columns of an output tile, first to last, and finish them.

    Nothing past the end of D is read.
    """
    pdl_begin()
    ACROSS: tl.constexpr = PARAMS.n.tile // COLUMNS
    SUBTILES: tl.constexpr = PARAMS.m.tile // ROWS * ACROSS
    block = tl.program_id(0) // SUBTILES
    if PARAMS.wide_index:
        block = block.to(tl.int64)
    rows = tl.program_id(0) % SUBTILES // ACROSS * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % ACROSS * COLUMNS + tl.arange(0, COLUMNS)
    batch_block, m_block, n_block = tile_coords(block, PARAMS.m.blocks, PARAMS.n.blocks, PARAMS.group)
    place = (batch_block, m_block, n_block, rows, columns)
    inside = subtile_mask(place, PARAMS, 3)
    HEIGHT: tl.constexpr = STORED[0]
    WIDTH: tl.constexpr = STORED[1]
    here = partials + block.to(tl.int64) * (HEIGHT * WIDTH) + rows[:, None] * WIDTH + columns[None, :]
    acc = tl.load(here, mask=inside)
    count = PARAMS.splits
    if STREAM_K is not None:
        count = splits_of(block, STREAM_K)
    for _ in tl.range(1, count, loop_unroll_factor=4):
        here += PARAMS.blocks * HEIGHT * WIDTH
        if OP.reduce is None:
            acc += tl.load(here, mask=inside)
        else:
            acc = OP.reduce(acc, tl.load(here, mask=inside)).to(acc.dtype)
    device.finish(acc, (c, d, pointers), (alpha, beta), place, PARAMS, subtile_offsets, subtile_mask, OP)

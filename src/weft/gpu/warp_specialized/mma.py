"""Products of tiles in shared memory, and of values in registers with tiles in shared memory."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait


@gluon.jit
def accumulator(ROWS: gl.constexpr, COLUMNS: gl.constexpr, ACCUMULATE: gl.constexpr, LAYOUT: gl.constexpr):
    """Zeros that products are added to."""
    return warpgroup_mma_init(gl.full([ROWS, COLUMNS], 0, ACCUMULATE, LAYOUT))


@gluon.jit
def rows_of_a(tile, FIRST: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """Some rows of a tile of A, and the first indices of k of it: (rows, k), in shared memory."""
    if ALONG_K:
        if tile.shape[0] > ROWS:
            tile = tile.slice(FIRST, ROWS, 0)
        if tile.shape[1] > DEPTH:
            tile = tile.slice(0, DEPTH, 1)
        return tile
    else:
        if tile.shape[1] > ROWS:
            tile = tile.slice(FIRST, ROWS, 1)
        if tile.shape[0] > DEPTH:
            tile = tile.slice(0, DEPTH, 0)
        return tile.permute((1, 0))


@gluon.jit
def columns_of_b(tile, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """The first indices of k of a tile of B: (k, columns), in shared memory."""
    if ALONG_K:
        if tile.shape[1] > DEPTH:
            tile = tile.slice(0, DEPTH, 1)
        return tile.permute((1, 0))
    else:
        if tile.shape[0] > DEPTH:
            tile = tile.slice(0, DEPTH, 0)
        return tile


@gluon.jit
def multiply(
    x,  # (rows, k), in shared memory or in registers
    b_tiles,  # both parts of B along n
    stage,
    acc,
    acc_rest,
    PARAMS: gl.constexpr,
    DEPTH: gl.constexpr,  # indices of k
):
    """Begin to add the products of one step, asynchronously."""
    ALONG_K: gl.constexpr = PARAMS.tma.b_along_k
    acc = warpgroup_mma(x, columns_of_b(b_tiles[0].index(stage), DEPTH, ALONG_K), acc, is_async=True)
    if len(PARAMS.tma.n_parts) == 2:
        acc_rest = warpgroup_mma(x, columns_of_b(b_tiles[1].index(stage), DEPTH, ALONG_K), acc_rest, is_async=True)
    return acc, acc_rest


@gluon.jit
def wait_for_products(acc, acc_rest, PENDING: gl.constexpr, PARAMS: gl.constexpr):
    """Wait until the products of no more than `PENDING` steps are still being added."""
    if len(PARAMS.tma.n_parts) == 2:
        acc, acc_rest = warpgroup_mma_wait(2 * PENDING, deps=(acc, acc_rest))
        return warpgroup_mma_init(acc), warpgroup_mma_init(acc_rest)
    else:
        return warpgroup_mma_init(warpgroup_mma_wait(PENDING, deps=(acc,))), acc_rest


@gluon.jit
def in_other_registers(x, LAYOUT: gl.constexpr):
    """The same values in other registers.

    Registers that a matrix instruction reads must not be written before it is done, or the assembler runs such
    instructions one at a time. It sees through a mere copy, so the copy is an `xor` with a zero that it does not know:
    the grid is flat, and its third index is 0.
    """
    zero = gl.full(x.shape, gl.program_id(2).to(gl.int16), gl.int16, LAYOUT)
    return gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2)

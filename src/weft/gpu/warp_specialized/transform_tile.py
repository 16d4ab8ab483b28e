"""Apply a function to tiles in shared memory: a matrix instruction takes its right operand from nowhere else."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.gpu.common.device import dim_mask

WIDEST_ACCESS = 8  # elements of 16 bits that a lane reads or writes at once


@gluon.constexpr_function
def power_of_two_in(count):
    """The greatest that is no more."""
    return 1 << (count.bit_length() - 1)


@gluon.constexpr_function
def line_layout(height, width, warps):
    """The layout in registers of so many lines of shared memory: a lane has neighbours of one line."""
    access = min(WIDEST_ACCESS, height * width // (32 * warps))
    lanes = width // access
    return gl.BlockedLayout([1, access], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def transform_tiles(
    tiles,  # one or two, (k, n) or (n, k), in shared memory
    k_tile,
    K: gl.constexpr,
    ALONG_K: gl.constexpr,
    MASKED: gl.constexpr,
    WARPS: gl.constexpr,
    ELEMENTS: gl.constexpr,  # that a lane computes at once
    FN: gl.constexpr,
    PRODUCT: gl.constexpr,
):
    """Apply a function to all tiles of a step.

    All are read before the first is written, where there are registers for that. The compiler sees accesses to the
    whole pipeline, not to lines of it, and puts a barrier between a tile that is read and one that is written. These
    barriers are not needed: every element is read and written by the same lane.
    """
    TOTAL: gl.constexpr = tiles[0].numel + tiles[-1].numel if len(tiles) == 2 else tiles[0].numel
    if TOTAL <= ELEMENTS * 32 * WARPS:
        values = ()
        for i in gl.static_range(len(tiles)):
            values += (transformed_lines(tiles[i], 0, k_tile, K, ALONG_K, MASKED, WARPS, FN, PRODUCT),)
        for i in gl.static_range(len(tiles)):
            tiles[i].store(values[i])
    else:
        for i in gl.static_range(len(tiles)):
            transform_by_lines(tiles[i], k_tile, K, ALONG_K, MASKED, WARPS, ELEMENTS, FN, PRODUCT)


@gluon.jit
def transform_by_lines(
    tile, k_tile, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
    ELEMENTS: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr,
):  # fmt: skip
    """Apply a function to one tile, some lines after the other."""
    LINES: gl.constexpr = tile.shape[0]
    HEIGHT: gl.constexpr = min(LINES, power_of_two_in(ELEMENTS) * 32 * WARPS // tile.shape[1])
    for i in gl.static_range(LINES // HEIGHT):
        lines = tile.slice(i * HEIGHT, HEIGHT, 0)
        lines.store(transformed_lines(lines, i * HEIGHT, k_tile, K, ALONG_K, MASKED, WARPS, FN, PRODUCT))


@gluon.jit
def transformed_lines(
    lines, first, k_tile, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
    FN: gl.constexpr, PRODUCT: gl.constexpr,
):  # fmt: skip
    """Lines of a tile, from the `first` one on, in registers, the function applied."""
    LAYOUT: gl.constexpr = line_layout(lines.shape[0], lines.shape[1], WARPS)
    return transformed(lines.load(LAYOUT), first, k_tile, K, ALONG_K, MASKED, LAYOUT, FN, PRODUCT)


@gluon.jit
def transformed(
    value, first, k_tile, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, LAYOUT: gl.constexpr,
    FN: gl.constexpr, PRODUCT: gl.constexpr,
):  # fmt: skip
    """The function of values in registers, in the type of products. What lies past the end of k stays zero.

    Columns run along k, or else rows do, the first of which is number `first` of the tile.
    """
    HEIGHT: gl.constexpr = value.shape[0]
    WIDTH: gl.constexpr = value.shape[1]
    value = FN(value).to(PRODUCT)
    if MASKED:
        if ALONG_K:
            inside = dim_mask(k_tile, gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), K)[None, :]
        else:
            inside = dim_mask(k_tile, first + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT)), K)[:, None]
        value = gl.where(inside, value, gl.to_tensor(0.0).to(PRODUCT))
    return value

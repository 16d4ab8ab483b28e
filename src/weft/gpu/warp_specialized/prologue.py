"""Functions applied to boxes where they lie: matrix instructions take the right operand from shared memory alone."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.gpu.common.device import dim_mask

WIDEST_ACCESS = 8  # elements of 16 bits that a lane reads and writes at once


@gluon.constexpr_function
def power_of_two_in(count):
    """The greatest that is no more."""
    return 1 << (count.bit_length() - 1)


@gluon.constexpr_function
def registers_for(height, width, warps):
    """The layout of so many lines in registers: a lane has neighbours of one line."""
    access = min(WIDEST_ACCESS, height * width // (32 * warps))
    lanes = width // access
    return gl.BlockedLayout([1, access], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def apply(boxes, k_block, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
          AT_ONCE: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """Apply a function to all boxes of a step, so many elements of each lane at once. What lies past the end of k stays
    zero.

    All are read before the first is written where there are registers for that: the compiler sees no lines but the
    whole ring, and has all lanes wait between a box that is read and one that is written. Those waits are not needed:
    every element is one lane's alone.
    """
    TOTAL: gl.constexpr = boxes[0].numel + boxes[-1].numel if len(boxes) == 2 else boxes[0].numel
    if TOTAL <= AT_ONCE * 32 * WARPS:
        values = ()
        for i in gl.static_range(len(boxes)):
            values += (applied(boxes[i], 0, k_block, K, ALONG_K, MASKED, WARPS, FN, PRODUCT),)
        for i in gl.static_range(len(boxes)):
            boxes[i].store(values[i])
    else:
        for i in gl.static_range(len(boxes)):
            apply_in_turn(boxes[i], k_block, K, ALONG_K, MASKED, WARPS, AT_ONCE, FN, PRODUCT)


@gluon.jit
def apply_in_turn(box, k_block, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
                  AT_ONCE: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """Apply a function to one box, some lines after the other."""
    LINES: gl.constexpr = box.shape[0]
    HEIGHT: gl.constexpr = min(LINES, power_of_two_in(AT_ONCE) * 32 * WARPS // box.shape[1])
    for i in gl.static_range(LINES // HEIGHT):
        lines = box.slice(i * HEIGHT, HEIGHT, 0)
        lines.store(applied(lines, i * HEIGHT, k_block, K, ALONG_K, MASKED, WARPS, FN, PRODUCT))


@gluon.jit
def applied(lines, first, k_block, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
            FN: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """Lines of a box, from the `first` one on, the function applied."""
    LAYOUT: gl.constexpr = registers_for(lines.shape[0], lines.shape[1], WARPS)
    return applied_to(lines.load(LAYOUT), first, k_block, K, ALONG_K, MASKED, LAYOUT, FN, PRODUCT)


@gluon.jit
def applied_to(value, first, k_block, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr,
               LAYOUT: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """The same of lines that are in registers."""
    HEIGHT: gl.constexpr = value.shape[0]
    WIDTH: gl.constexpr = value.shape[1]
    value = FN(value).to(PRODUCT)
    if MASKED:
        if ALONG_K:
            inside = dim_mask(k_block, gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), K)[None, :]
        else:
            inside = dim_mask(k_block, first + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT)), K)[:, None]
        value = gl.where(inside, value, gl.to_tensor(0.0).to(PRODUCT))
    return value

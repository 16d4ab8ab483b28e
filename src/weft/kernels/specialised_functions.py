"""Functions applied to boxes where they lie: matrix instructions take the right operand from shared memory alone."""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.device import side_mask

WIDEST_ACCESS = tl.constexpr(8)  # elements of 16 bits that a lane reads and writes at once


@gluon.jit
def apply(box, k_block, K: gl.constexpr, ALONG_K: gl.constexpr, MASKED: gl.constexpr, WARPS: gl.constexpr,
          AT_ONCE: gl.constexpr, FN: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """Apply a function to a box, so many elements of each lane at once: the compiler sees no lines but the whole ring,
    and has all lanes wait before what follows is read. What lies past the end of k stays zero.

    Every element is one lane's alone: no lane may read what another has written.
    """
    LINES: gl.constexpr = box.shape[0]
    WIDTH: gl.constexpr = box.shape[1]
    ACCESS: gl.constexpr = min(WIDEST_ACCESS, LINES * WIDTH // (32 * WARPS))
    LANES: gl.constexpr = WIDTH // ACCESS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, ACCESS], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    HEIGHT: gl.constexpr = min(LINES, AT_ONCE * 32 * WARPS // WIDTH)
    for i in gl.static_range(LINES // HEIGHT):
        lines = box.slice(i * HEIGHT, HEIGHT, 0)
        value = FN(lines.load(LAYOUT)).to(PRODUCT)
        if MASKED:
            if ALONG_K:
                inside = side_mask(k_block, gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), K)[None, :]
            else:
                index = i * HEIGHT + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT))
                inside = side_mask(k_block, index, K)[:, None]
            value = gl.where(inside, value, gl.to_tensor(0.0).to(PRODUCT))
        lines.store(value)

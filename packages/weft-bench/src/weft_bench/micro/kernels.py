"""Kernels in Triton: strided copies, and reads of a working set over and over."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def strided_copy_kernel(x, y, stride, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """Neighbouring threads copy elements that lie `stride` apart; ELEMENTS is a power of two."""
    thread = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = (thread * stride) & (ELEMENTS - 1)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def read_again_kernel(x, out, tiles, passes, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """All tiles of a working set are read so many times, each time by another program, past the first cache."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(0, passes):
        first = (program + step * 41) % PROGRAMS  # another SM's share: what it holds itself would come from there
        for tile in range(first, tiles, PROGRAMS):
            total += tl.load(x + tile * BLOCK + lanes, cache_modifier=".cg")
    tl.store(out + program * BLOCK + lanes, total)

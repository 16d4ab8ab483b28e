"""Conversion to fp8 as torch has it: Triton's saturates, infinity included, and takes no float64."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.writer import past_e4m3

_NAN_PAST_E4M3 = tl.constexpr(past_e4m3() == 0x7F)


@triton.jit
def to_type(value, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A value, or a tile, as `DTYPE`, an integer type for integers alone."""
    if DTYPE.is_fp8() and value.dtype != DTYPE:
        value = value.to(tl.float32)
        size = tl.abs(value)
        if DTYPE.is_fp8e5():
            infinity = tl.where(value < 0, 0xFC, 0x7C).to(tl.uint8)
            bits = tl.where(size >= 61440.0, infinity, value.to(DTYPE).to(tl.uint8, bitcast=True))
            return bits.to(DTYPE, bitcast=True)
        elif _NAN_PAST_E4M3:
            return tl.where(size > 464.0, float("nan"), value).to(DTYPE)
        else:
            return value.to(DTYPE)
    else:
        return value.to(DTYPE)

"""An ELU of half precision on the device, of two elements at once where they lie in one register.

It is the greater of x and exp(x) - 1, which never is less than x: above zero, where it would be greater, it is bounded
by 0. Near zero the difference has lost its bits, and x is as good; so 2^-23 is taken off, more than the exponential is
wrong there (1.4 2^-24 on an H200), and the difference is not the greater one. Where it comes to be, next to 2^-10, the
exponential is of (1 - 1800 2^-24) x, which gives that back.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# PTX, two elements of a type in $1. NaN stays NaN by the maximum: the bound between 0 and 1 makes 0 of it.
_TWO = """{
    .reg .b32 below;
    .reg .f32 x, y;
    WIDEN
    mul.rn.f32 x, x, 0f3FB8A529;
    mul.rn.f32 y, y, 0f3FB8A529;
    ex2.approx.ftz.f32 x, x;
    ex2.approx.ftz.f32 y, y;
    sub.rn.sat.f32 x, 0f3F800001, x;
    sub.rn.sat.f32 y, 0f3F800001, y;
    cvt.rn.TYPEx2.f32 below, y, x;
    neg.TYPEx2 below, below;
    max.NaN.TYPEx2 $0, $1, below;
}"""
_TWO_FLOAT16 = tl.constexpr(
    _TWO.replace("TYPE", "f16").replace(
        "WIDEN", "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 x, low; cvt.f32.f16 y, high; }"
    )
)
_TWO_BFLOAT16 = tl.constexpr(
    _TWO.replace("TYPE", "bf16").replace(
        "WIDEN", "{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 x, bits; and.b32 y, $1, 0xFFFF0000; }"
    )
)


@triton.jit
def elu(x):  # type: ignore[no-untyped-def]
    """The ELU of float16 or bfloat16 values, within 0.75 units in the last place.

    Two of them take 10 instructions on NVIDIA GPUs, 2 of which are exponentials.
    """
    if _computes_on_two():
        TEXT: tl.constexpr = _TWO_FLOAT16 if x.dtype == tl.float16 else _TWO_BFLOAT16
        return tl.inline_asm_elementwise(TEXT, "=r,r", [x], dtype=x.dtype, is_pure=True, pack=2)
    else:
        wide = x.to(tl.float32)
        series = wide * tl.minimum(0.5 * wide + 1.0, 1.0)
        return tl.where(wide > -0.015625, series, tl.exp2(wide * 1.4426950408889634) - 1.0).to(x.dtype)


@tl.core.builtin
def _computes_on_two(_semantic: Any = None) -> Any:
    """Whether the GPU has the instructions: NVIDIA's have from compute capability 8.0."""
    options = _semantic.builder.options
    return tl.constexpr(options.backend_name == "cuda" and int(options.arch.removeprefix("sm")) >= 80)

"""An ELU of half precision on the device, of two elements at once where they lie in one register.

It is the lesser of two functions. One is x + x^2/2, rounded once: more than the ELU by |x|^3/6 below zero, and x above.
The other is exp(x) - 1 in single precision, raised by what an exponential may be wrong, so that it is never less than
the ELU either: it is 2^-21 more at most. Whichever is the lesser is near enough, everywhere, and nothing is chosen.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# PTX, two elements of a type in $1. `root` is max(-x, 0) / sqrt(2), whose square is the second term below zero; a
# relative error of 2^-9 does it no harm. Of minus infinity the series is NaN, and the lesser is the other one.
_TWO = """{
    .reg .b32 root, series, exponential, factor, zero;
    .reg .f32 x, y;
    mov.b32 factor, FACTOR;
    mov.b32 zero, 0;
    fma.rn.relu.TYPEx2 root, $1, factor, zero;
    fma.rn.TYPEx2 series, root, root, $1;
    WIDEN
    mul.rn.f32 x, x, 0f3FB8AA3B;
    mul.rn.f32 y, y, 0f3FB8AA3B;
    ex2.approx.ftz.f32 x, x;
    ex2.approx.ftz.f32 y, y;
    add.rn.f32 x, x, 0fBF7FFFFC;
    add.rn.f32 y, y, 0fBF7FFFFC;
    cvt.rn.TYPEx2.f32 exponential, y, x;
    min.TYPEx2 $0, series, exponential;
}"""
_TWO_FLOAT16 = tl.constexpr(
    _TWO.replace("TYPE", "f16")
    .replace("FACTOR", "0xB9A8B9A8")
    .replace("WIDEN", "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 x, low; cvt.f32.f16 y, high; }")
)
_TWO_BFLOAT16 = tl.constexpr(
    _TWO.replace("TYPE", "bf16")
    .replace("FACTOR", "0xBF35BF35")
    .replace("WIDEN", "{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 x, bits; and.b32 y, $1, 0xFFFF0000; }")
)


@triton.jit
def elu(x):  # type: ignore[no-untyped-def]
    """The ELU of float16 or bfloat16 values, within 0.6 units in the last place.

    Two of them take 12 instructions on NVIDIA GPUs, 2 of which are exponentials.
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

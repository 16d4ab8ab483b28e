"""Instructions of the device that Triton's own functions wrap in more of them, or do not reach.

Functions of Triton code, called by emitted functions as `device_math.exp2(x)`. In the interpreter `host_math` takes
their place.

The ELU of half precision takes two elements at once where they lie in one register. It is the greater of x and
exp(x) - 1, which never is less than x: above zero, where it would be greater, it is bounded by 0. Near zero the
difference has lost its bits, and x is as good; so 2^-23 is taken off, more than the exponential is wrong there
(1.4 2^-24 on an H200), and the difference is not the greater one. Where it comes to be, next to 2^-10, the exponential
is of (1 - 1800 2^-24) x, which gives that back.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from weft.fn.writer import past_e4m3

__all__ = ["elu", "exp2", "fma_to_one", "reciprocal", "to_type"]


@tl.core.builtin
def exp2(x: Any, _semantic: Any = None) -> Any:
    """2^x of float32 within 2^-22 of it; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `ex2.approx.ftz.f32`). `tl.exp2` keeps subnormals, which takes three more.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.exp2(x, _semantic=_semantic)
    return _instruction("ex2.approx.ftz.f32", x, semantic=_semantic)


@tl.core.builtin
def reciprocal(x: Any, _semantic: Any = None) -> Any:
    """1 / x of float32 within a unit in the last place; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `rcp.approx.ftz.f32`), a division elsewhere.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.fdiv(1.0, x, _semantic=_semantic)
    return _instruction("rcp.approx.ftz.f32", x, semantic=_semantic)


@tl.core.builtin
def fma_to_one(x: Any, y: Any, z: Any, _semantic: Any = None) -> Any:
    """x y + z of float32, rounded once, and 1 where it is more; what is less than 0 may be 0, and NaN may be.

    One instruction on NVIDIA GPUs (PTX ISA, `fma.rn.sat.f32`).
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.minimum(tl.fma(x, y, z, _semantic=_semantic), 1.0, _semantic=_semantic)
    return _instruction("fma.rn.sat.f32", x, y, z, semantic=_semantic)


def _instruction(name: str, *operands: Any, semantic: Any) -> Any:
    numbered = ", ".join(f"${at}" for at in range(len(operands) + 1))
    constraints = "=f" + ",f" * len(operands)
    return tl.inline_asm_elementwise(
        f"{name} {numbered};", constraints, list(operands), dtype=tl.float32, is_pure=True, pack=1, _semantic=semantic
    )


_NAN_PAST_E4M3 = tl.constexpr(past_e4m3() == 0x7F)


@triton.jit
def to_type(value, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A value, or a tile, as `DTYPE`, an integer type for integers alone.

    To fp8 as torch has it: Triton's own conversion saturates, infinity included, and takes no float64.
    """
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

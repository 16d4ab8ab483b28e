"""Lines of a body in CUDA C++ while it is written, typed as torch types them, and the code that they call.

C++ widens integers to int; so every value is cast to its type where it is made, and wraps there. Short floating types
are held as float and are bits in memory; what converts them is in `PRELUDE` and `conversions`. Nothing is included:
NVIDIA's compiler of programs at run time has no headers by itself.

Elementary functions are CUDA's own; division and square root round correctly, and subnormal numbers are kept. As in
Triton code the compiler may round a product and a sum once, and activations that take many instructions are made of
short forms.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from weft.base.figures import dtype_name
from weft.errors import UnsupportedError
from weft.fn.writer import SHORT, BodyWriter, Writer, past_e4m3, representable

#: Names of the types that values are held in.
HELD = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float32: "float", torch.float64: "double",
}  # fmt: skip
_LEAST = {torch.int32: "int32(-2147483647 - 1)", torch.int64: "int64(-9223372036854775807LL - 1)"}


class CudaWriter(BodyWriter):
    """The writer for lowerings to CUDA C++."""

    language, where, rounds = "cuda", "in CUDA C++", False

    def type(self, dtype: torch.dtype) -> str:
        if dtype not in HELD:
            raise UnsupportedError(f"{dtype} inside a function has no code in CUDA C++")
        return HELD[dtype]

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        name, kind = self.fresh(), self.type(dtype)
        self.line(f"const {kind} {name} = {expression};")
        return name

    def constant(self, number: Any, dtype: torch.dtype) -> str:
        value = representable(number, dtype)
        if dtype == torch.bool:
            return "true" if value else "false"
        if not isinstance(value, float):
            least = dtype in _LEAST and value == torch.iinfo(dtype).min
            return _LEAST[dtype] if least else f"{self.type(dtype)}({value}{'LL' * (dtype.itemsize == 8)})"
        single = dtype != torch.float64
        if math.isfinite(value):
            return f"{value!r}{'f' * single}"
        bits = struct.unpack("<i" if single else "<q", struct.pack("<f" if single else "<d", value))[0]
        return f"of_bits({self.constant(bits, torch.int32 if single else torch.int64)})"

    def nearest(self, name: str, short: str) -> str:
        return self.typed(f"from_{short}(to_{short}({name}))", torch.float32)

    def stored(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """An expression of a value as it stands in memory in some type; it is of type `own`, not rounded to it yet."""
        if own != dtype:
            name = self.converted(name, own, torch.float32 if dtype in SHORT else dtype)
        return f"to_{dtype_name(dtype)}({name})" if dtype in SHORT else name

    def converted(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """A value of type `own`, not rounded to it yet, as another type."""
        if own in SHORT:
            name, own = self.cast(name, torch.float32, own), torch.float32
        return self.cast(name, own, dtype)

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        plain = t == torch.float64 or name.startswith("near_")
        return f"{name}{'' if plain else 'f'}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"{condition} ? {x} : {y}"

    def extremum(self, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = self.operand(x, t), self.operand(y, t)
        nan = f" || {a} != {a}" if t.is_floating_point else ""
        return self.select(f"{a} {'>' if larger else '<'} {b}{nan}", a, b)


def stored_type(dtype: torch.dtype) -> str:
    """The C++ type of elements in memory. `UnsupportedError` where there is none."""
    if dtype in SHORT:
        return f"uint{8 * dtype.itemsize}"
    if dtype not in HELD:
        raise UnsupportedError(f"{dtype} has no code in CUDA C++")
    return HELD[dtype]


def loading(dtype: torch.dtype) -> str:
    """Name of the function that makes a held value of an element in memory; empty where none is needed."""
    return f"from_{dtype_name(dtype)}" if dtype in SHORT else ""


# -- operations with forms of their own --------------------------------------------------------------------------------

WIDE = (torch.int32, torch.int64)  # integers whose sums overflow


def sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    """exp of a value that is not positive never overflows, so both tails keep their relative accuracy: in float32
    within 3 units in the last place."""
    value, one = w.operand(x, t), w.constant(1.0, t)
    small = w.typed(w.call("exp", t, f"-{w.call('fabs', t, value)}"), t)
    share = w.typed(w.select(f"{value} < {w.constant(0.0, t)}", small, one), t)
    if t == torch.float64:
        return f"{share} / ({small} + {one})"
    return f"{share} * near_reciprocal({small} + {one})"


def elu(w: Writer, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    inner = value if input_scale == 1 else w.typed(f"{value} * {w.constant(input_scale, t)}", t)
    below = w.typed(f"{w.call('expm1', t, inner)} * {w.constant(alpha * scale, t)}", t)
    return w.select(f"{value} > {w.constant(0.0, t)}", f"{value} * {w.constant(scale, t)}", below)


def wrapping(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any, alpha: Any = 1) -> str:
    """Sums and products of wide integers in unsigned ones: C++ leaves it open what overflow of signed ones is."""
    kind = w.type(t)
    left, right = w.operand(x, t), w.operand(y, t)
    scaled = f"u{kind}({right})" + (f" * u{kind}({w.constant(alpha, t)})" if alpha != 1 else "")
    return f"{kind}(u{kind}({left}) {symbol} {scaled})"


def absolute(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t.is_floating_point:
        return w.call("fabs", t, value)
    return value if t in (torch.uint8, torch.bool) else w.select(f"{value} < 0", negative(w, t, value), value)


def negative(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t.is_floating_point:
        return f"-{value}"
    return wrapping("-", w, t, w.constant(0, t), value) if t in WIDE else f"{w.constant(0, t)} - {value}"


def shift(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count, kind, bits = w.operand(x, t), w.operand(y, t), w.type(t), t.itemsize * 8
    inside = w.typed(f"{count} >= 0 && {count} < {bits}", torch.bool)
    if symbol == "<<":
        return w.select(inside, f"{kind}(uint64({value}) << {count})", w.constant(0, t))
    past = w.constant(0, t) if t == torch.uint8 else f"{value} >> {bits - 1}"  # shifts in the sign
    return w.select(inside, f"{kind}({value} >> {count})", f"{kind}({past})")


# -- code that bodies call ---------------------------------------------------------------------------------------------

PRELUDE = """
typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef int int32;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;
#define INLINE static __device__ __forceinline__

INLINE int32 bits_of(float x) { return __float_as_int(x); }
INLINE int64 bits_of(double x) { return __double_as_longlong(x); }
INLINE float of_bits(int32 x) { return __int_as_float(x); }
INLINE double of_bits(int64 x) { return __longlong_as_double(x); }

// A function that is one instruction of PTX; Y and X say how its result and its value are held.
#define ONE(NAME, TO, FROM, WORD, Y, X) INLINE TO NAME(FROM x) { TO y; asm(WORD " %0, %1;" : Y(y) : X(x)); return y; }
ONE(near_exp2, float, float, "ex2.approx.ftz.f32", "=f", "f")  // within 2^-22 of it; subnormal results are zero
ONE(near_reciprocal, float, float, "rcp.approx.ftz.f32", "=f", "f")  // within a unit in the last place; the same
ONE(from_float16, float, uint16, "cvt.f32.f16", "=f", "h")
ONE(to_float16, uint16, float, "cvt.rn.f16.f32", "=h", "f")
"""

_CONVERSIONS = """
INLINE float from_bfloat16(uint16 x) { return of_bits(int32(uint32(x) << 16)); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
ONE(to_bfloat16, uint16, float, "cvt.rn.bf16.f32", "=h", "f")
#else
INLINE uint16 to_bfloat16(float x) {
  const uint32 bits = uint32(bits_of(x));
  return x != x ? uint16(0x7fc0) : uint16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif

// Bits of a number of one byte, moved into a float, are the number times a power of two, subnormal numbers as well.
INLINE float from_byte(uint8 x, int32 fraction, int32 bias, uint32 infinity, uint32 nan) {
  const uint32 size = x & 0x7f;
  const float scaled = of_bits(int32(size << (23 - fraction))) * of_bits((254 - bias) << 23);
  const uint32 bits = size >= nan ? 0x7fc00000u : size >= infinity ? 0x7f800000u : uint32(bits_of(scaled));
  return of_bits(int32(bits | uint32(x & 0x80) << 24));
}

// To nearest, ties to even; below the normal numbers by a sum that rounds. What is past the largest is `largest`.
INLINE uint8 to_byte(float x, int32 fraction, int32 bias, uint32 past, uint32 least, uint32 largest) {
  const uint32 bits = uint32(bits_of(x)), size = bits & 0x7fffffff;
  const int32 shift = 23 - fraction, scale = (127 - bias + shift + 1) << 23;
  const uint32 small = uint32(bits_of(of_bits(int32(size)) + of_bits(scale)) - scale);
  const uint32 half = uint32((bias - 127) * (1 << 23) + (1 << (shift - 1)) - 1);
  const uint32 rounded = (size + ((size >> shift) & 1) + half) >> shift;
  const uint32 found = size >= past || rounded > largest ? largest : rounded;
  return uint8((size > 0x7f800000u ? 0x7fu : size < least ? small : found) | ((bits >> 24) & 0x80));
}

INLINE float from_float8_e4m3fn(uint8 x) { return from_byte(x, 3, 7, 0x7f, 0x7f); }
INLINE uint8 to_float8_e4m3fn(float x) { return to_byte(x, 3, 7, 1087u << 20, 121u << 23, PAST_E4M3); }
INLINE float from_float8_e5m2(uint8 x) { return from_byte(x, 2, 15, 0x7c, 0x7d); }
INLINE uint8 to_float8_e5m2(float x) { return to_byte(x, 2, 15, 143u << 23, 113u << 23, 0x7c); }
"""


def conversions() -> str:
    """Conversions of the other short types, by bits where there is no instruction; what `PRELUDE` has stands before."""
    return _CONVERSIONS.replace("PAST_E4M3", f"{past_e4m3():#x}")

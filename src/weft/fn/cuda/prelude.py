"""CUDA C++ that emitted bodies call: types, bits of numbers, conversions of short floating types.

Nothing is included: NVIDIA's compiler of programs at run time has no headers by itself.
"""

from __future__ import annotations

from weft.fn.writer import past_e4m3

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

// Within 2^-22 of it; subnormal results are zero.
INLINE float near_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Within a unit in the last place; subnormal results are zero.
INLINE float near_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

INLINE float from_float16(uint16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

INLINE uint16 to_float16(float x) {
  uint16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
"""

_CONVERSIONS = """
INLINE float from_bfloat16(uint16 x) { return of_bits(int32(uint32(x) << 16)); }

INLINE uint16 to_bfloat16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  const uint32 bits = uint32(bits_of(x));
  return x != x ? uint16(0x7fc0) : uint16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}

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

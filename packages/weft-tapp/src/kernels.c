/* The kernels of kernel.h for four types of sums, at the levels of instructions that the library chooses among when it
 * is first called. Other compilers and machines have one level: what the compiler is told. */
#include <string.h>

#include "product.h"

enum { K_BLOCK = 256 };
static const int64_t ZERO[1] = {0};

#define type_is_complex_(type) ((type) == TAPP_C32 || (type) == TAPP_C64)
#define size_of_(type)                                                                                                 \
    ((type) == TAPP_F32 ? 4 : (type) == TAPP_F64 ? 8 : (type) == TAPP_C32 ? 8 : (type) == TAPP_C64 ? 16 : 2)

static inline bool side_by_side(const int64_t *offsets, int64_t count, int64_t size)
{
    int64_t apart = 0, at;
    for (at = 1; at < count; at++)
        apart |= offsets[at] - offsets[at - 1] - size;
    return apart == 0;
}

static inline float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bfloat_to_float(uint16_t bits) { return bits_to_float((uint32_t)bits << 16); }

static inline float half_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) /* infinite, or no number */
        return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) /* subnormal */
        return (sign ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
    return bits_to_float(sign | ((rest << 13) + 0x38000000));
}

/* To a type of 16 bits with so many bits of fraction and that smallest exponent, ties to even. Source: IEEE 754. */
static uint16_t rounded(double value, int fraction, int smallest)
{
    uint64_t bits, infinite = (uint64_t)0x7fff >> fraction << fraction;
    int64_t exponent, drop, kept;
    uint16_t sign;
    memcpy(&bits, &value, sizeof bits);
    sign = (uint16_t)(bits >> 48 & 0x8000);
    exponent = (int64_t)(bits >> 52 & 0x7ff) - 1023;
    if (value != value)
        return (uint16_t)(sign | infinite | (uint64_t)1 << (fraction - 1));
    if (exponent == 1024)
        return (uint16_t)(sign | infinite);
    drop = 52 - fraction + (exponent < smallest ? smallest - exponent : 0);
    if (drop > 54)
        return sign;
    bits = (bits & 0xfffffffffffff) | (exponent > -1023 ? (uint64_t)1 << 52 : 0);
    kept = (int64_t)(bits >> drop);
    bits &= ((uint64_t)1 << drop) - 1;
    if (bits > (uint64_t)1 << (drop - 1) || (bits == (uint64_t)1 << (drop - 1) && (kept & 1)))
        kept++;
    if (exponent >= smallest)
        kept += (exponent - smallest) << fraction; /* the leading one adds the last 1 to the exponent */
    return (uint16_t)(sign | ((uint64_t)kept < infinite ? (uint64_t)kept : infinite));
}

static inline uint16_t double_to_half(double value) { return rounded(value, 10, -14); }
static inline uint16_t double_to_bfloat(double value) { return rounded(value, 7, -126); }

double weft_half_to_double(uint16_t bits) { return half_to_float(bits); }
double weft_bfloat_to_double(uint16_t bits) { return bfloat_to_float(bits); }

#define JOINED_(name, level, type) name##_##level##_##type
#define JOINED(name, level, type) JOINED_(name, level, type)
#define NAMED(name) JOINED(name, LEVEL, TYPE)

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(WEFT_ONE_LEVEL)
#define LEVELS 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,bmi,bmi2,f16c")
#define LEVEL v4
#define VECTOR 64
#define REGISTERS 12
#include "types.h"
#undef LEVEL
#undef VECTOR
#undef REGISTERS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c")
#define LEVEL v3
#define VECTOR 32
#define REGISTERS 6
#include "types.h"
#undef LEVEL
#undef VECTOR
#undef REGISTERS
#pragma GCC pop_options
#endif

#define LEVEL any
#if defined(__AVX512F__)
#define VECTOR 64
#define REGISTERS 12
#elif defined(__AVX2__)
#define VECTOR 32
#define REGISTERS 6
#else
#define VECTOR 16
#define REGISTERS 6
#endif
#include "types.h"

const struct kernel *kernel_of(bool wide, bool is_complex)
{
    int at = 2 * is_complex + wide;
#ifdef LEVELS
    static const struct kernel *const v4[] = {&kernel_v4_f32, &kernel_v4_f64, &kernel_v4_c32, &kernel_v4_c64};
    static const struct kernel *const v3[] = {&kernel_v3_f32, &kernel_v3_f64, &kernel_v3_c32, &kernel_v3_c64};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        return v4[at];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return v3[at];
#endif
    static const struct kernel *const any[] = {&kernel_any_f32, &kernel_any_f64, &kernel_any_c32, &kernel_any_c64};
    return any[at];
}

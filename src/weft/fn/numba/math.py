"""Elementary functions of float32 that LLVM makes vectors of; those of float64 are the C library's.

Computed in float64: polynomials with a relative error under 2e-10 and roundings far below a unit of float32, so that
the result is the nearest value but for one case in some hundreds. No branch, no table: a loop around is vectorised.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numba import float32, float64, int32, int64

from weft.fn.numba.values import bits_of, of_bits

LOG2_E, LN_2 = 1 / math.log(2), math.log(2)
_inline = numba.njit(inline="always", error_model="numpy")


def _polynomial(*coefficients, kind=np.float64):
    """The polynomial of a value, highest power first: written out, so that nobody has a loop to unroll."""
    known = {f"c{at}": kind(each) for at, each in enumerate(coefficients)}
    steps = [f"    p = p * x + {name}" for name in known]
    exec("\n".join(["def polynomial(x):", "    p = c0", *steps[1:], "    return p"]), known)
    return _inline(known["polynomial"])


_expm1_series = _polynomial(*[1 / math.factorial(k) for k in range(9, 0, -1)])
_log_series = _polynomial(*[1 / k for k in range(13, 1, -2)])


@_inline
def expm1_parts(v):
    """2^n and expm1(r) with v = n ln 2 + r, of a float64 between -200 and 200."""
    n = np.rint(v * LOG2_E)
    r = v - n * LN_2
    return of_bits((int64(n) + 1023) << 52), _expm1_series(r) * r


@_inline
def bounded(v, limit):
    """v between -limit and limit; NaN goes to -limit, and is put back by who asked."""
    v = v if v < limit else limit
    return v if v > -limit else -limit


@_inline
def exp_wide(v):
    """exp of a float64 with the precision that float32 needs."""
    scale, rest = expm1_parts(bounded(v, 200.0))
    return scale + scale * rest


def _exponential(factor):
    """exp of a multiple."""

    @_inline
    def exponential(x):
        return float32(exp_wide(float64(x) * factor)) if x == x else x

    return exponential


exp, exp2 = _exponential(1.0), _exponential(LN_2)


def _of_own_type(kind, word, bias, digits, high, low, terms, most):
    """Exponentials of one type in its own arithmetic, within 2 units in the last place.

    One of a value below `most`, times 2^shift, 0 where that is below the normal numbers; one of any value, infinity
    where it exceeds them; one of a difference, times 2^shift, the rounding of the difference put back, NaN of NaN.

    v = n ln 2 + r, ln 2 in two parts of which the first times n is exact; a Taylor polynomial of exp(r). What is added
    to v log2(e) rounds it to a whole number, whose bits are then the last ones of the sum.
    """
    log2_e, rounds, high, low, one, zero = map(kind, (LOG2_E, 1.5 * 2**digits, high, low, 1.0, 0.0))
    most, lowest = kind(most), kind(-1e4)
    series = _polynomial(*[1 / math.factorial(k) for k in range(terms, 1, -1)], kind=kind)
    typed = float32 if kind is np.float32 else float64

    @_inline
    def scaled(v, shift):
        least = typed(-LN_2 * (bias + shift))
        v = least if v < least else v
        rounded = v * log2_e + rounds
        n = rounded - rounds
        r = v - n * high - n * low
        p = series(r) * r * r + r
        return (p + one) * of_bits(word((bits_of(rounded) << digits) + ((bias + shift) << digits)))

    @_inline
    def quick(v):
        return scaled(most if v > most else v, 0)

    @_inline
    def factor(value, top, shift):
        off = value - top
        of_top = off - value
        lost = (value - (off - of_top)) - (top + of_top)
        power = scaled(off, shift)
        return power + power * (lost if off > lowest else zero)

    return scaled, quick, factor


scaled_exp32, quick_exp, factor_32 = _of_own_type(np.float32, int32, 127, 23, 0.693359375, -2.12194440e-4, 7, 89.0)
scaled_exp64, quick_exp64, factor_64 = _of_own_type(
    np.float64, int64, 1023, 52, 6.93147180369123816490e-1, 1.90821492927058770002e-10, 13, 710.0
)
_log32 = _polynomial(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1, kind=np.float32,
)  # fmt: skip
_log64 = _polynomial(*[1 / k for k in range(21, 1, -2)])


@_inline
def scaled_log32(x, shift):
    """log(x 2^-shift) of a normal float32, within 2 units in the last place; -infinity of 0, NaN of NaN.

    A polynomial, as divisions take longer (that of Cephes).
    """
    moved = int32(bits_of(x) + int32((127 << 23) - 0x3F3504F3))
    e = float32(int32(moved >> 23)) - float32(127 + shift)
    f = of_bits(int32(int32(moved & int32(0x7FFFFF)) + int32(0x3F3504F3)))
    f = f - float32(1.0)
    z = f * f
    value = e * float32(0.693359375) + (f + (_log32(f) * f * z - float32(0.5) * z - e * float32(2.12194440e-4)))
    return value if x > float32(0.0) else x - float32(np.inf)


@_inline
def scaled_log64(x, shift):
    """log(x 2^-shift) of a normal float64: as `scaled_log32`, by a longer series."""
    moved = bits_of(x) - 0x3FE6A09E667F3BCD + (1023 << 52)
    e = of_bits(((moved >> 52) & 0xFFF) | 0x4330000000000000) - (4503599627370496.0 + 1023.0 + shift)
    f = of_bits((moved & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD)
    s = (f - 1.0) / (f + 1.0)
    z = s * s
    s = s + s
    value = e * 6.93147180369123816490e-1 + (s + (s * z * _log64(z) + e * 1.90821492927058770002e-10))
    return value if x > 0.0 else x - np.inf


@_inline
def expm1(x):
    scale, rest = expm1_parts(bounded(float64(x), 200.0))
    value = float32(scale * rest + (scale - 1.0))
    return value if abs(x) > float32(1e-8) else x


@_inline
def sigmoid(x):
    return float32(1.0 / (1.0 + exp_wide(-float64(x)))) if x == x else x


@_inline
def tanh(x):
    scale, rest = expm1_parts(bounded(2.0 * float64(x), 60.0))
    twice = scale * rest + (scale - 1.0)
    value = float32(twice / (twice + 2.0))
    return value if abs(x) > float32(1e-8) else x


@_inline
def log_wide(v):
    """log of a positive finite float64 that is not subnormal: of its fraction, between sqrt(1/2) and sqrt(2)."""
    shifted = bits_of(v) - 0x3FE6A09E667F3BCD
    exponent = shifted >> 52
    fraction = of_bits((shifted & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD)
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    return 2.0 * s + (2.0 * s * z * _log_series(z) + float64(exponent) * LN_2)


@_inline
def log_any(v):
    """log of any float64 that came from a float32."""
    value = log_wide(v)
    value = value if v < np.inf else v
    value = value if v != 0.0 else -np.inf
    return value if v >= 0.0 else np.nan


def _logarithm(factor):
    """A multiple of log."""

    @_inline
    def logarithm(x):
        return float32(log_any(float64(x)) * factor)

    return logarithm


log, log2, log10 = map(_logarithm, (1.0, LOG2_E, 0.4342944819032518))


@_inline
def log1p(x):
    value = float32(log_any(1.0 + float64(x)))
    return value if not abs(x) < float32(1e-8) else x


# W. J. Cody's rational forms, as in Cephes: erf on -1 to 1, and erfc exp(v^2) of 1 and more.
_near_top = _polynomial(
    9.60497373987051638749, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
    5.55923013010394962768e4,
)  # fmt: skip
_near_bottom = _polynomial(
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
    4.92673942608635921086e4,
)  # fmt: skip
_far_top = _polynomial(
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
_far_bottom = _polynomial(
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip


@_inline
def erf_near(v):
    """erf on -1 to 1."""
    z = v * v
    return v * _near_top(z) / _near_bottom(z)


@_inline
def erfc_far(v):
    """erfc of 1 and more, up to where it is no float32 any more."""
    return exp_wide(-v * v) * _far_top(v) / _far_bottom(v)


@_inline
def erf(x):
    v = float64(x)
    size = abs(v)
    size = size if size < 10.0 else 10.0
    far = 1.0 - erfc_far(size if size > 1.0 else 1.0)
    value = erf_near(bounded(v, 1.0)) if size <= 1.0 else (far if v > 0.0 else -far)
    return float32(value) if x == x else x


@_inline
def erfc_wide(v):
    """erfc of a float64 as exact as float32 needs it: beyond 15 what times any float32 is 0; of NaN anything."""
    size = abs(v)
    size = size if size < 15.0 else 15.0
    far = erfc_far(size if size > 1.0 else 1.0)
    return 1.0 - erf_near(bounded(v, 1.0)) if size <= 1.0 else (far if v > 0.0 else 2.0 - far)


@_inline
def erfc(x):
    value = erfc_wide(float64(x))
    return float32(value) if x == x else x


@_inline
def gelu(x):
    """x Phi(x), by erfc of whichever side: nothing cancels. Of -infinity it is NaN, as torch has it."""
    v = float64(x)
    below = v if v < 0.0 else 0.0
    return float32(0.5 * v * (erfc_wide(v * -0.7071067811865476) + (below - below)))


@_inline
def gelu_tanh(x):
    """x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    v = float64(x)
    u = -1.5957691216057308 * (v + 0.044715 * v * v * v)
    share = 1.0 / (1.0 + exp_wide(u))
    return float32(v * (share if u < 200.0 else 0.0)) if x == x else x

"""Complex roots, exponentials, and what is made of them, on pairs of real numbers.

What they are is in any table (Abramowitz and Stegun 1964, chapter 4). What overflows on the way is left out of the way:
a sine that is zero stays zero beside an infinite hyperbolic one, and the hyperbolic tangent is written in exp(-2 |x|).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from weft.fn.complex_arithmetic import (
    OPERATIONS,
    Pair,
    Real,
    add,
    angle,
    as_pair,
    as_tensor,
    div,
    imag,
    modulus,
    mul,
    operation,
    polar,
    reciprocal,
    sub,
)

__all__ = ["OPERATIONS"]


@operation("exp")
def _exp(x: Any) -> Pair:
    a = as_pair(x)
    return polar(torch.exp(a.re), imag(a))


@operation("log")
def _log(x: Any) -> Pair:
    return Pair(torch.log(modulus(x)), angle(x))


@operation("sqrt")
def _sqrt(x: Any) -> Pair:
    """The root with a real part that is not negative."""
    a = Pair(as_pair(x).re, imag(x))
    large = torch.sqrt(0.5 * modulus(a) + 0.5 * a.re.abs())
    small = torch.where(large == 0, large, 0.5 * a.im.abs() / large)
    right = a.re >= 0
    return Pair(torch.where(right, large, small), torch.copysign(torch.where(right, small, large), a.im))


@operation("square")
def _square(x: Any) -> Pair:
    return mul(x, x)


@operation("rsqrt")
def _rsqrt(x: Any) -> Pair:
    return reciprocal(_sqrt(x))


@operation("sgn")
def _sgn(x: Any) -> Pair:
    a, size = Pair(as_pair(x).re, imag(x)), modulus(x)
    return Pair(*(torch.where(size == 0, size, part / size) for part in a))


@operation("exp2")
def _exp2(x: Any) -> Pair:
    return _exp(mul(x, math.log(2)))


@operation("expm1")
def _expm1(x: Any) -> Pair:
    """exp(a) cos(b) - 1 is expm1(a) cos(b) - 2 sin(b / 2)^2, which loses nothing near zero."""
    a, b = as_pair(x).re, imag(x)
    half = torch.sin(0.5 * b)
    return Pair(torch.expm1(a) * torch.cos(b) - 2 * half * half, torch.exp(a) * torch.sin(b))


@operation("log2")
def _log2(x: Any) -> Pair:
    return mul(_log(x), 1 / math.log(2))


@operation("log10")
def _log10(x: Any) -> Pair:
    return mul(_log(x), 1 / math.log(10))


@operation("log1p")
def _log1p(x: Any) -> Pair:
    """The modulus of 1 + x is 1 and (2 a + a^2 + b^2) more, under a root; far from one it is taken as it is."""
    a, b = as_pair(x).re, imag(x)
    near = (a.abs() < 0.5) & (b.abs() < 0.5)
    more = torch.where(near, a * (2 + a) + b * b, 0.0)
    return Pair(torch.where(near, 0.5 * torch.log1p(more), torch.log(torch.hypot(1 + a, b))), torch.atan2(b, 1 + a))


@operation("sigmoid")
def _sigmoid(x: Any) -> Pair:
    """1 / (1 + exp(-x)) where that does not overflow, else exp(x) / (1 + exp(x))."""
    a, b = as_pair(x).re, imag(x)
    right = a >= 0
    small = polar(torch.exp(-a.abs()), torch.where(right, -b, b))
    top = Pair(torch.where(right, 1.0, small.re), torch.where(right, 0.0, small.im))
    return div(top, add(1.0, small))


@operation("silu")
def _silu(x: Any) -> Pair:
    return mul(x, _sigmoid(x))


@operation("sin")
def _sin(x: Any) -> Pair:
    a, b = as_pair(x).re, imag(x)
    return Pair(_grown(torch.sin(a), torch.cosh(b)), _grown(torch.sinh(b), torch.cos(a)))


@operation("cos")
def _cos(x: Any) -> Pair:
    a, b = as_pair(x).re, imag(x)
    return Pair(_grown(torch.cosh(b), torch.cos(a)), -_grown(torch.sin(a), torch.sinh(b)))


@operation("sinh")
def _sinh(x: Any) -> Pair:
    a, b = as_pair(x).re, imag(x)
    return Pair(_grown(torch.sinh(a), torch.cos(b)), _grown(torch.sin(b), torch.cosh(a)))


@operation("cosh")
def _cosh(x: Any) -> Pair:
    a, b = as_pair(x).re, imag(x)
    return Pair(_grown(torch.cosh(a), torch.cos(b)), _grown(torch.sin(b), torch.sinh(a)))


def _grown(x: Tensor, y: Tensor) -> Tensor:
    """A product in which zero beside infinity stays zero."""
    return torch.where((x == 0) | (y == 0), 0.0, x * y)


@operation("tanh")
def _tanh(x: Any) -> Pair:
    """(sinh a cosh a + i sin b cos b) / (sinh^2 a + cos^2 b), above and below times 4 exp(-2 |a|)."""
    a, b = as_pair(x).re, imag(x)
    rest = -torch.expm1(-2 * a.abs())  # 1 - exp(-2 |a|)
    small, cosine = torch.exp(-2 * a.abs()), torch.cos(b)
    below = rest * rest + 4 * small * cosine * cosine
    return Pair(torch.copysign(rest * (1 + small) / below, a), 4 * small * torch.sin(b) * cosine / below)


@operation("tan")
def _tan(x: Any) -> Pair:
    """tan x = -i tanh(i x)."""
    turned = _tanh(Pair(-imag(x), as_pair(x).re))
    return Pair(turned.im, -turned.re)


@operation("atanh")
def _atanh(x: Any) -> Pair:
    """(log(1 + x) - log(1 - x)) / 2."""
    difference = sub(_log1p(x), _log1p(mul(x, -1.0)))
    return Pair(0.5 * difference.re, 0.5 * difference.im)


@operation("atan")
def _atan(x: Any) -> Pair:
    """atan x = -i atanh(i x)."""
    turned = _atanh(Pair(-imag(x), as_pair(x).re))
    return Pair(turned.im, -turned.re)


@operation("pow")
def _pow(x: Any, exponent: Any) -> Pair:
    """Small whole powers by squaring; others as exp(y log x), where 0^y is 0 but for y = 0."""
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and abs(exponent) <= 64:
        return _whole_power(as_pair(x), int(exponent))
    base, power = _tensors(x, exponent), _tensors(exponent, x)
    value, nothing = _exp(mul(power, _log(base))), (base.re == 0) & (base.im == 0)
    one = torch.where((power.re == 0) & (power.im == 0), 1.0, 0.0)
    return Pair(torch.where(nothing, one, value.re), torch.where(nothing, 0.0, value.im))


def _tensors(value: Any, other: Any) -> Pair:
    """Both parts as tensors."""
    pair = as_pair(value)
    like: Real = next(part for part in (*pair, *as_pair(other)) if isinstance(part, Tensor))
    return Pair(as_tensor(pair.re, like), as_tensor(pair.im, like))


def _whole_power(base: Pair, exponent: int) -> Pair:
    rest, square, result = abs(exponent), base, None
    while rest:
        if rest & 1:
            result = square if result is None else mul(result, square)
        rest >>= 1
        square = mul(square, square) if rest else square
    if result is None:
        return Pair(torch.ones_like(square.re), 0.0)
    return reciprocal(result) if exponent < 0 else result

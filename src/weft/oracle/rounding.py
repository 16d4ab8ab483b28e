"""The rounding model: how far each step of a contraction may move a result. Every bound of weft's is made of these.

    |D - exact| <= n eps sum |a_k| |b_k| + ...        n = K + 2, eps = 2 u

u is the unit roundoff of the accumulator. In the standard model fl(x op y) = (x op y)(1 + d), |d| <= u, a sum of n
products is off by at most gamma_n sum |a_k b_k|, gamma_n = n u / (1 - n u), in any order of summation (Higham, Accuracy
and Stability of Numerical Algorithms, 2nd edition, section 3.1); n u does as well, without restriction on n (Jeannerod
and Rump, 2013). The bound takes a whole machine epsilon for u, which covers gamma_n while n u <= 1/2, and tensor cores,
which cut off where the model rounds. Of "ieee_bound" the bound is the same: `weft.planner.split_schemes` has the proof.
"""

from __future__ import annotations

import math

import torch

from weft.oracle.reference import wide
from weft.planner.split_schemes import LARGEST, LEAST, LOST
from weft.spec import Arithmetic
from weft.spec.dtypes import FP8

# Largest relative change of a factor when products run on tensor cores in a shortened type. TF32 keeps 10 explicit
# bits of the fraction: rounding to nearest would change a value by 2^-11 of itself, but the hardware may simply drop
# the other 13 bits. Three TF32 products hold a factor in two rounded pieces (2^-22) and leave out the product of the
# two small ones (2^-22).
SHORTENED = {"tf32": 2.0**-10, "tf32x3": 2.0**-21}

# Products of fp8 factors are exact, but the tensor cores of sm_90 align 32 of them and the sum so far to the largest
# and keep some 13 bits behind its leading one (DeepSeek-V3 technical report, 2024, section 3.3.2). The kernels have at
# most four instructions add up so, and add those sums in float32: 4 * 33 losses of 2^-13 of the largest, at worst.
FP8_LOSS = 4 * 33 * 2.0**-13

# How many times worse than its measure a fused function may be, and units in the last place that it may lose beside.
_FUNCTION_FACTOR = 4.0
_FUNCTION_ULPS = 4.0

_ANYTHING = 1e300

NUDGES = (-3, -2, -1, 1, 2, 3)  # units in the last place by which a function's argument is varied to measure it


def epsilon(dtype: torch.dtype) -> float:
    """Distance from 1 to the next value; 0 for integers, which do not round."""
    return torch.finfo(dtype).eps if is_inexact(dtype) else 0.0


def smallest(dtype: torch.dtype) -> float:
    """Smallest positive value, a subnormal; 0 for integers."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps if is_inexact(dtype) else 0.0


def is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def shortening(arithmetic: Arithmetic, values: torch.Tensor) -> torch.Tensor:
    """How far a factor may be from its value in the type, or in the terms, that its products are made of."""
    size = values.abs().double()
    if arithmetic.split:  # a factor without terms may be anything; 0 times it stays 0
        off = torch.where((size > 0) & (size < LEAST), LOST, 0.0).double()
        return torch.where(size.isfinite() & (size >= LARGEST), _ANYTHING, off)
    return SHORTENED.get(arithmetic.precision, 0.0) * size


def sum_bound(
    magnitude: torch.Tensor,
    furthest: torch.Tensor,
    count: int,
    arithmetic: Arithmetic,
    is_complex: bool,
    alpha: complex,
) -> torch.Tensor:
    """The bound of alpha times a sum of `count` products.

    `magnitude`: the sum of |a_k| |b_k|. `furthest`: the same with each factor as far off as it may be. `is_complex`:
    whether the products are, each of which is four real ones.
    """
    total = arithmetic.accumulate
    parts = 4.0 if is_complex else 1.0
    bound = parts * (count + 2) * (epsilon(total) + epsilon(torch.float64)) * furthest
    bound = bound + (furthest - magnitude + count * smallest(total))
    if arithmetic.product in FP8:
        bound = bound + FP8_LOSS * furthest
    bound = abs(alpha) * (bound + 3 * epsilon(total) * furthest)
    # What may leave the accumulator's range may be anything; infinite operands lead to infinities, and only to those.
    room = 2.0 if arithmetic.split else 1.0  # an order of terms may be as large again as the sum
    leaves = furthest.isfinite() & (room * max(1.0, abs(alpha)) * furthest > torch.finfo(total).max)
    return torch.where(leaves, math.inf, bound)


def any_order_bound(count: int, size: torch.Tensor, total: torch.dtype) -> torch.Tensor:
    """The bound of a reduction of `count` values by any algebra, relative to the largest of them."""
    return (4 * (count + 2) + 3) * epsilon(total) * size


def addend_bound(addend: torch.Tensor, off: torch.Tensor, total: torch.dtype, beta: complex) -> torch.Tensor:
    """The part of a sum's bound that comes from beta times an addend which may be `off`."""
    return abs(beta) * (off + 3 * epsilon(total) * addend.abs().double())


def function_bound(measure: torch.Tensor, size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far a fused function's results may be off: `measure` is what it varies by near its argument, or the error of
    eager PyTorch there; `size` what its roundings are relative to."""
    return _FUNCTION_FACTOR * measure + _FUNCTION_ULPS * epsilon(dtype) * size + smallest(dtype)


def rounded_bound(value: torch.Tensor, bound: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bound once the value is rounded to a result's type. Where anything is right, anything stays right."""
    found = bound + epsilon(dtype) / 2 * (magnitude_of(value) + bound) + smallest(dtype)
    return torch.where(bound.isposinf(), bound, found)


def magnitude_of(values: torch.Tensor) -> torch.Tensor:
    """Magnitudes that rounding is relative to: an infinity is exact."""
    return wide(values).abs().double().nan_to_num(nan=math.nan, posinf=0.0)

"""Composite operations written out in terms of the primitive ones that `lowering` knows.

Used when a function is emitted as Triton; on the CPU torch's own kernels run. Each takes the arguments of the aten
operation of the same name (torch's documentation gives the formula) and treats NaN as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Number = bool | int | float

#: aten name -> what it does.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}


def _decomposes(function: Callable[..., Any]) -> Callable[..., Any]:
    DECOMPOSITIONS[function.__name__] = function
    return function


def _scaled(x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else x * factor


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32: thresholds are compared there, as torch's kernels do."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@_decomposes
def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@_decomposes
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.clamp_max(x, 0) - torch.log1p(torch.exp(-torch.abs(x)))
    return value, value


@_decomposes
def softplus(x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    scaled = _scaled(x, beta)
    return torch.where(_wide(scaled) > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@_decomposes
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@_decomposes
def celu(x: Tensor, alpha: Number = 1) -> Tensor:
    return torch.ops.aten.elu(x, alpha, 1, 1 / alpha)


@_decomposes
def selu(x: Tensor) -> Tensor:
    return torch.ops.aten.elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@_decomposes
def relu(x: Tensor) -> Tensor:
    return torch.clamp_min(x, 0)


@_decomposes
def hardtanh(x: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val)


@_decomposes
def hardsigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x + 3, 0, 6) / 6


@_decomposes
def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


@_decomposes
def leaky_relu(x: Tensor, negative_slope: Number = 0.01) -> Tensor:
    if 2.0**-126 <= negative_slope < math.inf:  # not zero in single precision: infinity times that is NaN
        return (torch.maximum if negative_slope <= 1 else torch.minimum)(x, x * negative_slope)
    return torch.where(x > 0, x, x * negative_slope)


@_decomposes
def threshold(x: Tensor, threshold: Number, value: Number) -> Tensor:
    return torch.where(_wide(x) <= threshold, value, x)


@_decomposes
def softshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    wide = _wide(x)
    return torch.where(wide > lambd, x - lambd, torch.where(wide < -lambd, x + lambd, x * 0))


@_decomposes
def hardshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    return torch.where(torch.abs(_wide(x)) <= lambd, 0, x)


@_decomposes
def logit(x: Tensor, eps: Number | None = None) -> Tensor:
    x = x if eps is None else torch.clamp(x, eps, 1 - eps)
    return torch.log(x / (1 - x))


@_decomposes
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == y, x + math.log(2), torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y))))


@_decomposes
def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    rest = torch.log1p(torch.exp2(-torch.abs(x - y))) * (1 / math.log(2))
    return torch.where(x == y, x + 1, torch.maximum(x, y) + rest)


@_decomposes
def xlogy(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    return _product_with(torch.log, x, y)


@_decomposes
def special_xlog1py(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    return _product_with(torch.log1p, x, y)


def _product_with(log: Callable[[Tensor], Tensor], x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x log(y), which is 0 at x = 0 unless y is NaN."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=y.dtype, device="cpu")  # type: ignore[union-attr]
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype, device="cpu")
    return torch.where((x == 0) & (y == y), 0, x * log(y))


@_decomposes
def sinc(x: Tensor) -> Tensor:
    scaled = x * math.pi
    return torch.where(x == 0, 1.0, torch.sin(scaled) / scaled)


@_decomposes
def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


@_decomposes
def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


@_decomposes
def heaviside(x: Tensor, values: Tensor) -> Tensor:
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


@_decomposes
def nan_to_num(
    x: Tensor, nan: Number | None = None, posinf: Number | None = None, neginf: Number | None = None
) -> Tensor:
    if not x.dtype.is_floating_point:
        return x.clone()
    limits = torch.finfo(x.dtype)
    high = torch.where(x == math.inf, limits.max if posinf is None else posinf, x)
    low = torch.where(x == -math.inf, limits.min if neginf is None else neginf, high)
    return torch.where(x != x, 0.0 if nan is None else nan, low)


@_decomposes
def addcmul(x: Tensor, y: Tensor, z: Tensor, *, value: Number = 1) -> Tensor:
    return x + _scaled(y, value) * z


@_decomposes
def addcdiv(x: Tensor, y: Tensor, z: Tensor, *, value: Number = 1) -> Tensor:
    return x + _scaled(y, value) / z


@_decomposes
def lerp(start: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    # The form that is exact at the nearer end.
    step = end - start
    if isinstance(weight, Tensor):
        return torch.where(torch.abs(weight) < 0.5, start + step * weight, end - step * (1 - weight))
    return start + step * weight if abs(weight) < 0.5 else end - step * (1 - weight)


@_decomposes
def frac(x: Tensor) -> Tensor:
    return x - torch.trunc(x)


@_decomposes
def angle(x: Tensor) -> Tensor:
    return torch.where(x != x, x, torch.where(x < 0, torch.full_like(x, math.pi), 0.0))

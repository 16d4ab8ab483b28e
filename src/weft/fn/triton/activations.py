"""Composite operations written out in terms of the primitive ones that `weft.fn.operations` knows.

Used when a function is emitted; on the CPU torch's own kernels run. Each takes the arguments of the aten operation of
the same name (torch's documentation gives the formula) and treats NaN as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Number = bool | int | float


def _scaled(x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else x * factor


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32: thresholds are compared there, as torch's kernels do."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.clamp_max(x, 0) - torch.log1p(torch.exp(-torch.abs(x)))
    return value, value


def softplus(x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    scaled = _scaled(x, beta)
    return torch.where(_wide(scaled) > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


def leaky_relu(x: Tensor, negative_slope: Number = 0.01) -> Tensor:
    if 2.0**-126 <= negative_slope < math.inf:  # not zero in single precision: infinity times that is NaN
        return (torch.maximum if negative_slope <= 1 else torch.minimum)(x, x * negative_slope)
    return torch.where(x > 0, x, x * negative_slope)


def softshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    wide = _wide(x)
    return torch.where(wide > lambd, x - lambd, torch.where(wide < -lambd, x + lambd, x * 0))


def logit(x: Tensor, eps: Number | None = None) -> Tensor:
    x = x if eps is None else torch.clamp(x, eps, 1 - eps)
    return torch.log(x / (1 - x))


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == y, x + math.log(2), torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y))))


def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    rest = torch.log1p(torch.exp2(-torch.abs(x - y))) * (1 / math.log(2))
    return torch.where(x == y, x + 1, torch.maximum(x, y) + rest)


def _product_with(log: Callable[[Tensor], Tensor], x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x log(y), which is 0 at x = 0 unless y is NaN."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=y.dtype, device="cpu")  # type: ignore[union-attr]
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype, device="cpu")
    return torch.where((x == 0) & (y == y), 0, x * log(y))


def sinc(x: Tensor) -> Tensor:
    scaled = x * math.pi
    return torch.where(x == 0, 1.0, torch.sin(scaled) / scaled)


def nan_to_num(
    x: Tensor, nan: Number | None = None, posinf: Number | None = None, neginf: Number | None = None
) -> Tensor:
    if not x.dtype.is_floating_point:
        return x.clone()
    limits = torch.finfo(x.dtype)
    high = torch.where(x == math.inf, limits.max if posinf is None else posinf, x)
    low = torch.where(x == -math.inf, limits.min if neginf is None else neginf, high)
    return torch.where(x != x, 0.0 if nan is None else nan, low)


def lerp(start: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    # The form that is exact at the nearer end.
    step = end - start
    if isinstance(weight, Tensor):
        return torch.where(torch.abs(weight) < 0.5, start + step * weight, end - step * (1 - weight))
    return start + step * weight if abs(weight) < 0.5 else end - step * (1 - weight)


#: aten name -> what it does.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "log_sigmoid_forward": log_sigmoid_forward,
    "softplus": softplus,
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "celu": lambda x, alpha=1: torch.ops.aten.elu(x, alpha, 1, 1 / alpha),
    "selu": lambda x: torch.ops.aten.elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "relu": lambda x: torch.clamp_min(x, 0),
    "hardtanh": lambda x, min_val=-1, max_val=1: torch.clamp(x, min_val, max_val),
    "hardsigmoid": lambda x: torch.clamp(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
    "leaky_relu": leaky_relu,
    "threshold": lambda x, threshold, value: torch.where(_wide(x) <= threshold, value, x),
    "softshrink": softshrink,
    "hardshrink": lambda x, lambd=0.5: torch.where(torch.abs(_wide(x)) <= lambd, 0, x),
    "logit": logit,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "xlogy": partial(_product_with, torch.log),
    "special_xlog1py": partial(_product_with, torch.log1p),
    "sinc": sinc,
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "heaviside": lambda x, values: torch.where(x == 0, values, (x > 0).to(x.dtype)),
    "nan_to_num": nan_to_num,
    "addcmul": lambda x, y, z, *, value=1: x + _scaled(y, value) * z,
    "addcdiv": lambda x, y, z, *, value=1: x + _scaled(y, value) / z,
    "lerp": lerp,
    "frac": lambda x: x - torch.trunc(x),
    "angle": lambda x: torch.where(x != x, x, torch.where(x < 0, torch.full_like(x, math.pi), 0.0)),
}

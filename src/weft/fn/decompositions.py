"""Composite operations of torch and its backward ones in terms of operations that can be fused, and ways to pull back.

`DECOMPOSITIONS` are used when a function is emitted; on the CPU torch's own kernels run. Each takes the arguments of
the aten operation of the same name (torch's documentation gives the formula) and treats NaN as torch does.

torch's autograd writes `gelu_backward` and the like where it differentiates an activation. They are spelled out here
from the formulas of `derivatives.yaml` and of torch's kernels, as differentiable operations: so a derivative can be
fused, and has a derivative itself. Half precision is left to the writer of kernels, which computes it in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Number = bool | int | float


def _gelu(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        tanh = torch.tanh(inner)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)
    below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return grad * (below + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


def _silu(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


def _mish(grad: Tensor, x: Tensor) -> Tensor:
    gate, bent = torch.sigmoid(x), torch.tanh(torch.nn.functional.softplus(x))
    return grad * (bent + x * gate * (1 - bent * bent))


def _tanh(grad: Tensor, result: Tensor) -> Tensor:
    return grad * (1 - result * _conj(result) if not result.is_complex() else _conj(1 - result * result))


def _softplus(grad: Tensor, x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    return torch.where(x * beta > threshold, grad, grad * torch.sigmoid(x * beta))


def _elu_slope(grad: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Tensor) -> Tensor:
    low = alpha * scale
    slope = input_scale * (x + low) if is_result else input_scale * low * torch.exp(torch.clamp_max(x, 0) * input_scale)
    return torch.where(x <= 0, grad * slope, grad * scale)


def _hardsigmoid_slope(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad * (1 / 6), 0)


def _hardswish(grad: Tensor, x: Tensor) -> Tensor:
    inside = torch.where(x < 3, grad * (x / 3 + 0.5), grad)
    return torch.where(x <= -3, 0, inside)


def _shrink(grad: Tensor, x: Tensor, lambd: Number) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, grad)


def _logit(grad: Tensor, x: Tensor, eps: Number | None = None) -> Tensor:
    slope = grad / (x * (1 - x))
    if eps is None:
        return torch.where((x < 0) | (x > 1), math.nan, slope)
    return torch.where((x < eps) | (x > 1 - eps), 0, slope)


def _conj(x: Tensor) -> Tensor:
    return torch.conj(x) if x.is_complex() else x


#: aten name of a backward operation -> what it does.
BACKWARD: dict[str, Callable[..., Any]] = {
    "threshold_backward": lambda grad, x, threshold: torch.where(x <= threshold, 0, grad),
    "gelu_backward": _gelu,
    "silu_backward": _silu,
    "mish_backward": _mish,
    "tanh_backward": _tanh,
    "sigmoid_backward": lambda grad, result: grad * _conj(result * (1 - result)),
    "softplus_backward": _softplus,
    "log_sigmoid_backward": lambda grad, x, buffer: grad * torch.sigmoid(-x),
    "leaky_relu_backward": lambda grad, x, slope, is_result: torch.where(x > 0, grad, grad * slope),
    "elu_backward": _elu_slope,
    "hardtanh_backward": lambda grad, x, low, high: torch.where((x <= low) | (x >= high), 0, grad),
    "hardsigmoid_backward": _hardsigmoid_slope,
    "hardswish_backward": _hardswish,
    "hardshrink_backward": _shrink,
    "softshrink_backward": _shrink,
    "logit_backward": _logit,
}


# -- pulled back another way than torch's ------------------------------------------------------------------------------


class _Pulled(torch.autograd.Function):
    """An operation whose gradient is a function of its result's, and of what it `keeps`: its value, result or None.

    Where that function is spelled out it has a derivative, and torch's own operation for it may have none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[..., Any], pulls: Callable[..., Any], keeps: str) -> Tensor:
        result: Tensor = call(x)
        ctx.pulls = pulls
        ctx.save_for_backward({"value": x, "result": result}.get(keeps))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.pulls(grads[0], *ctx.saved_tensors), None, None, None


def _part(of_complex: Callable[[Tensor], Tensor], unit: Number | complex, x: Tensor) -> Any:
    """torch's own rule goes by way of a view with one more axis."""
    kind = x.dtype
    return _Pulled.apply(x, lambda x: of_complex(x) * 1, lambda grad, _: _scaled(grad.to(kind), unit), "")


def _leaky_relu(x: Tensor, slope: Number = 0.01) -> Any:
    """By the sign of the result, which needs not be kept besides."""
    if slope <= 0:
        return aten.leaky_relu(x, slope)
    pulls = partial(BACKWARD["leaky_relu_backward"], slope=slope, is_result=True)
    return _Pulled.apply(x, lambda x: aten.leaky_relu(x, slope), pulls, "result")


def _elu(x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Any:
    """By the result, as torch's in-place form."""
    if alpha <= 0 or scale <= 0:
        return aten.elu(x, alpha, scale, input_scale)
    call = partial(aten.elu, alpha=alpha, scale=scale, input_scale=input_scale)
    return _Pulled.apply(x, call, lambda grad, y: _elu_slope(grad, alpha, scale, input_scale, True, y), "result")


def _detached(x: Tensor) -> Tensor:
    return torch.ops.aten.detach_copy.default(x.detach())


#: aten name -> a differentiable function in its place.
IN_PLACE_OF: dict[str, Callable[..., Any]] = {
    "detach": _detached,
    "real": partial(_part, torch.real, 1), "imag": partial(_part, torch.imag, 1j),
    "leaky_relu": _leaky_relu, "elu": _elu, "conj_physical": torch.conj,
    "hardsigmoid": lambda x: _Pulled.apply(x, aten.hardsigmoid, _hardsigmoid_slope, "value"),
    "log_sigmoid": lambda x: _Pulled.apply(x, aten.log_sigmoid, lambda grad, x: grad * torch.sigmoid(-x), "value"),
}  # fmt: skip

#: The same for functions that select one of two values: all of the gradient goes to the first of equal ones.
SELECTING: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, y: torch.where(x >= y, x, y),
    "minimum": lambda x, y: torch.where(x <= y, x, y),
}


def _scaled(x: Tensor, factor: Number | complex) -> Tensor:
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

"""torch's backward operations in terms of operations that can be fused, and ways to pull back that torch has not.

torch's autograd writes `gelu_backward` and the like where it differentiates an activation. They are spelled out here
from the formulas of `derivatives.yaml` and of torch's kernels, as differentiable operations: so a derivative can be
fused, and has a derivative itself. Half precision is left to the writer of kernels, which computes it in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Number = bool | int | float

#: aten name of a backward operation -> what it does.
BACKWARD: dict[str, Callable[..., Any]] = {}


def _spells(function: Callable[..., Any]) -> Callable[..., Any]:
    BACKWARD[function.__name__] = function
    return function


@_spells
def threshold_backward(grad: Tensor, x: Tensor, threshold: Number) -> Tensor:
    return torch.where(x <= threshold, 0, grad)


@_spells
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        tanh = torch.tanh(inner)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)
    below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return grad * (below + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


@_spells
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


@_spells
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate, bent = torch.sigmoid(x), torch.tanh(torch.nn.functional.softplus(x))
    return grad * (bent + x * gate * (1 - bent * bent))


@_spells
def tanh_backward(grad: Tensor, result: Tensor) -> Tensor:
    return grad * (1 - result * _conj(result) if not result.is_complex() else _conj(1 - result * result))


@_spells
def sigmoid_backward(grad: Tensor, result: Tensor) -> Tensor:
    return grad * _conj(result * (1 - result))


@_spells
def softplus_backward(grad: Tensor, x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    return torch.where(x * beta > threshold, grad, grad * torch.sigmoid(x * beta))


@_spells
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return grad * torch.sigmoid(-x)


@_spells
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: Number, self_is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * negative_slope)


@_spells
def elu_backward(grad: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Tensor) -> Tensor:
    low = alpha * scale
    slope = input_scale * (x + low) if is_result else input_scale * low * torch.exp(torch.clamp_max(x, 0) * input_scale)
    return torch.where(x <= 0, grad * slope, grad * scale)


@_spells
def hardtanh_backward(grad: Tensor, x: Tensor, low: Number, high: Number) -> Tensor:
    return torch.where((x <= low) | (x >= high), 0, grad)


@_spells
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad * (1 / 6), 0)


@_spells
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    inside = torch.where(x < 3, grad * (x / 3 + 0.5), grad)
    return torch.where(x <= -3, 0, inside)


@_spells
def hardshrink_backward(grad: Tensor, x: Tensor, lambd: Number) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, grad)


@_spells
def softshrink_backward(grad: Tensor, x: Tensor, lambd: Number) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, grad)


@_spells
def logit_backward(grad: Tensor, x: Tensor, eps: Number | None = None) -> Tensor:
    slope = grad / (x * (1 - x))
    if eps is None:
        return torch.where((x < 0) | (x > 1), math.nan, slope)
    return torch.where((x < eps) | (x > 1 - eps), 0, slope)


def _conj(x: Tensor) -> Tensor:
    return torch.conj(x) if x.is_complex() else x


# -- pulled back another way than torch's ------------------------------------------------------------------------------


class _Real(torch.autograd.Function):
    """torch's own rule goes by way of a view with one more axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return torch.real(x) * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].to(ctx.dtype)


class _Imag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return torch.imag(x) * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].to(ctx.dtype) * 1j


class _LeakyRelu(torch.autograd.Function):
    """By the sign of the result, which needs not be kept besides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Number) -> Tensor:
        result = aten.leaky_relu(x, slope)
        ctx.slope = slope
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return torch.where(result > 0, grads[0], grads[0] * ctx.slope), None


class _Elu(torch.autograd.Function):
    """By the result, as torch's in-place form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *scales: Number) -> Tensor:
        result = aten.elu(x, *scales)
        ctx.scales = scales
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        alpha, scale, input_scale = ctx.scales
        return elu_backward(grads[0], alpha, scale, input_scale, True, result), None, None, None


class _ByValue(torch.autograd.Function):
    """By a slope that is spelled out, and so has a derivative: torch's own operation for it has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[..., Any], slope: Callable[..., Any]) -> Tensor:
        ctx.slope = slope
        ctx.save_for_backward(x)
        result: Tensor = call(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.slope(grads[0], x), None, None


def _hardsigmoid(x: Tensor) -> Any:
    return _ByValue.apply(x, aten.hardsigmoid, hardsigmoid_backward)


def _log_sigmoid(x: Tensor) -> Any:
    return _ByValue.apply(x, aten.log_sigmoid, lambda grad, x: grad * torch.sigmoid(-x))


def _leaky_relu(x: Tensor, slope: Number = 0.01) -> Any:
    return _LeakyRelu.apply(x, slope) if slope > 0 else aten.leaky_relu(x, slope)


def _elu(x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Any:
    if alpha <= 0 or scale <= 0:
        return aten.elu(x, alpha, scale, input_scale)
    return _Elu.apply(x, alpha, scale, input_scale)


def _detached(x: Tensor) -> Tensor:
    return torch.ops.aten.detach_copy.default(x.detach())


#: aten name -> a differentiable function in its place.
IN_PLACE_OF: dict[str, Callable[..., Any]] = {
    "detach": _detached,
    "real": _Real.apply, "imag": _Imag.apply, "leaky_relu": _leaky_relu, "elu": _elu, "conj_physical": torch.conj,
    "hardsigmoid": _hardsigmoid, "log_sigmoid": _log_sigmoid,
}  # fmt: skip

#: The same for functions that select one of two values: all of the gradient goes to the first of equal ones.
SELECTING: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, y: torch.where(x >= y, x, y),
    "minimum": lambda x, y: torch.where(x <= y, x, y),
}

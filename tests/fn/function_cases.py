"""One list of functions for the CPU, interpreter, cross-compilation and GPU tests of `weft.fn`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from weft.fn import Pointwise, trace

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _bits_there_and_back(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Powers of two made of their bits, and the bits of other numbers."""
    digits, bias, real = (23, 127, torch.float32) if x.dtype is torch.int32 else (52, 1023, torch.float64)
    power = (((x & 15) + bias) << digits).view(real)
    return ((y & 255).to(real) * power).view(x.dtype)


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    arity: int = 1
    #: Beyond this magnitude of the argument the comparison says nothing: periods are lost there.
    reach: float = math.inf
    #: The result may be a small difference of large terms: errors count against the terms.
    cancels: bool = False
    #: In float64, where torch's own result is not to be trusted.
    truth: Callable[..., torch.Tensor] | None = None

    def __str__(self) -> str:
        return self.name

    def trace(self, dtype: torch.dtype) -> Pointwise:
        if self.arity == 1:
            return trace(self.fn, (dtype,), hook="fn")
        return trace(lambda x, y: self.fn(x, y), (dtype, dtype), names=("y",), hook="fn")

    def inputs(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """512 elements for each parameter: every special value, then ordinary ones; no divisor is integer zero."""
        values = special_values(dtype)
        if self.arity == 1:
            return [values]
        others = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(3))]
        return [values, others if dtype.is_floating_point else torch.where(others == 0, 1, others).to(dtype)]


def special_values(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        spread = (torch.arange(512) - 256) * max(1, limits.max // 300)
        values = spread.clamp(limits.min, limits.max).to(dtype)
        values[:40] = torch.arange(-20, 20).to(dtype)
        values[40:42] = torch.tensor([limits.max, limits.min], dtype=dtype)
        return values
    info = torch.finfo(dtype)
    magnitudes = [0.0, math.inf, info.max, info.tiny, info.tiny / 4, info.eps, 0.1, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0]
    magnitudes += [8.0, 20.0, 88.0, 100.0, 700.0, 1000.0, 4096.0, 1e4, 3e4]
    specials = torch.tensor([math.nan] + magnitudes + [-x for x in magnitudes], dtype=torch.float64)
    ordinary = torch.randn(512 - len(specials), generator=generator, dtype=torch.float64)
    ordinary[::3] *= 40
    return torch.cat([specials, ordinary * 3]).to(dtype)


ACTIVATIONS = [
    Case(name, fn, FLOATS)
    for name, fn in {
        "relu": F.relu,
        "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
        "relu6": F.relu6,
        "elu": F.elu,
        "elu alpha": lambda x: F.elu(x, alpha=1.3),
        "celu": lambda x: F.celu(x, alpha=0.7),
        "selu": F.selu,
        "silu": F.silu,
        "mish": F.mish,
        "softplus": F.softplus,
        "softplus beta": lambda x: F.softplus(x, beta=2.0, threshold=5.0),
        "softsign": F.softsign,
        "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
        "hardswish": F.hardswish,
        "hardsigmoid": F.hardsigmoid,
        "sigmoid": torch.sigmoid,
        "logsigmoid": F.logsigmoid,
        "tanh": torch.tanh,
        "threshold": lambda x: F.threshold(x, 0.1, 20.0),
        "softshrink": F.softshrink,
        "hardshrink": F.hardshrink,
        "module in place": torch.nn.ReLU(inplace=True),
    }.items()
]


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """torch's 1 + erf cancels in the negative tail, in float64 too."""
    return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))


def _gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    """So does its 1 + tanh."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


ACTIVATIONS += [
    Case("gelu tanh", functools.partial(F.gelu, approximate="tanh"), FLOATS, truth=_gelu_by_tanh),
    Case("tanhshrink", F.tanhshrink, FLOATS, cancels=True),
    Case("gelu", F.gelu, FLOATS, truth=_gelu),
    Case("module", torch.nn.GELU(), FLOATS, truth=_gelu),
]

UNARY = [
    Case(name, fn)
    for name, fn in {
        "neg": lambda x: -x,
        "abs": torch.abs,
        "sign": torch.sign,
        "sgn": torch.sgn,
        "reciprocal": torch.reciprocal,
        "over": lambda x: 3.0 / x,
        "square": torch.square,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "trunc": torch.trunc,
        "frac": torch.frac,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "expm1": torch.expm1,
        "log": torch.log,
        "log2": torch.log2,
        "log10": torch.log10,
        "log1p": torch.log1p,
        "sinh": torch.sinh,
        "cosh": torch.cosh,
        "asin": torch.asin,
        "acos": torch.acos,
        "atan": torch.atan,
        "asinh": torch.asinh,
        "acosh": torch.acosh,
        "atanh": torch.atanh,
        "erf": torch.erf,
        "erfc": torch.erfc,
        "erfinv": torch.erfinv,
        "nan_to_num": torch.nan_to_num,
        "nan_to_num given": lambda x: torch.nan_to_num(x, nan=0.5, posinf=7.0, neginf=-7.0),
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "isposinf": torch.isposinf,
        "isneginf": torch.isneginf,
        "isfinite": torch.isfinite,
        "signbit": torch.signbit,
        "logical_not": torch.logical_not,
        "deg2rad": torch.deg2rad,
        "rad2deg": torch.rad2deg,
        "angle": torch.angle,
        "sinc": lambda x: torch.sinc(x / 8),
        "logit": lambda x: torch.logit(x, eps=0.01),
        "clamp": lambda x: torch.clamp(x, -1.5, 2.5),
        "clamp min": lambda x: x.clamp(min=0.1),
        "clamp max": lambda x: x.clamp(max=0.1),
        "clamp crossed": lambda x: x.clamp(2.0, -2.0),
        "masked_fill": lambda x: x.masked_fill(x > 1, -torch.inf),
        "where": lambda x: torch.where(x > 0.1, x, 0.1),
        "where numbers": lambda x: torch.where(x > 0.1, 1.0, -0.0) + x,
        "where infinity": lambda x: torch.where(x >= 0.5, x, -torch.inf),
        "add alpha": lambda x: torch.add(x, x, alpha=0.5),
        "rsub": lambda x: 1.1 - x,
        "div": lambda x: x / 3.0,
        "div by eight": lambda x: x / 8,
        "div trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
        "div floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
        "floor_divide": lambda x: x // -0.75,
        "pow 0": lambda x: x**0,
        "pow 1": lambda x: x**1,
        "pow 2": lambda x: x**2,
        "pow 3": lambda x: x**3,
        "pow 5": lambda x: x**5,
        "pow -1": lambda x: x**-1,
        "pow -2": lambda x: x**-2.0,
        "pow half": lambda x: x**0.5,
        "pow minus half": lambda x: x**-0.5,
        "pow 1.7": lambda x: x**1.7,
        "power of 2": lambda x: 2**x,
        "power of 3": lambda x: 3.0**x,
        "round decimals": lambda x: torch.round(x / 1024, decimals=2),
        "round tens": lambda x: torch.round(x, decimals=-1),
        "ones_like": lambda x: torch.ones_like(x) * 2 + x,
        "full_like": lambda x: torch.full_like(x, 0.3) - x,
        "zeros_like": torch.zeros_like,
        "new_full": lambda x: x + x.new_full((), 0.25),
        "0-d tensor": lambda x: x * torch.tensor(0.7),
        "0-d tensor of its dtype": lambda x: x + torch.tensor(0.1, dtype=x.dtype, device=x.device),
        "clone": lambda x: x.clone().detach().contiguous() + 1,
        "in place": lambda x: x.add_(1.0).mul_(0.3).clamp_(min=-0.5),
        "in place on a copy": lambda x: x.clone().mul_(2) + x,
        "fill_": lambda x: x.clone().fill_(2.5),
        "to double and back": lambda x: (x.double() * 0.1).to(x.dtype),
        "to half and back": lambda x: x.clamp(-1e4, 1e4).half().to(x.dtype),
        "to bfloat16 and back": lambda x: x.to(torch.bfloat16).to(x.dtype),
        "to int and back": lambda x: torch.nan_to_num(x).clamp(-1e6, 1e6).int().to(x.dtype),
        "to bool": lambda x: x.bool(),
        "number": lambda x: 0.1,
        "whole number": lambda x: 3,
        "infinity": lambda x: -math.inf,
        "identity": lambda x: x,
        "comparison of bools": lambda x: (x > 0) > (x > 1),
        "sum of bools": lambda x: (x > 0) + (x > 1),
        "product of bools": lambda x: (x > 0) * (x < 1),
        "bool algebra": lambda x: ~(x > 0) & (x < 3) | (x == 0) ^ (x != 1),
        "bool times number": lambda x: (x > 0) * 2.5,
        "logical": lambda x: torch.logical_xor(torch.logical_and(x, x > 0), torch.logical_or(x, x < 1)),
        "subnormal constant": lambda x: torch.where(x > 0, x, 1e-40),
        "negative zero": lambda x: torch.where(x > 0, x, -0.0),
    }.items()
] + [
    Case("lgamma", torch.lgamma, cancels=True),
    Case("sin", torch.sin, reach=1e4),
    Case("cos", torch.cos, reach=1e4),
    Case("tan", torch.tan, reach=1e4),
]

BINARY = [
    Case(name, fn, arity=2)
    for name, fn in {
        "add": torch.add,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div tensors": lambda x, y: x / y,
        "div trunc tensors": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "div floor tensors": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "pow tensors": torch.pow,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "fmax": torch.fmax,
        "fmin": torch.fmin,
        "clamp tensors": lambda x, y: torch.clamp(x, min=y),
        "atan2": torch.atan2,
        "copysign": torch.copysign,
        "nextafter": torch.nextafter,
        "heaviside": torch.heaviside,
        "xlogy": torch.xlogy,
        "xlogy number": lambda x, y: torch.xlogy(x, 2.0) + torch.xlogy(2.0, y),
        "xlog1py": torch.special.xlog1py,
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
        "only the other": lambda x, y: y + 1,
        "neither": lambda x, y: 0.5,
    }.items()
] + [
    Case("hypot", torch.hypot, arity=2, reach=1e300),  # libdevice rounds the very largest double up to infinity
]

#: torch's vectorised remainder is NaN for the largest dividends; NumPy's is exact.
REMAINDERS = [
    Case("remainder", lambda x: x % 0.75, truth=lambda x: _remainder(x, torch.tensor(0.75))),
    Case("remainder negative", lambda x: x % -3, truth=lambda x: _remainder(x, torch.tensor(-3.0))),
    Case("fmod", lambda x: torch.fmod(x, 0.75), truth=lambda x: _fmod(x, torch.tensor(0.75))),
    Case("remainder tensors", lambda x, y: x % y, arity=2, truth=lambda x, y: _remainder(x, y)),
    Case("fmod tensors", torch.fmod, arity=2, truth=lambda x, y: _fmod(x, y)),
]


def _fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rest = _fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


CANCELLING = [
    Case("sub alpha", lambda x: torch.sub(x, 1.1, alpha=3), cancels=True),
    Case("third", lambda x: x * 0.1 + 1 / 3, cancels=True),
    *(
        Case(name, fn, arity=2, cancels=True)
        for name, fn in {
            "lerp": lambda x, y: torch.lerp(x, y, 0.3),
            "lerp far": lambda x, y: torch.lerp(x, y, 0.8),
            "lerp tensor": lambda x, y: torch.lerp(x, y, torch.sigmoid(x)),
            "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
            "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2),
            "logaddexp": torch.logaddexp,
            "logaddexp2": torch.logaddexp2,
        }.items()
    ),
]

INTEGER = [
    Case("integers " + name, fn, dtypes, arity=2)
    for name, dtypes, fn in [
        ("add", INTEGERS, lambda x, y: x + y),
        ("add alpha", INTEGERS, lambda x, y: torch.add(x, y, alpha=3)),
        ("mul", INTEGERS, lambda x, y: x * y + 7),
        ("sub", INTEGERS, lambda x, y: 1 - x - y),
        ("neg", INTEGERS, lambda x, y: -x),
        ("abs", INTEGERS, lambda x, y: torch.abs(x)),
        ("sign", INTEGERS, lambda x, y: torch.sign(x) + torch.sgn(y)),
        ("div", INTEGERS, lambda x, y: x / y),
        ("div trunc", INTEGERS, lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("div floor", INTEGERS, lambda x, y: x // y),
        ("remainder", INTEGERS, lambda x, y: x % y),
        ("fmod", INTEGERS, lambda x, y: torch.fmod(x, y)),
        ("pow", INTEGERS, lambda x, y: x**5),
        ("pow large", INTEGERS, lambda x, y: x**22),
        ("maximum", INTEGERS, torch.maximum),
        ("minimum", INTEGERS, torch.minimum),
        ("fmin", INTEGERS, torch.fmin),
        ("clamp", INTEGERS, lambda x, y: x.clamp(3, 90)),
        ("relu", INTEGERS, lambda x, y: torch.relu(x)),
        ("and", INTEGERS, lambda x, y: x & y),
        ("or", INTEGERS, lambda x, y: x | y),
        ("xor", INTEGERS, lambda x, y: x ^ y),
        ("not", INTEGERS, lambda x, y: ~x),
        ("left shift", INTEGERS, lambda x, y: x << (y & 15)),
        ("right shift", INTEGERS, lambda x, y: x >> (y & 15)),
        ("shift by number", INTEGERS, lambda x, y: (x << 3) + (y >> 2)),
        ("bits", (torch.int32, torch.int64), _bits_there_and_back),
        ("floor", INTEGERS, lambda x, y: torch.floor(x) + torch.round(y) + torch.trunc(x)),
        ("compare", INTEGERS, lambda x, y: x < y),
        ("compare with fraction", INTEGERS, lambda x, y: x > 2.5),
        ("isnan", INTEGERS, lambda x, y: torch.isnan(x) | torch.isinf(y) | torch.isfinite(x)),
        ("signbit", INTEGERS, lambda x, y: torch.signbit(x)),
        ("where", INTEGERS, lambda x, y: torch.where(x > y, x, 0)),
        ("nan_to_num", INTEGERS, lambda x, y: torch.nan_to_num(x)),
        ("to float", INTEGERS, lambda x, y: x.float() * 0.1 + y),
        ("exp", INTEGERS, lambda x, y: torch.exp(x / 64)),
        ("sqrt", INTEGERS, lambda x, y: torch.sqrt(torch.abs(x).int())),
        ("mixed", INTEGERS, lambda x, y: x.to(torch.int64) * y + x.to(torch.uint8)),
        ("to bool", INTEGERS, lambda x, y: x.bool() + y),
    ]
]

CASES = [*ACTIVATIONS, *UNARY, *BINARY, *REMAINDERS, *CANCELLING, *INTEGER]


def in_double(case: Case, inputs: list[torch.Tensor], eager: torch.Tensor) -> torch.Tensor:
    """The function of the same elements in float64; where the dtype is part of the function, what torch gives."""
    if not inputs[0].dtype.is_floating_point:
        return eager.double()
    result = (case.truth or case.fn)(*(tensor.double() for tensor in inputs))
    return result.double() if isinstance(result, torch.Tensor) else eager.double()


def wrong_elements(
    case: Case, function: Pointwise, inputs: list[torch.Tensor], out: torch.Tensor, ulps: int = 4
) -> list[str]:
    """A line for each of the first elements of a result that float64 contradicts; none where all are right."""
    eager = function(*inputs)
    assert isinstance(eager, torch.Tensor)
    assert out.dtype == eager.dtype == function.result
    if not out.dtype.is_floating_point:
        wrong, truth = out != eager, eager
    else:
        truth, info = in_double(case, inputs, eager), torch.finfo(out.dtype)
        terms = torch.stack([truth.abs()] + [x.double().abs() for x in inputs if case.cancels]).nan_to_num(0).amax(0)
        ulp = (terms * info.eps).clamp(min=info.tiny * info.eps)
        bound = (1 if inputs[0].dtype == torch.float16 else ulps) * ulp
        close = (out.double() - truth).abs() <= bound + 2 * (eager.double() - truth).abs().nan_to_num(0)
        same = (out == eager) | (out.double() == truth) | (out.isnan() & (eager.isnan() | truth.isnan()))
        unseen = torch.stack([x.abs() > case.reach for x in inputs]).any(0)
        wrong = ~(close | same | unseen)
    return [
        f"f{tuple(x[i].item() for x in inputs)} = {out[i].item()}, torch {eager[i].item()}, truth {truth[i].item()}"
        for i in wrong.nonzero().flatten()[:4].tolist()
    ]

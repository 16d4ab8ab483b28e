"""Ready functions for `a_fn`, `b_fn`, `c_fn` and `epilogue`, and `chain` to put several behind one another.

Each is an ordinary function of torch operations, or makes one of its options: write your own in the same way. The
parameters after the value are named by `operands` and `indices`.

>>> import torch, weft
>>> from weft import functions as f
>>> x, w, b = torch.ones(2, 3), torch.ones(3, 2), torch.tensor([-4.0, 1.0])
>>> weft.contract("mk,kn->mn", x, w, epilogue=f.chain(f.bias, f.relu), operands={"bias": ("n", b)})
tensor([[0., 4.],
        [0., 4.]])
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from weft.errors import DTypeError, FunctionError
from weft.fn.binding import parameters

Function: TypeAlias = Callable[..., torch.Tensor]


def chain(*functions: Function) -> Function:
    """One function that applies `functions` from left to right; it takes what each of them takes beside the value.

    A parameter of one name is one parameter: two of the functions get the same operand for it. Defaults stay defaults.
    """
    steps = tuple((function, parameters(function) or ()) for function in functions)

    def chained(value: torch.Tensor, **aux_args: Any) -> torch.Tensor:
        for function, names in steps:
            value = function(value, **{name: aux_args[name] for name in names if name in aux_args})
        return value

    kind = inspect.Parameter.KEYWORD_ONLY
    found: dict[str, inspect.Parameter] = {}
    for function, names in steps:
        for name in names:
            default = _default(function, name)
            if name not in found or default is inspect.Parameter.empty:
                found[name] = inspect.Parameter(name, kind, default=default)
    first = inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)
    chained.__signature__ = inspect.Signature([first, *found.values()])  # type: ignore[attr-defined]
    return chained


def _default(function: Any, name: str) -> Any:
    target = function.forward if isinstance(function, torch.nn.Module) else function
    return inspect.signature(target).parameters[name].default


# -- operands ----------------------------------------------------------------------------------------------------------


def bias(value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """value + bias."""
    return value + bias


def scale(value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """value * scale."""
    return value * scale


# -- activations -------------------------------------------------------------------------------------------------------


def relu(value: torch.Tensor) -> torch.Tensor:
    return torch.relu(value)


def silu(value: torch.Tensor) -> torch.Tensor:
    return functional.silu(value)


def sigmoid(value: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(value)


def tanh(value: torch.Tensor) -> torch.Tensor:
    return torch.tanh(value)


def leaky_relu(slope: float = 0.01) -> Function:
    """`slope` times the value where that is negative."""

    def leaky(value: torch.Tensor) -> torch.Tensor:
        return functional.leaky_relu(value, slope)

    return leaky


def elu(alpha: float = 1.0) -> Function:
    """``alpha * (exp(value) - 1)`` where the value is negative."""

    def exponential(value: torch.Tensor) -> torch.Tensor:
        return functional.elu(value, alpha)

    return exponential


def gelu(approximate: str = "none") -> Function:
    """The value times the normal distribution's function of it; "tanh" for its usual approximation."""

    def gaussian(value: torch.Tensor) -> torch.Tensor:
        return functional.gelu(value, approximate=approximate)

    return gaussian


# -- masks -------------------------------------------------------------------------------------------------------------


def masked(fill: float = -math.inf) -> Function:
    """The value where the operand `mask` (bool) is true, else `fill`."""

    def where(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, value, fill)

    return where


def causal(offset: int = 0, fill: float = -math.inf) -> Function:
    """The value where ``j <= i + offset``, else `fill`; `i` and `j` are coordinates (queries and keys)."""

    def below(value: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return torch.where(j <= i + offset, value, fill)

    return below


def banded(before: int, after: int, fill: float = -math.inf) -> Function:
    """The value where ``i - before <= j <= i + after``, else `fill`."""

    def near(value: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return torch.where((j >= i - before) & (j <= i + after), value, fill)

    return near


# -- random numbers ----------------------------------------------------------------------------------------------------


def uniform(seed: int, *coordinates: torch.Tensor) -> torch.Tensor:
    """A number from 0 to 1 (excluded), a multiple of 2^-24, that depends on the seed and the coordinates alone.

    The coordinates, 32 bits at a time, go into a hash one after the other: each is added to the state times an odd
    constant, and the state is then mixed by `lowbias32` (two multiplications and three shifts; Chris Wellons,
    "Prospecting for Hash Functions", 2018). float32.
    """
    state: Any = _signed(seed ^ (seed >> 32))
    for coordinate in coordinates:
        halves = [coordinate.to(torch.int32)]
        if coordinate.dtype == torch.int64:
            halves.append((coordinate >> 32).to(torch.int32))
        for half in halves:
            state = _mixed(half * _signed(0x9E3779B1) + state)
    return ((state >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _mixed(state: torch.Tensor) -> torch.Tensor:
    """lowbias32 on int32, whose shifts bring in the sign: it is masked off."""
    state = state ^ ((state >> 16) & 0xFFFF)
    state = state * 0x7FEB352D
    state = state ^ ((state >> 15) & 0x1FFFF)
    state = state * _signed(0x846CA68B)
    return state ^ ((state >> 16) & 0xFFFF)


def _signed(bits: int) -> int:
    """The lowest 32 bits as int32 reads them."""
    bits &= 0xFFFFFFFF
    return bits - (bits >> 31 << 32)


def dropout(p: float, seed: int, coordinates: tuple[str, ...] = ("i", "j")) -> Function:
    """Zero with probability `p`, else the value over ``1 - p``.

    What is dropped depends on `seed` and the element's coordinates alone, which `indices` names: the same on every
    device and backend and for every schedule, so that a backward pass can drop the same elements again. Name every
    mode of the tensor, or elements that differ in another mode alone share their fate.
    """
    if not 0 <= p < 1:
        raise FunctionError(f"a probability to drop with is at least 0 and less than 1, not {p!r}")
    if not coordinates:
        raise FunctionError("dropout needs the name of at least one coordinate")
    keep = 1.0 / (1.0 - p)

    def drop(value: torch.Tensor, **places: torch.Tensor) -> torch.Tensor:
        random = uniform(seed, *[places[name] for name in coordinates])
        return torch.where(random >= p, value * keep, 0.0)

    first = inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)
    others = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in coordinates]
    drop.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
    return drop


# -- casts -------------------------------------------------------------------------------------------------------------


def saturate(dtype: torch.dtype) -> Function:
    """The value as `dtype`: past its range its extreme value, for integers rounded to nearest (ties to even).

    NaN stays NaN in floating types and becomes 0 in integer ones. Infinities become the largest finite values.
    """
    if dtype.is_complex or dtype is torch.bool:
        raise DTypeError(f"{dtype} has no range to saturate to")

    def cast(value: torch.Tensor) -> torch.Tensor:
        if dtype.is_floating_point:
            largest = torch.finfo(dtype).max
            return value.clamp(-largest, largest).to(dtype)
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        if not value.dtype.is_floating_point:
            range_of_value = torch.iinfo(value.dtype)
            return value.clamp(max(low, range_of_value.min), min(high, range_of_value.max)).to(dtype)
        # The largest integer may not be a value of this type: clamp to the next smaller that is, then mend.
        kind = torch.finfo(value.dtype)
        lost = max(high.bit_length() - (1 - int(math.log2(kind.eps))), 0)
        largest, smallest = min(float(high >> lost << lost), kind.max), max(float(low), kind.min)
        rounded = torch.round(torch.where(value == value, value, 0.0))
        within = torch.where(rounded > largest, high, rounded.clamp(smallest, largest).to(dtype))
        return torch.where(rounded < smallest, low, within)

    return cast

"""Ready functions for `a_fn`, `b_fn`, `c_fn` and `epilogue`, and `chain` to put several behind one another.

Each is an ordinary function of torch operations: write your own in the same way. The parameters after the value are
named by `operands` and `indices`; what follows the star are options. A function is passed as it is, or called with its
options, ``f.gelu``, ``f.gelu()`` and ``f.gelu("tanh")``, which gives the function with those options set.

>>> import torch, weft
>>> from weft import functions as f
>>> x, w, b = torch.ones(2, 3), torch.ones(3, 2), torch.tensor([-4.0, 1.0])
>>> weft.contract("mk,kn->mn", x, w, epilogue=f.chain(f.bias, f.relu),
...               operands={"bias": ("n", b)})
tensor([[0., 4.],
        [0., 4.]])
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from weft.errors import ArgumentError, DTypeError, FunctionError, WeftError
from weft.fn.binding import parameters
from weft.fn.fingerprint import standing_for
from weft.spec.arguments import reads
from weft.spec.dtypes import DTypeLike, read_dtype

Function: TypeAlias = Callable[..., torch.Tensor]


_MOST_HEADS = 1 << 16
#: What Python and torch raise for arguments of other kinds; what torch stops a pass with is none of these.
_OF_ARGUMENTS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, ArithmeticError)


def ready(function: Function) -> Callable[..., Any]:
    """Let a function of a value be called without one, with its options by position or by name: it gets them set."""
    kind = inspect.Parameter.KEYWORD_ONLY
    options = tuple(name for name, each in inspect.signature(function).parameters.items() if each.kind is kind)

    @functools.wraps(function)
    def either(*arguments: Any, **named: Any) -> Any:
        if arguments and isinstance(arguments[0], torch.Tensor):
            try:
                return function(*arguments, **named)
            except _OF_ARGUMENTS as error:
                if isinstance(error, WeftError):
                    raise
                reason = str(error).partition("\n")[0]
                raise FunctionError(f"{function.__name__} cannot be called with these: {reason}") from error
        if len(arguments) > len(options) or any(name not in options for name in named):
            takes = f"its options are {', '.join(options)}" if options else "it has no options"
            raise FunctionError(f"{function.__name__} is called with a tensor first, or with options alone: {takes}")
        return functools.partial(either, **{**dict(zip(options, arguments, strict=False)), **named})

    return standing_for(either, function)


def chain(*functions: Function) -> Function:
    """One function that applies `functions` from left to right; it takes what each of them takes after the value.

    A parameter of one name is one parameter: two of the functions get the same operand for it. Defaults stay defaults.
    """
    for function in functions:
        if not callable(function):
            raise FunctionError(f"chain takes functions, not {type(function).__name__}")
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
    return standing_for(chained, ("chain", steps))


def _default(function: Any, name: str) -> Any:
    target = function.forward if isinstance(function, torch.nn.Module) else function
    return inspect.signature(target).parameters[name].default


# -- operands ----------------------------------------------------------------------------------------------------------


@ready
def bias(value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """value + bias."""
    return value + bias


@ready
def scale(value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """value * scale."""
    return value * scale


# -- activations -------------------------------------------------------------------------------------------------------


@ready
def relu(value: torch.Tensor) -> torch.Tensor:
    """The larger of the value and 0."""
    return torch.relu(value)


@ready
def silu(value: torch.Tensor) -> torch.Tensor:
    """The value times its sigmoid."""
    return functional.silu(value)


@ready
def sigmoid(value: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-value))``."""
    return torch.sigmoid(value)


@ready
def tanh(value: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent."""
    return torch.tanh(value)


@ready
def leaky_relu(value: torch.Tensor, *, slope: float = 0.01) -> torch.Tensor:
    """`slope` times the value where that is negative."""
    return functional.leaky_relu(value, slope)


@ready
def elu(value: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    """``alpha * (exp(value) - 1)`` where the value is negative."""
    return functional.elu(value, alpha)


@ready
def gelu(value: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """The value times the normal distribution's function of it; "tanh" for its usual approximation."""
    return functional.gelu(value, approximate=approximate)


@ready
def softcap(value: torch.Tensor, *, cap: float = 50.0) -> torch.Tensor:
    """``cap * tanh(value / cap)``: attention scores kept within -cap and cap, as in Gemma 2."""
    return cap * torch.tanh(value / cap)


# -- masks and scales of attention; `i` and `j` are coordinates, of queries and keys -----------------------------------


@ready
def masked(value: torch.Tensor, mask: torch.Tensor, *, fill: float = -math.inf) -> torch.Tensor:
    """The value where the operand `mask` (bool) is true, else `fill`."""
    return torch.where(mask, value, fill)


@ready
def causal(
    value: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *, offset: int = 0, fill: float = -math.inf
) -> torch.Tensor:
    """The value where ``j <= i + offset``, else `fill`."""
    return torch.where(j <= i + offset, value, fill)


@ready
def banded(
    value: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *, before: int, after: int, fill: float = -math.inf
) -> torch.Tensor:
    """The value where ``i - before <= j <= i + after``, else `fill`."""
    return torch.where((j >= i - before) & (j <= i + after), value, fill)


@ready
def sliding_window(
    value: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *, window: int, fill: float = -math.inf
) -> torch.Tensor:
    """The value where ``i - window < j <= i``, else `fill`: each query sees itself and the `window - 1` keys before."""
    return torch.where((j > i - window) & (j <= i), value, fill)


@ready
def alibi(value: torch.Tensor, i: torch.Tensor, j: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """``value + slope * (j - i)``: a bias by distance, its operand `slope` along the mode of heads.

    Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases", 2022; `alibi_slopes` has theirs.
    """
    return value + slope * (j - i).to(value.dtype)


@reads("functions.alibi_slopes")
def alibi_slopes(heads: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The slopes ``2 ** (-8 h / heads)`` for h from 1 to `heads`, float32: section 3 of the same paper."""
    if not 1 <= heads <= _MOST_HEADS:
        raise ArgumentError(f"heads is a number from 1 to {_MOST_HEADS}, not {heads}")
    return 2.0 ** (torch.arange(1, heads + 1, dtype=torch.float32, device=device) * (-8.0 / heads))


@ready
def decay(value: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *, rate: float) -> torch.Tensor:
    """``value * rate ** (i - j)`` where ``j <= i``, else 0: the decay mask of retention (Sun et al., 2023)."""
    distance = torch.clamp(i - j, min=0).to(value.dtype)
    return torch.where(j <= i, value * torch.exp(distance * math.log(rate)), 0.0)


@ready
def rotary(value: torch.Tensor, i: torch.Tensor, d: torch.Tensor, *, pairs: int, base: float = 10000.0) -> torch.Tensor:
    """Complex values turned by the angle ``i * base ** (-d / pairs)``: rotary position embedding (Su et al., 2021).

    A value is a pair of features seen as one complex number (`torch.view_as_complex`); `i` is the coordinate of its
    position, `d` of the pair, from 0 to `pairs - 1`.
    """
    angle = i.to(torch.float32) * torch.exp(d.to(torch.float32) * (-math.log(base) / pairs))
    return value * torch.complex(torch.cos(angle), torch.sin(angle))


# -- quantized values: scales and zeros are operands, and have any modes, of blocks say --------------------------------


@ready
def dequantize(value: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | float = 0.0) -> torch.Tensor:
    """``(value - zero) * scale``; the operand `zero` may be left out."""
    return (value - zero) * scale


@reads("functions.quantize")
def quantize(dtype: DTypeLike = torch.int8) -> Function:
    """``value / scale``, plus the operand `zero` where it is given, rounded and saturated to `dtype`."""
    return functools.partial(_quantized, dtype=read_dtype("dtype", dtype))


def _quantized(
    value: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | float = 0.0, *, dtype: torch.dtype
) -> torch.Tensor:
    return _saturated(value / scale + zero, dtype=dtype)


# -- random numbers ----------------------------------------------------------------------------------------------------


def uniform(seed: int, *coordinates: torch.Tensor) -> torch.Tensor:
    """A number from 0 to 1 (excluded), a multiple of 2^-24, that depends on the seed and the coordinates alone.

    The coordinates, 32 bits at a time, go into a hash one after the other: each is added to the state times an odd
    constant, and the state is then mixed by `lowbias32` (two multiplications and three shifts; Chris Wellons,
    "Prospecting for Hash Functions", 2018). float32.
    """
    if not isinstance(seed, int):
        raise FunctionError(f"seed is a whole number, not {type(seed).__name__}")
    if not coordinates:
        raise FunctionError("uniform takes one coordinate at least: it is one number of a tensor of them")
    for coordinate in coordinates:
        if not isinstance(coordinate, torch.Tensor) or coordinate.is_floating_point() or coordinate.is_complex():
            raise FunctionError("coordinates are tensors of whole numbers, as `indices` names them")
    try:
        return _hashed(seed, *coordinates)
    except RuntimeError as error:  # of torch: tensors that do not broadcast, or have no values
        raise FunctionError(f"uniform cannot hash these: {str(error).partition(chr(10))[0]}") from error


def _hashed(seed: int, *coordinates: torch.Tensor) -> torch.Tensor:
    state: Any = _signed(seed ^ (seed >> 32))
    for coordinate in coordinates:
        halves = [coordinate.to(torch.int32)]
        if coordinate.dtype == torch.int64:
            halves.append((coordinate >> 32).to(torch.int32))
        for half in halves:
            state = _mixed(half * _signed(0x9E3779B1) + state)
    return ((state >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


standing_for(uniform, _hashed)


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


@reads("functions.dropout")
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


@reads("functions.saturate")
def saturate(dtype: DTypeLike) -> Function:
    """The value as `dtype`: past its range its extreme value, for integers rounded to nearest (ties to even).

    NaN stays NaN in floating types and becomes 0 in integer ones. Infinities become the largest finite values.
    """
    wanted = read_dtype("dtype", dtype)
    if wanted.is_complex or wanted is torch.bool:
        raise DTypeError(f"{wanted} has no range to saturate to")
    return functools.partial(_saturated, dtype=wanted)


def _saturated(value: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        highest = torch.finfo(dtype).max
        return value.clamp(-highest, highest).to(dtype)
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

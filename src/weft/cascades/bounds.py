"""The least and the largest value that an operation has in each block, from those of its arguments.

torch makes them itself, in the operation's own types: it rounds, casts and promotes the ends of an interval as it does
what is between. Where an operation neither rises nor falls along an argument, and where whole numbers may wrap, the
result is anything of its type.

What is masked stays masked whatever is added to it or multiplied with it: -inf plus anything is -inf here, 0 times
anything 0. It may be NaN as well then, and no condition on it is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.fn.graphs import name_of
from weft.fn.reductions import is_reduction


class Bounds(NamedTuple):
    """The ends in each block, of the value's type, and whether it may be NaN. A Python number is both of its ends."""

    low: Any
    high: Any
    nan: Any = False

    def exactly(self, value: float) -> Any:
        """Where it has no other value."""
        if value == -math.inf:
            return self.high == value
        return self.low == value if value == math.inf else (self.low == value) & (self.high == value)


Call = Callable[..., Any]
Pair = tuple[Tensor, Tensor]

_TYPES = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
))  # fmt: skip
#: Along which of its arguments an operation rises, and falls.
_SIGNS = {
    "add": "++", "sub": "+-", "rsub": "-+", "neg": "-", "maximum": "++", "minimum": "++", "clamp_min": "++",
    "clamp_max": "++", "relu": "+", "floor": "+", "ceil": "+", "trunc": "+", "round": "+", "exp": "+", "tanh": "+",
    "sigmoid": "+", "lt": "-+", "le": "-+", "gt": "+-", "ge": "+-", "logical_and": "++", "logical_or": "++",
    "logical_not": "-", "bitwise_not": "-", "bitwise_and": "++", "bitwise_or": "++",
}  # fmt: skip
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")  # of whole numbers they do neither
_EITHER = ("logical_and", "logical_or", "bitwise_and", "bitwise_or")  # one condition may decide
_WRAP = ("add", "sub", "rsub", "mul", "neg", "abs")  # whole numbers past the ends of their type
_NEARLY = ("exp", "tanh", "sigmoid", "div")  # torch's several ways to compute them differ in the last places
_TERMS = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}  # signs of what is added


def bounds_of(node: fx.Node, values: Mapping[fx.Node, Bounds | None]) -> Bounds | None:
    """The bounds of an operation's value, from those of its arguments among `values`; None for anything."""
    dtype, given = node.meta["dtype"], [_argument(each, values) for each in node.args]
    if is_reduction(node):
        x = given[0] if node.args[1] == "softmax" else None
        return None if x is None else _only(x.exactly(-math.inf), 0.0, dtype)
    name = name_of(node)
    if name in ("full_like", "scalar_tensor"):
        number: Any = node.args[name == "full_like"]
        value = torch.full((1,) if name == "full_like" else (), number, dtype=dtype, device="cpu")
        return Bounds(value, value, number != number)
    if node.kwargs.keys() - {"dtype"} or not {each.meta["dtype"] for each in (node, *node.all_input_nodes)} <= _TYPES:
        return None
    if name == "where":
        x, y = (each and _converted(each, dtype) for each in given[1:])
        return _chosen(given[0] or _uncertain(), x, y, dtype)
    call: Call = partial(node.target, **node.kwargs)  # type: ignore[arg-type,misc,operator]
    if name in _EITHER and dtype == torch.bool and any(given):
        found = _ends(name, call, [_truth(each) if each else _uncertain() for each in given])
        return found and Bounds(*found)
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return _masked(name, given, dtype) if known else None
    if name == "_to_copy":
        return _converted(known[0], dtype)
    if name in ("eq", "ne"):
        return _equal(known[0], known[1], differ=name == "ne")
    if name in _BITS:
        return _bits(call, known[0], known[1], dtype)
    rule = _condition if dtype == torch.bool else _floating if dtype.is_floating_point else _whole
    return rule(name, call, known, dtype)


def _argument(value: Any, values: Mapping[fx.Node, Bounds | None]) -> Bounds | None:
    if isinstance(value, fx.Node):
        return values.get(value)
    return Bounds(value, value, value != value) if isinstance(value, (bool, int, float)) else None


# -- by the type of the result -----------------------------------------------------------------------------------------


def _condition(name: str, call: Call, given: Sequence[Bounds], dtype: torch.dtype) -> Bounds | None:
    """A truth value; comparisons do not hold for NaN."""
    found = _ends(name, call, [_truth(each) for each in given] if name.startswith("logical") else given)
    return None if found is None else Bounds(_sure(found[0], _nan(given)), found[1])


def _whole(name: str, call: Call, given: Sequence[Bounds], dtype: torch.dtype) -> Bounds | None:
    """A whole number."""
    if name == "floor_divide":
        least, most = _span(given[1])
        return Bounds(*_corners(call, *given)) if 0 < least <= most <= torch.iinfo(dtype).max else None
    found = _ends(name, call, given)
    if found is None or name not in _WRAP:
        return found and Bounds(*found)
    least, most = _ends(name, call, [_widest(each) for each in given])  # type: ignore[misc]
    return Bounds(*found) if _fits(least.item(), most.item(), dtype) else None


def _floating(name: str, call: Call, given: Sequence[Bounds], dtype: torch.dtype) -> Bounds | None:
    """A floating value."""
    given = [each if _is_floating(each) else _as(each, dtype) for each in given]
    found = _ends(name, call, given) if name != "floor_divide" else None
    if found is None:
        return None
    low, high = found
    lost, nan = ~(low.isfinite() & high.isfinite()), _nan(given)
    if name == "div":
        lost = lost | ~_tensor((given[1].low > 0) | (given[1].high < 0))
    if lost.any():
        if name in _TERMS or name in ("mul", "div"):  # infinities make NaN
            nan = nan | lost
        if name != "div":
            lost = low.isnan() | high.isnan()
        low, high = torch.where(lost, -math.inf, low), torch.where(lost, math.inf, high)
        for value, exact in _absorbed(name, given):
            low, high = torch.where(exact, value, low), torch.where(exact, value, high)
    if name in _NEARLY:
        x = given[0]
        exact = (x.low == x.high) & (x.low.isinf() | (x.low == 0))
        low, high = (torch.where(exact, *ends) for ends in zip((low, high), _around(low, high), strict=True))
    return Bounds(low, high, nan)


def _absorbed(name: str, given: Sequence[Bounds | None]) -> list[tuple[float, Tensor]]:
    """Where a value is a mask, which it is whatever is added to that or multiplied with it."""
    if name in ("mul", "div"):
        return [(0.0, _tensor(x.exactly(0))) for x in given[: 2 if name == "mul" else 1] if x is not None]
    if name not in _TERMS:
        return []
    pairs = [(x, sign) for x, sign in zip(given, _TERMS[name], strict=True) if x is not None]
    down, up = (
        reduce(torch.logical_or, [_tensor(x.exactly(sign * value)) for x, sign in pairs])
        for value in (-math.inf, math.inf)
    )
    return [(-math.inf, down & ~up), (math.inf, up & ~down)]


def _masked(name: str, given: Sequence[Bounds | None], dtype: torch.dtype) -> Bounds | None:
    """The bounds where nothing is known of some argument."""
    for value, exact in _absorbed(name, given) if dtype.is_floating_point else ():
        if exact.any():
            return _only(exact, value, dtype)
    return None


def _only(exact: Tensor, value: float, dtype: torch.dtype) -> Bounds:
    """One value in some blocks, anything elsewhere, and NaN perhaps."""
    low, high = (torch.where(exact, value, end).to(dtype) for end in (-math.inf, math.inf))
    return Bounds(low, high, True)


def _around(low: Tensor, high: Tensor) -> Pair:
    """The ends of a value that may be rounded otherwise, or to 0."""
    kind = torch.finfo(low.dtype)
    low, high = low.clamp(max=kind.max), high.clamp(min=-kind.max)
    return low - (low.abs() * (8 * kind.eps) + 2 * kind.tiny), high + (high.abs() * (8 * kind.eps) + 2 * kind.tiny)


# -- between types -----------------------------------------------------------------------------------------------------


def _converted(x: Bounds, dtype: torch.dtype) -> Bounds | None:
    """A value in another type."""
    if dtype == torch.bool:
        return _truth(x)
    if dtype.is_floating_point or _fits(*_span(x), dtype):
        return _as(x, dtype)
    return None


def _span(x: Bounds) -> tuple[Any, Any]:
    """The least and the largest value of all blocks; NaN where a value may be NaN."""
    if not isinstance(x.low, Tensor):
        return x.low, x.high
    return (x.low.amin().item(), x.high.amax().item()) if not _tensor(x.nan).any() else (math.nan, math.nan)


def _widest(x: Bounds) -> Bounds:
    """The ends over all blocks, in float64; a number stays one."""
    if not isinstance(x.low, Tensor):
        return x
    return Bounds(x.low.amin().to(torch.float64), x.high.amax().to(torch.float64))


def _fits(least: float, most: float, dtype: torch.dtype) -> bool:
    """Whether whole numbers, rounded to float64 perhaps, do not wrap in a type."""
    kind = torch.iinfo(dtype)
    return max(kind.min, -(2**62)) <= least <= most <= min(kind.max, 2**62)


def _is_floating(x: Bounds) -> bool:
    return not isinstance(x.low, Tensor) or x.low.is_floating_point()


def _as(x: Bounds, dtype: torch.dtype) -> Bounds:
    """The ends in another type; a number stays one."""
    return Bounds(x.low.to(dtype), x.high.to(dtype), x.nan) if isinstance(x.low, Tensor) else x


def _truth(x: Bounds) -> Bounds:
    """Whether a value is not 0."""
    if isinstance(x.low, Tensor) and x.low.dtype == torch.bool:
        return x
    return Bounds(_tensor((x.low > 0) | (x.high < 0)), _tensor((x.low != 0) | (x.high != 0)) | x.nan)


# -- ends of intervals -------------------------------------------------------------------------------------------------


def _ends(name: str, call: Call, given: Sequence[Bounds]) -> Pair | None:
    """The ends of an operation's values; None where they do not follow from those of its arguments."""
    if name in ("mul", "div"):
        return _corners(call, *given)
    if name == "abs":
        ((low, high, _),) = given
        below, above = call(low), call(high)
        return torch.where((low <= 0) & (high >= 0), 0, torch.minimum(below, above)), torch.maximum(below, above)
    signs = _SIGNS.get(name)
    if signs is None or len(given) != len(signs):
        return None
    low, high = (call(*(x[at ^ (sign == "-")] for x, sign in zip(given, signs, strict=True))) for at in (0, 1))
    return low, high


def _corners(call: Call, x: Bounds, y: Bounds) -> Pair:
    """The ends of an operation that rises or falls along each of two arguments."""
    found = [call(p, q) for p in x[:2] for q in y[: 1 if y.low is y.high else 2]]
    return reduce(torch.minimum, found), reduce(torch.maximum, found)


def _equal(x: Bounds, y: Bounds, differ: bool) -> Bounds:
    always = _sure((x.low == y.high) & (x.high == y.low), _nan((x, y)))
    ever = (x.low <= y.high) & (x.high >= y.low)
    return Bounds(~ever, ~always) if differ else Bounds(always, ever)


def _bits(call: Call, x: Bounds, y: Bounds, dtype: torch.dtype) -> Bounds:
    """An operation on bits, known in blocks where both arguments have one value."""
    exact, found = _tensor((x.low == x.high) & (y.low == y.high)), call(x.low, y.low)
    return Bounds(*(torch.where(exact, found, end) for end in _anything(dtype)[:2]))


def _chosen(condition: Bounds, x: Bounds | None, y: Bounds | None, dtype: torch.dtype) -> Bounds | None:
    """One value where a condition holds, the other where it does not, and either where that is uncertain."""
    if x is None and y is None:
        return None
    (always, ever, _), x, y = condition, x or _anything(dtype), y or _anything(dtype)
    low, high = ([torch.where(each, x[at], y[at]) for each in (always, ever)] for at in (0, 1))
    nan = False if x.nan is False and y.nan is False else (ever & x.nan) | (~always & y.nan)
    return Bounds(torch.minimum(*low), torch.maximum(*high), nan)


def _anything(dtype: torch.dtype) -> Bounds:
    """Any value of a type."""
    if dtype.is_floating_point:
        return Bounds(-math.inf, math.inf, True)
    return Bounds(False, True) if dtype == torch.bool else Bounds(torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _nan(given: Sequence[Bounds]) -> Any:
    """Where some argument may be NaN."""
    return reduce(lambda x, y: x | y, [each.nan for each in given])


def _sure(holds: Tensor, nan: Any) -> Tensor:
    return holds if nan is False else holds & ~_tensor(nan)


def _uncertain() -> Bounds:
    return Bounds(_tensor(False), _tensor(True))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")

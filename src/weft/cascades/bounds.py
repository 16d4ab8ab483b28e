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

from weft.fn.reductions import is_reduction


class Bounds(NamedTuple):
    """The ends in each block, of the value's type, and whether it may be NaN. A Python number is both of its ends."""

    low: Any
    high: Any
    nan: Any = False

    def exactly(self, value: float) -> Tensor:
        """Where it has no other value."""
        return _tensor((self.low == value) & (self.high == value))


Call = Callable[..., Any]
Pair = tuple[Tensor, Tensor]

_TYPES = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
))  # fmt: skip
#: Along which of its arguments an operation rises, and falls.
_SIGNS = {
    "add": "++", "sub": "+-", "rsub": "-+", "neg": "-", "maximum": "++", "minimum": "++", "clamp": "+++",
    "clamp_min": "++", "clamp_max": "++", "relu": "+", "floor": "+", "ceil": "+", "trunc": "+", "round": "+",
    "exp": "+", "tanh": "+", "sigmoid": "+", "lt": "-+", "le": "-+", "gt": "+-", "ge": "+-", "logical_and": "++",
    "logical_or": "++", "logical_not": "-", "bitwise_not": "-", "bitwise_and": "++", "bitwise_or": "++",
}  # fmt: skip
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")  # of whole numbers they do neither
_WRAP = ("add", "sub", "rsub", "mul", "neg", "abs")  # whole numbers past the ends of their type
_NEARLY = ("exp", "tanh", "sigmoid", "div")  # torch's several ways to compute them differ in the last places
_TERMS = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}  # signs of what is added


def bounds_of(node: fx.Node, values: Mapping[fx.Node, Bounds]) -> Bounds:
    """The bounds of an operation's value; those of arguments are `values`, or anything of their type."""
    given = [_argument(each, values) for each in node.args]
    if is_reduction(node):
        masked = given[0].exactly(-math.inf) if node.args[1] == "softmax" else _tensor(False)
        return _where(masked, Bounds(0.0, 0.0, True), _unknown(node))
    name, dtype = node.target._schema.name.partition("::")[2], node.meta["dtype"]  # type: ignore[union-attr]
    if name in ("full_like", "scalar_tensor"):
        number = torch.full((), node.args[name == "full_like"], dtype=dtype, device="cpu")  # type: ignore[arg-type]
        return Bounds(number, number, number.isnan())
    if node.kwargs.keys() - {"dtype"} or not {each.meta["dtype"] for each in (node, *node.all_input_nodes)} <= _TYPES:
        return _unknown(node)
    if name == "_to_copy":
        return _converted(given[0], node)
    if name == "where":
        return _chosen(_truth(given[0]), *(_converted(each, node) for each in given[1:]))
    if name in ("eq", "ne"):
        return _equal(*given, differ=name == "ne")
    if name in _BITS and (dtype != torch.bool or name == "bitwise_xor"):
        x, y = given
        found = node.target(x.low, y.low)  # type: ignore[operator]
        return _where((x.low == x.high) & (y.low == y.high), Bounds(found, found), _unknown(node))
    rule = _condition if dtype == torch.bool else _floating if dtype.is_floating_point else _whole
    return rule(name, partial(node.target, **node.kwargs), given, node)  # type: ignore[arg-type]


def _argument(value: Any, values: Mapping[fx.Node, Bounds]) -> Any:
    if isinstance(value, fx.Node):
        return values[value] if value in values else _unknown(value)
    return Bounds(value, value, value != value) if isinstance(value, (bool, int, float)) else value


def _unknown(node: fx.Node) -> Bounds:
    """Anything of a node's type, or anything at all."""
    dtype, shape = node.meta["dtype"], () if node.meta["scalar"] else (1,)
    dtype = dtype if dtype in _TYPES else torch.float64
    if dtype == torch.bool or dtype.is_floating_point:
        ends: tuple[float, float] = (False, True) if dtype == torch.bool else (-math.inf, math.inf)
    else:
        ends = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return Bounds(*(torch.full(shape, end, dtype=dtype, device="cpu") for end in ends), dtype.is_floating_point)


# -- by the type of the result -----------------------------------------------------------------------------------------


def _condition(name: str, call: Call, given: Sequence[Any], node: fx.Node) -> Bounds:
    """A truth value; comparisons do not hold for NaN."""
    found = _ends(name, call, [_truth(each) for each in given] if name.startswith("logical") else given)
    return _unknown(node) if found is None else Bounds(found[0] & ~_nan(given), found[1])


def _whole(name: str, call: Call, given: Sequence[Any], node: fx.Node) -> Bounds:
    """A whole number."""
    if name == "floor_divide":
        x, y = given
        known = _tensor((y.low > 0) & (y.high <= torch.iinfo(node.meta["dtype"]).max))
        y = Bounds(*(torch.where(known, end, 1) for end in y[:2]))
        return _where(known, Bounds(*_corners(call, x, y)), _unknown(node))
    found = _ends(name, call, given)
    if found is None or name not in _WRAP:
        return _unknown(node) if found is None else Bounds(*found)
    wide = _ends(name, call, [_as(each, torch.float64) for each in given])
    assert wide is not None
    return _fitting(found, wide, node)


def _floating(name: str, call: Call, given: Sequence[Any], node: fx.Node) -> Bounds:
    """A floating value."""
    given = [each if _is_floating(each) else _as(each, node.meta["dtype"]) for each in given]
    found = _ends(name, call, given)
    if found is None:
        return _unknown(node)
    low, high = found
    lost = low.isnan() | high.isnan()
    if name == "div":
        lost = lost | ~_tensor((given[1].low > 0) | (given[1].high < 0))
    nan = _nan(given) | lost
    if name in _TERMS or name == "mul":
        nan = nan | low.isinf() | high.isinf()
    low, high = torch.where(lost, -math.inf, low), torch.where(lost, math.inf, high)
    for value, exact in _exact(name, given):
        low, high = torch.where(exact, value, low), torch.where(exact, value, high)
    if name not in _NEARLY:
        return Bounds(low, high, nan)
    exact = reduce(torch.logical_or, [given[0].exactly(value) for value in (-math.inf, 0, math.inf)])
    return _where(exact, Bounds(low, high, nan), Bounds(*_around(low, high), nan))


def _exact(name: str, given: Sequence[Bounds]) -> list[tuple[float, Tensor]]:
    """Values that are what they are whatever is added, or multiplied, and where."""
    if name == "mul":
        return [(0.0, given[0].exactly(0) | given[1].exactly(0))]
    if name == "div":
        return [(0.0, given[0].exactly(0))]
    if name not in _TERMS:
        return []
    down, up = (
        reduce(torch.logical_or, [x.exactly(sign * value) for x, sign in zip(given, _TERMS[name], strict=True)])
        for value in (-math.inf, math.inf)
    )
    return [(-math.inf, down & ~up), (math.inf, up & ~down)]


def _around(low: Tensor, high: Tensor) -> Pair:
    """The ends of a value that may be rounded otherwise, or to 0."""
    kind = torch.finfo(low.dtype)
    low, high = low.clamp(max=kind.max), high.clamp(min=-kind.max)
    room = [each.abs() * (8 * kind.eps) + 2 * kind.tiny for each in (low, high)]
    return low - room[0], high + room[1]


# -- between types -----------------------------------------------------------------------------------------------------


def _converted(x: Bounds, node: fx.Node) -> Bounds:
    """A value in the type of a node."""
    dtype = node.meta["dtype"]
    if dtype == torch.bool:
        return _truth(x)
    low, high, nan = _as(x, dtype)
    if dtype.is_floating_point:
        return Bounds(low, high, nan)
    return _fitting((low, high), _as(x, torch.float64)[:2], node, nan)


def _fitting(found: Pair, wide: Pair, node: fx.Node, nan: Any = False) -> Bounds:
    """A whole number where it has not wrapped: `wide` is the same in float64."""
    kind = torch.iinfo(node.meta["dtype"])
    fits = (wide[0] >= max(kind.min, -(2**62))) & (wide[1] <= min(kind.max, 2**62)) & ~_tensor(nan)
    return _where(fits, Bounds(*found), _unknown(node))


def _is_floating(x: Any) -> bool:
    return not isinstance(x, Bounds) or not isinstance(x.low, Tensor) or x.low.is_floating_point()


def _as(x: Any, dtype: torch.dtype) -> Any:
    """The ends in another type; a number stays one."""
    if not isinstance(x, Bounds) or not isinstance(x.low, Tensor):
        return x
    return Bounds(x.low.to(dtype), x.high.to(dtype), x.nan)


def _truth(x: Bounds) -> Bounds:
    """Whether a value is not 0."""
    if isinstance(x.low, Tensor) and x.low.dtype == torch.bool:
        return x
    return Bounds(_tensor((x.low > 0) | (x.high < 0)), ~x.exactly(0) | x.nan)


# -- ends of intervals -------------------------------------------------------------------------------------------------


def _ends(name: str, call: Call, given: Sequence[Any]) -> Pair | None:
    """The ends of an operation's values; None where they do not follow from those of its arguments."""
    if name in ("mul", "div") and len(given) == 2:
        return _corners(call, *given)
    if name == "abs":
        below, above = (call(each) for each in given[0][:2])
        inside = (given[0].low <= 0) & (given[0].high >= 0)
        return torch.where(inside, 0, torch.minimum(below, above)), torch.maximum(below, above)
    signs = _SIGNS.get(name)
    if signs is None or len(given) > len(signs):
        return None
    pairs = [x[:2] if isinstance(x, Bounds) else (x, x) for x in given]
    low, high = (call(*(x[at ^ (sign == "-")] for x, sign in zip(pairs, signs, strict=False))) for at in (0, 1))
    return low, high


def _corners(call: Call, x: Bounds, y: Bounds) -> Pair:
    """The ends of an operation that rises or falls along each of two arguments."""
    found = [call(p, q) for p in x[:2] for q in y[: 1 if y.low is y.high else 2]]
    return reduce(torch.minimum, found), reduce(torch.maximum, found)


def _equal(x: Bounds, y: Bounds, differ: bool) -> Bounds:
    always = (x.low == x.high) & (y.low == y.high) & (x.low == y.low) & ~_nan((x, y))
    ever = (x.low <= y.high) & (x.high >= y.low)
    return Bounds(~ever, ~always) if differ else Bounds(always, ever)


def _chosen(condition: Bounds, x: Bounds, y: Bounds) -> Bounds:
    """One value where a condition holds, the other where it does not, and either where that is uncertain."""
    always, ever = condition[:2]
    low = torch.where(always, x.low, torch.where(ever, torch.minimum(x.low, y.low), y.low))
    high = torch.where(always, x.high, torch.where(ever, torch.maximum(x.high, y.high), y.high))
    return Bounds(low, high, (ever & x.nan) | (~always & y.nan))


def _where(exact: Any, x: Bounds, y: Bounds) -> Bounds:
    """Bounds in some blocks, and others elsewhere."""
    exact = _tensor(exact)
    ends = (torch.where(exact, p, q) for p, q in zip(x[:2], y[:2], strict=True))
    return Bounds(*ends, (exact & x.nan) | (~exact & y.nan))


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, device="cpu")


def _nan(given: Sequence[Any]) -> Tensor:
    """Where some argument may be NaN."""
    return _tensor(reduce(lambda x, y: x | y, [each.nan for each in given if isinstance(each, Bounds)], False))

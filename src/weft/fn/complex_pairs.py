"""Complex numbers as pairs of real ones: arithmetic, parts and moduli, comparisons, roots and exponentials.

No intermediate square overflows: quotients follow R. L. Smith (1962), moduli use `hypot`. What elementary functions are
is in any table (Abramowitz and Stegun 1964, chapter 4); what overflows on the way is left out of the way: a sine that
is zero stays zero beside an infinite hyperbolic one, and the hyperbolic tangent is written in exp(-2 |x|).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.errors import UnsupportedError
from weft.fn.graphs import name_of, output_of, results_of, run

Real = Any  # a tensor or a Python number


class Pair(NamedTuple):
    re: Real
    im: Real


Operation = Callable[..., Any]  # of pairs, real values and Python numbers


def as_pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    return Pair(value.real, value.imag) if isinstance(value, complex) else Pair(value, 0.0)


def as_tensor(part: Real, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return part if isinstance(part, Tensor) else torch.full_like(like, part, dtype=dtype)


def _of_parts(function: Operation) -> Operation:
    """A function of a complex value that is written as one of its parts, both tensors."""
    return lambda x: function(as_pair(x).re, imag(x))


def _is_zero(part: Real) -> bool:
    return not isinstance(part, Tensor) and part == 0


def _plus(x: Real, y: Real) -> Real:
    return y if _is_zero(x) else x if _is_zero(y) else x + y


def _minus(x: Real, y: Real) -> Real:
    return -y if _is_zero(x) else x if _is_zero(y) else x - y


def _by(x: Real, y: Real) -> Real:
    """A product; a part that is known to be zero multiplies no infinity."""
    return 0.0 if _is_zero(x) or _is_zero(y) else x * y


def _part_by_part(of_reals: Operation, x: Any, y: Any, alpha: Any = 1) -> Pair:
    a, b = as_pair(x), _scaled(y, alpha)
    return Pair(of_reals(a.re, b.re), of_reals(a.im, b.im))


def _scaled(value: Any, alpha: Any) -> Pair:
    return as_pair(value) if alpha == 1 else mul(value, alpha)


def mul(x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    return Pair(_minus(_by(a.re, b.re), _by(a.im, b.im)), _plus(_by(a.re, b.im), _by(a.im, b.re)))


def div(x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    if _is_zero(b.im):
        return Pair(a.re / b.re, 0.0 if _is_zero(a.im) else a.im / b.re)
    b = Pair(*(as_tensor(part, _first_tensor(*a, *b)) for part in b))
    flat = b.re.abs() >= b.im.abs()
    large, small = torch.where(flat, b.re, b.im), torch.where(flat, b.im, b.re)
    ratio = small / large
    size = large + small * ratio
    a_re, a_im = (as_tensor(part, b.re) for part in a)
    re = torch.where(flat, a_re + a_im * ratio, a_re * ratio + a_im)
    im = torch.where(flat, a_im - a_re * ratio, a_im * ratio - a_re)
    return Pair(re / size, im / size)


def _first_tensor(*parts: Real) -> Tensor:
    return next(part for part in parts if isinstance(part, Tensor))


def imag(x: Any) -> Tensor:
    a = as_pair(x)
    return as_tensor(a.im, a.re)


def polar(size: Real, angle: Real) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


def _where(condition: Tensor, x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    like = _first_tensor(*a, *b, condition)
    like = like if like is not condition else condition.to(torch.float64)
    (a_re, a_im), (b_re, b_im) = ([as_tensor(part, like) for part in pair] for pair in (a, b))
    return Pair(torch.where(condition, a_re, b_re), torch.where(condition, a_im, b_im))


def _compared(of_reals: Operation, of_both: Operation, x: Any, y: Any) -> Tensor:
    a, b = as_pair(x), as_pair(y)
    found: Tensor = of_both(of_reals(a.re, b.re), of_reals(a.im, b.im))
    return found


def _copied(x: Any, dtype: torch.dtype | None = None) -> Any:
    a = as_pair(x)
    return a if dtype is None or dtype.is_complex else a.re.to(dtype)


def _full(like: Any, number: Any = None, dtype: torch.dtype | None = None) -> Pair:
    filled = as_pair(like if number is None else number)
    if number is None:
        return filled
    template = as_pair(like).re
    kind = dtype.to_real() if dtype is not None and dtype.is_complex else template.dtype
    return Pair(*(torch.full_like(template, part, dtype=kind) for part in filled))


add, sub = partial(_part_by_part, _plus), partial(_part_by_part, _minus)
reciprocal = partial(div, 1.0)
modulus = _of_parts(torch.hypot)
angle = _of_parts(lambda re, im: torch.atan2(im, re))


# -- roots, exponentials -----------------------------------------------------------------------------------------------

_exp = _of_parts(lambda a, b: polar(torch.exp(a), b))


def _log(x: Any) -> Pair:
    return Pair(torch.log(modulus(x)), angle(x))


def _sqrt(x: Any) -> Pair:
    """The root with a real part that is not negative."""
    a = Pair(as_pair(x).re, imag(x))
    large = torch.sqrt(0.5 * modulus(a) + 0.5 * a.re.abs())
    small = torch.where(large == 0, large, 0.5 * a.im.abs() / large)
    right = a.re >= 0
    return Pair(torch.where(right, large, small), torch.copysign(torch.where(right, small, large), a.im))


def _sgn(x: Any) -> Pair:
    a, size = Pair(as_pair(x).re, imag(x)), modulus(x)
    return Pair(*(torch.where(size == 0, size, part / size) for part in a))


@_of_parts
def _expm1(a: Tensor, b: Tensor) -> Pair:
    """exp(a) cos(b) - 1 is expm1(a) cos(b) - 2 sin(b / 2)^2, which loses nothing near zero."""
    half = torch.sin(0.5 * b)
    return Pair(torch.expm1(a) * torch.cos(b) - 2 * half * half, torch.exp(a) * torch.sin(b))


@_of_parts
def _log1p(a: Tensor, b: Tensor) -> Pair:
    """The modulus of 1 + x is 1 and (2 a + a^2 + b^2) more, under a root; far from one it is taken as it is."""
    near = (a.abs() < 0.5) & (b.abs() < 0.5)
    more = torch.where(near, a * (2 + a) + b * b, 0.0)
    return Pair(torch.where(near, 0.5 * torch.log1p(more), torch.log(torch.hypot(1 + a, b))), torch.atan2(b, 1 + a))


@_of_parts
def _sigmoid(a: Tensor, b: Tensor) -> Pair:
    """1 / (1 + exp(-x)) where that does not overflow, else exp(x) / (1 + exp(x))."""
    right = a >= 0
    small = polar(torch.exp(-a.abs()), torch.where(right, -b, b))
    top = Pair(torch.where(right, 1.0, small.re), torch.where(right, 0.0, small.im))
    return div(top, add(1.0, small))


def _grown(x: Tensor, y: Tensor) -> Tensor:
    """A product in which zero beside infinity stays zero."""
    return torch.where((x == 0) | (y == 0), 0.0, x * y)


@_of_parts
def _tanh(a: Tensor, b: Tensor) -> Pair:
    """(sinh a cosh a + i sin b cos b) / (sinh^2 a + cos^2 b), above and below times 4 exp(-2 |a|)."""
    rest = -torch.expm1(-2 * a.abs())  # 1 - exp(-2 |a|)
    small, cosine = torch.exp(-2 * a.abs()), torch.cos(b)
    below = rest * rest + 4 * small * cosine * cosine
    return Pair(torch.copysign(rest * (1 + small) / below, a), 4 * small * torch.sin(b) * cosine / below)


def _atanh(x: Any) -> Pair:
    """(log(1 + x) - log(1 - x)) / 2."""
    difference = sub(_log1p(x), _log1p(mul(x, -1.0)))
    return Pair(0.5 * difference.re, 0.5 * difference.im)


def _turned(function: Operation) -> Operation:
    """-i f(i x) of a function f: the tangents of the hyperbolic ones."""

    def of_turned(x: Any) -> Pair:
        found = function(Pair(-imag(x), as_pair(x).re))
        return Pair(found.im, -found.re)

    return of_turned


def _pow(x: Any, exponent: Any) -> Pair:
    """Small whole powers by squaring; others as exp(y log x), where 0^y is 0 but for y = 0."""
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and abs(exponent) <= 64:
        return _whole_power(as_pair(x), int(exponent))
    base, power = _tensors(x, exponent), _tensors(exponent, x)
    value, nothing = _exp(mul(power, _log(base))), (base.re == 0) & (base.im == 0)
    one = torch.where((power.re == 0) & (power.im == 0), 1.0, 0.0)
    return Pair(torch.where(nothing, one, value.re), torch.where(nothing, 0.0, value.im))


def _tensors(value: Any, other: Any) -> Pair:
    """Both parts as tensors."""
    like = _first_tensor(*as_pair(value), *as_pair(other))
    return Pair(*(as_tensor(part, like) for part in as_pair(value)))


def _whole_power(base: Pair, exponent: int) -> Pair:
    rest, square, result = abs(exponent), base, None
    while rest:
        if rest & 1:
            result = square if result is None else mul(result, square)
        rest >>= 1
        square = mul(square, square) if rest else square
    if result is None:
        return Pair(torch.ones_like(square.re), 0.0)
    return reciprocal(result) if exponent < 0 else result


#: Operations of torch by name, as functions of pairs.
OPERATIONS: dict[str, Operation] = {
    "add": add, "sub": sub, "rsub": lambda x, y, alpha=1: sub(y, _scaled(x, alpha)), "mul": mul, "div": div,
    "reciprocal": reciprocal, "neg": lambda x: Pair(*(-part for part in as_pair(x))),
    "conj_physical": lambda x: Pair(as_pair(x).re, -as_pair(x).im), "real": lambda x: as_pair(x).re, "imag": imag,
    "abs": modulus, "angle": angle, "complex": Pair, "polar": polar, "where": _where,
    "eq": partial(_compared, operator.eq, operator.and_), "ne": partial(_compared, operator.ne, operator.or_),
    "_to_copy": _copied, "copy": _copied, "detach": as_pair, "full_like": _full, "scalar_tensor": _full,
    "exp": _exp, "log": _log, "sqrt": _sqrt, "square": lambda x: mul(x, x), "expm1": _expm1,
    "rsqrt": lambda x: reciprocal(_sqrt(x)), "sgn": _sgn, "exp2": lambda x: _exp(mul(x, math.log(2))),
    "log2": lambda x: mul(_log(x), 1 / math.log(2)), "log10": lambda x: mul(_log(x), 1 / math.log(10)),
    "log1p": _log1p, "sigmoid": _sigmoid, "silu": lambda x: mul(x, _sigmoid(x)), "pow": _pow,
    "sin": _of_parts(
        lambda a, b: Pair(_grown(torch.sin(a), torch.cosh(b)), _grown(torch.sinh(b), torch.cos(a)))
    ),
    "cos": _of_parts(
        lambda a, b: Pair(_grown(torch.cosh(b), torch.cos(a)), -_grown(torch.sin(a), torch.sinh(b)))
    ),
    "sinh": _of_parts(
        lambda a, b: Pair(_grown(torch.sinh(a), torch.cos(b)), _grown(torch.sin(b), torch.cosh(a)))
    ),
    "cosh": _of_parts(
        lambda a, b: Pair(_grown(torch.cosh(a), torch.cos(b)), _grown(torch.sin(b), torch.sinh(a)))
    ),
    "tanh": _tanh, "tan": _turned(_tanh), "atanh": _atanh, "atan": _turned(_atanh),
}  # fmt: skip


def split_complex(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of real values. Each complex input becomes two: its real part, then its imaginary part.

    A complex result becomes two results in the same order. Raises `UnsupportedError` for an operation that has no
    real form here.
    """
    for node in graph.nodes:
        if node.op == "call_function" and any(each.meta["dtype"].is_complex for each in (node, *node.all_input_nodes)):
            _operation_of(node)

    def of_parts(*parts: Tensor) -> Any:
        given = iter(parts)
        complexes = [node.meta["dtype"].is_complex for node in graph.nodes if node.op == "placeholder"]
        values = run(graph, [Pair(next(given), next(given)) if both else next(given) for both in complexes], _computed)
        pairs = zip(results_of(graph), values, strict=True)
        found = tuple([part for node, value in pairs for part in _yielded(value, node.meta["dtype"], parts[0])])
        return found if len(found) > 1 or isinstance(output_of(graph), tuple) else found[0]

    return of_parts


def _yielded(value: Any, dtype: torch.dtype, like: Tensor) -> list[Tensor]:
    """A real value, or both parts of a complex one, in the type that torch gives the result."""
    parts = as_pair(value) if dtype.is_complex else (value,)
    return [as_tensor(part, like, dtype.to_real()) for part in parts]


def _computed(node: fx.Node, args: Any, kwargs: Any) -> Any:
    dtype = node.meta["dtype"]
    if not dtype.is_complex and not any(isinstance(value, Pair) for value in (*args, *kwargs.values())):
        return node.target(*args, **kwargs)  # type: ignore[operator]
    value = _operation_of(node)(*args, **{key: each for key, each in kwargs.items() if key in ("alpha", "dtype")})
    if not dtype.is_complex:
        return value
    return Pair(*(part.to(dtype.to_real()) if isinstance(part, Tensor) else part for part in as_pair(value)))


def _operation_of(node: fx.Node) -> Operation:
    if name_of(node) not in OPERATIONS:
        raise UnsupportedError(f"{name_of(node)} of complex values does not run on the GPU yet")
    return OPERATIONS[name_of(node)]

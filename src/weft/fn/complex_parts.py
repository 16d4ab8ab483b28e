"""A function of complex values as a function of their real and imaginary parts: Triton has no complex types.

The recorded graph is run on pairs of real tensors, with each complex operation written in real ones. That run is
recorded in its turn. No intermediate square overflows: quotients follow R. L. Smith (1962), moduli use `hypot`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.errors import UnsupportedError

Real = Any  # a tensor or a Python number


class Pair(NamedTuple):
    re: Real
    im: Real


Operation = Callable[..., Any]  # of pairs, real values and Python numbers

_REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_OPERATIONS: dict[str, Operation] = {}


def split_complex(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of real values. Each complex input becomes two: its real part, then its imaginary part.

    A complex result becomes two results in the same order. Raises `UnsupportedError` for an operation that has no
    real form here.
    """
    for node in graph.nodes:
        if node.op == "call_function" and any(each.meta["dtype"].is_complex for each in (node, *node.all_input_nodes)):
            _operation_of(node)
    (result,) = next(node for node in graph.nodes if node.op == "output").args

    def run(*parts: Tensor) -> Any:
        given = iter(parts)
        known: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                known[node] = Pair(value, next(given)) if node.meta["dtype"].is_complex else value
            elif node.op == "call_function":
                known[node] = _computed(node, known)
        if isinstance(result, tuple):
            return tuple(part for node in result for part in _yielded(node, known, parts[0]))
        found = _yielded(result, known, parts[0])
        return found if len(found) > 1 else found[0]

    return run


def _yielded(node: fx.Node, known: dict[fx.Node, Any], like: Tensor) -> tuple[Tensor, ...]:
    """A real value, or both parts of a complex one, in the type that torch gives the result."""
    dtype = node.meta["dtype"]
    value = _pair(known[node]) if dtype.is_complex else (known[node],)
    return tuple(_tensor(part, like, _REAL_OF.get(dtype, dtype)) for part in value)


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    dtype = node.meta["dtype"]
    if not dtype.is_complex and not any(isinstance(value, Pair) for value in (*args, *kwargs.values())):
        return node.target(*args, **kwargs)  # type: ignore[operator]
    value = _operation_of(node)(*args, **{key: each for key, each in kwargs.items() if key in ("alpha", "dtype")})
    return Pair(*(_typed(part, _REAL_OF[dtype]) for part in _pair(value))) if dtype.is_complex else value


def _operation_of(node: fx.Node) -> Operation:
    name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    if name not in _OPERATIONS:
        raise UnsupportedError(f"{name} of complex values does not run on the GPU yet")
    return _OPERATIONS[name]


def _operation(*names: str) -> Callable[[Operation], Operation]:
    def register(operation: Operation) -> Operation:
        _OPERATIONS.update(dict.fromkeys(names, operation))
        return operation

    return register


def _pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    return Pair(value.real, value.imag) if isinstance(value, complex) else Pair(value, 0.0)


def _typed(part: Real, dtype: torch.dtype) -> Real:
    return part.to(dtype) if isinstance(part, Tensor) else part


def _tensor(part: Real, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return part if isinstance(part, Tensor) else torch.full_like(like, part, dtype=dtype)


def _is_zero(part: Real) -> bool:
    return not isinstance(part, Tensor) and part == 0


def _plus(x: Real, y: Real) -> Real:
    return y if _is_zero(x) else x if _is_zero(y) else x + y


def _minus(x: Real, y: Real) -> Real:
    return -y if _is_zero(x) else x if _is_zero(y) else x - y


def _by(x: Real, y: Real) -> Real:
    """A product; a part that is known to be zero multiplies no infinity."""
    return 0.0 if _is_zero(x) or _is_zero(y) else x * y


@_operation("add")
def _add(x: Any, y: Any, alpha: Any = 1) -> Pair:
    a, b = _pair(x), _scaled(y, alpha)
    return Pair(_plus(a.re, b.re), _plus(a.im, b.im))


@_operation("sub")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    a, b = _pair(x), _scaled(y, alpha)
    return Pair(_minus(a.re, b.re), _minus(a.im, b.im))


@_operation("rsub")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return _sub(y, _scaled(x, alpha))


def _scaled(value: Any, alpha: Any) -> Pair:
    return _pair(value) if alpha == 1 else _mul(value, alpha)


@_operation("mul")
def _mul(x: Any, y: Any) -> Pair:
    a, b = _pair(x), _pair(y)
    return Pair(_minus(_by(a.re, b.re), _by(a.im, b.im)), _plus(_by(a.re, b.im), _by(a.im, b.re)))


@_operation("div")
def _div(x: Any, y: Any) -> Pair:
    a, b = _pair(x), _pair(y)
    if _is_zero(b.im):
        return Pair(a.re / b.re, 0.0 if _is_zero(a.im) else a.im / b.re)
    b = Pair(*(part if isinstance(part, Tensor) else torch.full_like(_any(a, b), part) for part in b))
    flat = b.re.abs() >= b.im.abs()
    large, small = torch.where(flat, b.re, b.im), torch.where(flat, b.im, b.re)
    ratio = small / large
    size = large + small * ratio
    a_re, a_im = (_tensor(part, b.re) for part in a)
    re = torch.where(flat, a_re + a_im * ratio, a_re * ratio + a_im)
    im = torch.where(flat, a_im - a_re * ratio, a_im * ratio - a_re)
    return Pair(re / size, im / size)


def _any(*pairs: Pair) -> Tensor:
    return next(part for pair in pairs for part in pair if isinstance(part, Tensor))


@_operation("reciprocal")
def _reciprocal(x: Any) -> Pair:
    return _div(1.0, x)


@_operation("neg")
def _neg(x: Any) -> Pair:
    a = _pair(x)
    return Pair(-a.re, -a.im)


@_operation("conj_physical")
def _conj(x: Any) -> Pair:
    a = _pair(x)
    return Pair(a.re, -a.im)


@_operation("real")
def _re(x: Any) -> Real:
    return _pair(x).re


@_operation("imag")
def _im(x: Any) -> Real:
    a = _pair(x)
    return _tensor(a.im, a.re)


@_operation("abs")
def _abs(x: Any) -> Real:
    a = _pair(x)
    return torch.hypot(a.re, _im(a))


@_operation("angle")
def _angle(x: Any) -> Real:
    a = _pair(x)
    return torch.atan2(_im(a), a.re)


@_operation("complex")
def _complex(re: Real, im: Real) -> Pair:
    return Pair(re, im)


@_operation("polar")
def _polar(size: Real, angle: Real) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


@_operation("exp")
def _exp(x: Any) -> Pair:
    a = _pair(x)
    return _polar(torch.exp(a.re), _im(a))


@_operation("log")
def _log(x: Any) -> Pair:
    return Pair(torch.log(_abs(x)), _angle(x))


@_operation("sqrt")
def _sqrt(x: Any) -> Pair:
    """The root with a real part that is not negative."""
    a = Pair(_pair(x).re, _im(x))
    large = torch.sqrt(0.5 * _abs(a) + 0.5 * a.re.abs())
    small = torch.where(large == 0, large, 0.5 * a.im.abs() / large)
    right = a.re >= 0
    return Pair(torch.where(right, large, small), torch.copysign(torch.where(right, small, large), a.im))


@_operation("square")
def _square(x: Any) -> Pair:
    return _mul(x, x)


@_operation("pow")
def _pow(x: Any, exponent: Any) -> Pair:
    """Powers of small whole numbers, by squaring."""
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or abs(exponent) > 64:
        raise UnsupportedError(f"complex values to the power {exponent!r} do not run on the GPU yet")
    rest, square, result = abs(int(exponent)), _pair(x), None
    while rest:
        if rest & 1:
            result = square if result is None else _mul(result, square)
        rest >>= 1
        square = _mul(square, square) if rest else square
    if result is None:
        return Pair(torch.ones_like(square.re), 0.0)
    return _reciprocal(result) if exponent < 0 else result


@_operation("where")
def _where(condition: Tensor, x: Any, y: Any) -> Pair:
    a, b = _pair(x), _pair(y)
    reals = [part for part in (*a, *b) if isinstance(part, Tensor)]
    like = reals[0] if reals else condition.to(torch.float64)
    (a_re, a_im), (b_re, b_im) = ([_tensor(part, like) for part in pair] for pair in (a, b))
    return Pair(torch.where(condition, a_re, b_re), torch.where(condition, a_im, b_im))


@_operation("eq")
def _eq(x: Any, y: Any) -> Tensor:
    a, b = _pair(x), _pair(y)
    return (a.re == b.re) & (a.im == b.im)


@_operation("ne")
def _ne(x: Any, y: Any) -> Tensor:
    a, b = _pair(x), _pair(y)
    return (a.re != b.re) | (a.im != b.im)


@_operation("_to_copy", "copy")
def _copied(x: Any, dtype: torch.dtype | None = None) -> Any:
    a = _pair(x)
    if dtype is not None and not dtype.is_complex:
        return a.re.to(dtype)
    return a


@_operation("full_like", "scalar_tensor")
def _full(like: Any, number: Any = None, dtype: torch.dtype | None = None) -> Pair:
    filled = _pair(like if number is None else number)
    if number is None:
        return filled
    template = _pair(like).re
    kind = _REAL_OF.get(dtype, template.dtype) if dtype is not None else template.dtype
    return Pair(*(torch.full_like(template, part, dtype=kind) for part in filled))

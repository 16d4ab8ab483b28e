"""Complex numbers as pairs of real ones: arithmetic, parts and moduli, comparisons.

No intermediate square overflows: quotients follow R. L. Smith (1962), moduli use `hypot`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Real = Any  # a tensor or a Python number


class Pair(NamedTuple):
    re: Real
    im: Real


Operation = Callable[..., Any]  # of pairs, real values and Python numbers

REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
#: Operations of torch by name, as functions of pairs.
OPERATIONS: dict[str, Operation] = {}


def operation(*names: str) -> Callable[[Operation], Operation]:
    def register(operation: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, operation))
        return operation

    return register


def as_pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    return Pair(value.real, value.imag) if isinstance(value, complex) else Pair(value, 0.0)


def typed(part: Real, dtype: torch.dtype) -> Real:
    return part.to(dtype) if isinstance(part, Tensor) else part


def as_tensor(part: Real, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return part if isinstance(part, Tensor) else torch.full_like(like, part, dtype=dtype)


def is_zero(part: Real) -> bool:
    return not isinstance(part, Tensor) and part == 0


def _plus(x: Real, y: Real) -> Real:
    return y if is_zero(x) else x if is_zero(y) else x + y


def _minus(x: Real, y: Real) -> Real:
    return -y if is_zero(x) else x if is_zero(y) else x - y


def _by(x: Real, y: Real) -> Real:
    """A product; a part that is known to be zero multiplies no infinity."""
    return 0.0 if is_zero(x) or is_zero(y) else x * y


@operation("add")
def add(x: Any, y: Any, alpha: Any = 1) -> Pair:
    a, b = as_pair(x), _scaled(y, alpha)
    return Pair(_plus(a.re, b.re), _plus(a.im, b.im))


@operation("sub")
def sub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    a, b = as_pair(x), _scaled(y, alpha)
    return Pair(_minus(a.re, b.re), _minus(a.im, b.im))


@operation("rsub")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return sub(y, _scaled(x, alpha))


def _scaled(value: Any, alpha: Any) -> Pair:
    return as_pair(value) if alpha == 1 else mul(value, alpha)


@operation("mul")
def mul(x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    return Pair(_minus(_by(a.re, b.re), _by(a.im, b.im)), _plus(_by(a.re, b.im), _by(a.im, b.re)))


@operation("div")
def div(x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    if is_zero(b.im):
        return Pair(a.re / b.re, 0.0 if is_zero(a.im) else a.im / b.re)
    b = Pair(*(part if isinstance(part, Tensor) else torch.full_like(_any(a, b), part) for part in b))
    flat = b.re.abs() >= b.im.abs()
    large, small = torch.where(flat, b.re, b.im), torch.where(flat, b.im, b.re)
    ratio = small / large
    size = large + small * ratio
    a_re, a_im = (as_tensor(part, b.re) for part in a)
    re = torch.where(flat, a_re + a_im * ratio, a_re * ratio + a_im)
    im = torch.where(flat, a_im - a_re * ratio, a_im * ratio - a_re)
    return Pair(re / size, im / size)


def _any(*pairs: Pair) -> Tensor:
    return next(part for pair in pairs for part in pair if isinstance(part, Tensor))


@operation("reciprocal")
def reciprocal(x: Any) -> Pair:
    return div(1.0, x)


@operation("neg")
def _neg(x: Any) -> Pair:
    a = as_pair(x)
    return Pair(-a.re, -a.im)


@operation("conj_physical")
def _conj(x: Any) -> Pair:
    a = as_pair(x)
    return Pair(a.re, -a.im)


@operation("real")
def _re(x: Any) -> Real:
    return as_pair(x).re


@operation("imag")
def imag(x: Any) -> Real:
    a = as_pair(x)
    return as_tensor(a.im, a.re)


@operation("abs")
def modulus(x: Any) -> Real:
    a = as_pair(x)
    return torch.hypot(a.re, imag(a))


@operation("angle")
def angle(x: Any) -> Real:
    a = as_pair(x)
    return torch.atan2(imag(a), a.re)


@operation("complex")
def _complex(re: Real, im: Real) -> Pair:
    return Pair(re, im)


@operation("polar")
def polar(size: Real, angle: Real) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


@operation("where")
def _where(condition: Tensor, x: Any, y: Any) -> Pair:
    a, b = as_pair(x), as_pair(y)
    reals = [part for part in (*a, *b) if isinstance(part, Tensor)]
    like = reals[0] if reals else condition.to(torch.float64)
    (a_re, a_im), (b_re, b_im) = ([as_tensor(part, like) for part in pair] for pair in (a, b))
    return Pair(torch.where(condition, a_re, b_re), torch.where(condition, a_im, b_im))


@operation("eq")
def _eq(x: Any, y: Any) -> Tensor:
    a, b = as_pair(x), as_pair(y)
    return (a.re == b.re) & (a.im == b.im)


@operation("ne")
def _ne(x: Any, y: Any) -> Tensor:
    a, b = as_pair(x), as_pair(y)
    return (a.re != b.re) | (a.im != b.im)


@operation("_to_copy", "copy")
def _copied(x: Any, dtype: torch.dtype | None = None) -> Any:
    a = as_pair(x)
    if dtype is not None and not dtype.is_complex:
        return a.re.to(dtype)
    return a


@operation("detach")
def _detached(x: Any) -> Pair:
    return as_pair(x)


@operation("full_like", "scalar_tensor")
def _full(like: Any, number: Any = None, dtype: torch.dtype | None = None) -> Pair:
    filled = as_pair(like if number is None else number)
    if number is None:
        return filled
    template = as_pair(like).re
    kind = REAL_OF.get(dtype, template.dtype) if dtype is not None else template.dtype
    return Pair(*(torch.full_like(template, part, dtype=kind) for part in filled))

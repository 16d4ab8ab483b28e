"""Functions of `jax.numpy` as functions of torch, so that weft traces and fuses them.

A function is traced by JAX on one element, and its jaxpr is run again on torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.extend
import numpy as np
import torch
from jax.interpreters import mlir

import jax
from weft.errors import FunctionError
from weft.fn import reductions
from weft.fn.binding import naming
from weft.spec.dtypes import dtype_name, read_dtype

Function = Callable[..., Any]


def as_torch(
    hook: str, function: Function, value: torch.dtype, names: Sequence[str], types: Mapping[str, torch.dtype]
) -> Function:
    """A function of a value of this type, and of what it takes beside it by name, as torch has it; `FunctionError` for
    what torch has no operation for."""
    avals = [_one(value), *(_one(types[name]) for name in names)]

    def of_jax(value: Any, *beside: Any) -> Any:
        return function(value, **dict(zip(names, beside, strict=True)))

    try:
        closed, made = jax.make_jaxpr(of_jax, return_shape=True)(*avals)
    except jax.errors.ConcretizationTypeError:
        raise FunctionError(f"{hook} asks for the value of an element: choose by jnp.where") from None
    except TypeError as error:
        raise FunctionError(f"{hook} is no function of jax.numpy: {error}") from error
    if not jax.tree_util.all_leaves(made if type(made) in (tuple, list) else [made]):
        raise FunctionError(f"{hook} returns a value, or a tuple of values, not {type(made).__name__}")
    if any(out.aval.shape for out in closed.jaxpr.outvars):
        raise FunctionError(f"{hook} makes an array of an element: a function is of elements alone")
    constants = [_number(hook, each) for each in closed.consts]
    _check(hook, closed.jaxpr)

    def of_torch(value: torch.Tensor, *beside: torch.Tensor, **named: torch.Tensor) -> Any:
        given = [value, *beside, *(named[name] for name in names if name in named)]
        found = tuple(_evaluated(closed.jaxpr, constants, given))
        return found[0] if len(found) == 1 else found

    return naming(("value", *names), of_torch)


def _one(dtype: torch.dtype) -> Any:
    return jax.ShapeDtypeStruct((), dtype_name(dtype))


def _number(hook: str, value: Any) -> complex:
    """A constant that a function closes over."""
    if isinstance(value, jax.core.Tracer) or np.ndim(value):
        raise FunctionError(f"{hook} closes over an array: pass it by operands={{'name': (modes, array)}}")
    found: complex = np.asarray(value).item()
    return found


def _check(hook: str, jaxpr: Any) -> None:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = _inner(equation)
        if inner is not None:
            _check(hook, inner.jaxpr)
        elif name not in _OPERATIONS:
            raise FunctionError(f"{hook} takes JAX's primitive '{name}', which weft has no operation for")


#: Primitives that call a function once, as it is.
_CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "checkpoint", "remat", "remat2",
))  # fmt: skip


def _inner(equation: Any) -> Any:
    """The function that an equation calls; None where it calls none."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if equation.primitive.name in _CALLS else ():
        found = equation.params.get(key)
        if found is not None:
            return found if hasattr(found, "jaxpr") else jax.extend.core.ClosedJaxpr(found, ())
    return None


def _evaluated(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))

    def read(variable: Any) -> Any:
        return np.asarray(variable.val).item() if hasattr(variable, "val") else known[variable]

    for equation in jaxpr.eqns:
        values, inner = [read(variable) for variable in equation.invars], _inner(equation)
        if inner is not None:
            taken = values[-len(inner.jaxpr.invars) :] if inner.jaxpr.invars else []
            results = _evaluated(inner.jaxpr, [np.asarray(each).item() for each in inner.consts], taken)
        elif any(isinstance(value, torch.Tensor) for value in values):
            results = [_OPERATIONS[equation.primitive.name](*values, **_said(equation))]
        else:
            typed = zip(values, equation.invars, strict=True)
            numbers = [torch.tensor(value, dtype=_dtype(v), device="cpu") for value, v in typed]
            results = [_OPERATIONS[equation.primitive.name](*numbers, **_said(equation)).item()]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _dtype(variable: Any) -> torch.dtype:
    found: torch.dtype = read_dtype("a value", variable.aval.dtype.name)
    return found


def _said(equation: Any) -> dict[str, Any]:
    """Keywords of an operation besides its values."""
    name, params = equation.primitive.name, equation.params
    if name in ("convert_element_type", "select_n", "weft_word"):
        return {**(params if name == "weft_word" else {}), "dtype": _dtype(equation.outvars[0])}
    if name == "round":
        return {"even": int(params["rounding_method"]) == 1}
    return {"exponent": params["y"]} if name == "integer_pow" else {}


def _extreme(of_tensors: Function, bound: str) -> Function:
    def extreme(x: Any, y: Any) -> Any:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return of_tensors(x, y)
        tensor, number = (x, y) if isinstance(x, torch.Tensor) else (y, x)
        return torch.clamp(tensor, **{bound: number})

    return extreme


def _divided(x: Any, y: Any) -> Any:
    types = [each.dtype for each in (x, y) if isinstance(each, torch.Tensor)]
    whole = not any(dtype.is_floating_point or dtype.is_complex for dtype in types)
    return _filled(partial(torch.div, rounding_mode="trunc"))(x, y) if whole else x / y


def _converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As JAX converts: integers stop at the ends of their range and NaN is 0; float8_e4m3fn is NaN past its largest."""
    if not x.is_floating_point() or dtype is torch.bool or dtype.is_complex:
        return x.to(dtype)
    if dtype is torch.float8_e4m3fn:
        return torch.where(torch.abs(x) > 464, torch.full_like(x, torch.nan), x).to(dtype)
    found = x.to(dtype)
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        for outside, number in ((x >= float(ends.max + 1), ends.max), (x < float(ends.min), ends.min), (x != x, 0)):
            found = torch.where(outside, torch.full_like(found, number), found)
    return found


def _sign(x: torch.Tensor) -> torch.Tensor:
    """NaN and both zeros are their own."""
    found = torch.sign(x)
    return torch.where((x != x) | (x == 0), x.detach(), found) if x.is_floating_point() else found


def _filled(of_tensors: Function) -> Function:
    """An operation that torch has of tensors alone, of tensors and numbers of one type."""

    def filled(*values: Any) -> Any:
        like = next(value for value in values if isinstance(value, torch.Tensor))
        return of_tensors(*(x if isinstance(x, torch.Tensor) else torch.full_like(like, x) for x in values))

    return filled


def _selected(which: Any, *cases: Any, dtype: torch.dtype) -> Any:
    """The case of that number; False and True are the first two."""
    if not isinstance(which, torch.Tensor):
        return cases[int(which)]
    values = [x if isinstance(x, torch.Tensor) else torch.full_like(which, x, dtype=dtype) for x in cases]
    if which.dtype == torch.bool:
        return torch.where(which, values[1], values[0])
    found = values.pop()
    while values:
        found = torch.where(which < len(values), values.pop(), found)
    return found


def _rounded(x: torch.Tensor, even: bool) -> torch.Tensor:
    """The nearest whole number; of two the even one, or that which is farther from zero."""
    if even:
        return torch.round(x)
    whole = torch.trunc(x)
    return whole + torch.sign(x) * (torch.abs(x - whole) >= 0.5)


def _reduced(x: torch.Tensor, kind: str, modes: str, dtype: torch.dtype) -> torch.Tensor:
    """A word of `weft.jax`, in the type that JAX gives it: torch adds up integers in int64."""
    found: torch.Tensor = getattr(reductions, kind)(x, modes)
    return found if found.dtype == dtype else found.to(dtype)


def _same(x: Any, **_: Any) -> Any:
    return x


word_p = jax.extend.core.Primitive("weft_word")
word_p.def_abstract_eval(lambda value, *, kind, modes: value)


def _misplaced(*_: Any, kind: str, **__: Any) -> Any:
    raise FunctionError(f"weft.jax.{kind} is for functions of weft.jax.cascade: here there are no modes to reduce")


word_p.def_impl(_misplaced)
mlir.register_lowering(word_p, _misplaced)


def _word(kind: str) -> Function:
    def word(value: Any, modes: Any) -> Any:
        return word_p.bind(value, kind=kind, modes="".join(map(str, modes)))

    word.__name__, word.__doc__ = kind, f"`weft.{kind}` in a function of `jax.numpy` that `weft.jax.cascade` takes."
    return word


softmax, log_softmax, logsumexp, sum, mean, amax, amin = map(
    _word, ("softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin")
)

#: By the name of JAX's primitive.
_OPERATIONS: dict[str, Function] = {
    **{name: getattr(torch, name) for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2",
        "expm1", "floor", "lgamma", "log", "log1p", "neg", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
        "real", "imag",
    )},
    **{name: _filled(getattr(torch, name)) for name in ("atan2", "eq", "ge", "gt", "le", "lt", "ne")},
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": _divided,
    "add_any": lambda x, y: x + y, "rem": _filled(torch.fmod), "round": _rounded, "square": lambda x: x * x,
    "integer_pow": lambda x, exponent: x**exponent, "logistic": torch.sigmoid, "erf_inv": torch.erfinv,
    "is_finite": torch.isfinite, "conj": lambda x: torch.conj(x), "select_n": _selected,
    "max": _extreme(torch.maximum, "min"), "min": _extreme(torch.minimum, "max"),
    "clamp": _filled(lambda low, x, high: torch.minimum(torch.maximum(x, low), high)),
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y, "not": lambda x: ~x,
    "weft_word": _reduced,
    "convert_element_type": _converted, "sign": _sign,
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "broadcast_in_dim", "squeeze", "reshape"), _same),
}  # fmt: skip

"""Functions of `jax.numpy` as functions of torch, so that weft traces and fuses them.

A function is traced by JAX on one element, and its jaxpr is run again on torch's operations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.extend
import numpy as np
import torch

import jax
from weft.errors import FunctionError
from weft.fn import reductions, trace
from weft.spec.type_names import read_dtype

Function = Callable[..., Any]


@dataclass(frozen=True)
class TorchFunction:
    """A function as torch has it; two are equal where they compute the same."""

    of_torch: Function
    text: str
    types: tuple[torch.dtype, ...]  # of the value, and of what comes beside it
    names: tuple[str, ...]
    hook: str

    def traced(self) -> TorchFunction:
        """The function as weft's graph, which no call traces again."""
        return replace(self, of_torch=trace(self.of_torch, self.types, names=self.names, hook=self.hook))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchFunction) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def as_torch(
    hook: str, function: Function, value: torch.dtype, names: Sequence[str], types: Mapping[str, torch.dtype]
) -> TorchFunction:
    """A function of a value of this type, and of what it takes beside it by name; `FunctionError` for what torch has
    no operation for."""
    avals = [_one(value), *(_one(types[name]) for name in names)]
    try:
        closed = jax.make_jaxpr(lambda value, *beside: function(value, **dict(zip(names, beside, strict=True))))(*avals)
    except jax.errors.ConcretizationTypeError:
        raise FunctionError(f"{hook} asks for the value of an element: choose by jnp.where") from None
    if any(out.aval.shape for out in closed.jaxpr.outvars):
        raise FunctionError(f"{hook} makes an array of an element: a function is of elements alone")
    constants = [_number(hook, each) for each in closed.consts]
    _check(hook, closed.jaxpr)

    def of_torch(value: torch.Tensor, *beside: torch.Tensor, **named: torch.Tensor) -> Any:
        given = [value, *beside, *(named[name] for name in names if name in named)]
        found = tuple(_evaluated(closed.jaxpr, constants, given))
        return found[0] if len(found) == 1 else found

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    of_torch.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("value", *names)])  # type: ignore[attr-defined]
    kinds = (value, *(types[name] for name in names))
    within = [_number(hook, each) for each in _constants_within(closed.jaxpr)]
    return TorchFunction(of_torch, f"{closed.jaxpr} {constants} {within} {kinds}", kinds, tuple(names), hook)


def _one(dtype: torch.dtype) -> Any:
    return jax.ShapeDtypeStruct((), str(dtype).removeprefix("torch."))


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


def _constants_within(jaxpr: Any) -> Iterator[Any]:
    """The constants of functions that a function calls, which its text does not say."""
    for equation in jaxpr.eqns:
        inner = _inner(equation)
        if inner is not None:
            yield from inner.consts
            yield from _constants_within(inner.jaxpr)


def _inner(equation: Any) -> Any:
    """The function that an equation calls; None where it calls none."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
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
            numbers = [torch.tensor(value, dtype=_dtype(v)) for value, v in zip(values, equation.invars, strict=True)]
            results = [_OPERATIONS[equation.primitive.name](*numbers, **_said(equation)).item()]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _dtype(variable: Any) -> torch.dtype:
    found: torch.dtype = read_dtype("a value", variable.aval.dtype.name)
    return found


def _said(equation: Any) -> dict[str, Any]:
    """Keywords of an operation besides its values."""
    name, params = equation.primitive.name, equation.params
    if name == "convert_element_type":
        return {"dtype": _dtype(equation.outvars[0])}
    if name == "weft_word":
        return dict(params)
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
    return torch.div(x, y, rounding_mode="trunc") if whole else x / y


def _selected(which: Any, *cases: Any) -> Any:
    no, yes = cases
    return torch.where(which, yes, no)


def _same(x: Any, **_: Any) -> Any:
    return x


word_p = jax.extend.core.Primitive("weft_word")
word_p.def_abstract_eval(lambda value, *, kind, modes: value)


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
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "digamma", "eq",
        "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "le", "lgamma", "log", "log1p", "lt", "ne", "neg",
        "pow", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "real", "imag",
    )},
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": _divided,
    "add_any": lambda x, y: x + y, "rem": torch.fmod, "square": lambda x: x * x,
    "integer_pow": lambda x, exponent: x**exponent, "logistic": torch.sigmoid, "erf_inv": torch.erfinv,
    "is_finite": torch.isfinite, "conj": lambda x: torch.conj(x), "select_n": _selected,
    "max": _extreme(torch.maximum, "min"), "min": _extreme(torch.minimum, "max"),
    "clamp": lambda low, x, high: torch.clamp(x, low, high),
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y, "not": lambda x: ~x,
    "weft_word": lambda x, kind, modes: getattr(reductions, kind)(x, modes),
    "convert_element_type": lambda x, dtype: x.to(dtype),
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "broadcast_in_dim", "squeeze", "reshape"), _same),
}  # fmt: skip

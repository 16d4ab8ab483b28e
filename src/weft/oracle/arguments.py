"""Arguments of the oracle: read as the public calls read them, from any array, with functions called as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from weft.base.arrays import as_tensor, is_scalar
from weft.errors import DTypeError, FunctionError, ShapeError, UnsupportedError, WeftError, is_out_of_memory
from weft.fn import Pointwise

Function = Callable[..., Any]

#: What functions of the user raise; what torch stops a pass with is none of these.
_OF_FUNCTIONS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, ArithmeticError)


def operand(name: str, value: Any) -> torch.Tensor:
    """An operand as a tensor with values, of whatever NumPy makes an array of."""
    tensor = as_tensor(name, value, True)
    if tensor.is_meta:
        raise UnsupportedError(f"{name} is a meta tensor, which has no values")
    return tensor


def addend_of(c: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """C as a tensor that has the result's shape, or 1 along some modes."""
    tensor = operand("c", c)
    if tensor.dim() != len(shape) or any(n not in (want, 1) for n, want in zip(tensor.shape, shape, strict=True)):
        raise ShapeError(f"c has shape {tuple(tensor.shape)}, the result has {shape}")
    return tensor


def read_aux(given: Any) -> Mapping[str, Any]:
    """`operands` or `indices` of a call: a mapping, or None for none."""
    if given is not None and not isinstance(given, Mapping):
        raise FunctionError(f"operands and indices come as mappings by name, not {type(given).__name__}")
    return given or {}


def factor_of(name: str, value: Any) -> Any:
    """A factor as a number; of a tensor without dimensions its value."""
    if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if not is_scalar(value):
        raise DTypeError(f"{name} is a number, not {type(value).__name__}")
    return value


def check_places(out: Any, shape: tuple[int, ...] | None = None) -> None:
    """`DTypeError` or `ShapeError` where a result of that shape does not go into `out`, one place or several."""
    for place in out if isinstance(out, (tuple, list)) else () if out is None else (out,):
        if not isinstance(place, torch.Tensor):
            raise DTypeError(f"out is a torch tensor here, not {type(place).__name__}")
        if shape is not None and tuple(place.shape) != shape:
            raise ShapeError(f"out has shape {tuple(place.shape)}, the result has {shape}")


def called(function: Function, values: torch.Tensor, aux_args: Mapping[str, Any]) -> Any:
    """The result of a function on values and operands by name; `FunctionError` with what one of the user's raised.

    A recorded one, as derivatives are, is called in the types of its record.
    """
    if isinstance(function, Pointwise):
        given = (values, *(aux_args[name] for name in function.inputs[1:]))
        return function(*(each.to(dtype) for each, dtype in zip(given, function.dtypes, strict=True)))
    try:
        return function(values, **aux_args)
    except _OF_FUNCTIONS as error:
        if isinstance(error, WeftError) or is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise FunctionError(f"a function raised {type(error).__name__}: {reason}") from error


def read_pair(name: str, pair: Any) -> tuple[Any, torch.Tensor]:
    """The modes and the tensor of an operand of a function."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise FunctionError(f"operand '{name}' is a pair (modes, tensor), not {type(pair).__name__}")
    return pair[0], operand(f"operand '{name}'", pair[1])


def as_value(result: Any, device: torch.device) -> torch.Tensor:
    """A function's result as a tensor; `FunctionError` where it is no value."""
    try:
        return torch.as_tensor(result, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FunctionError(f"a function yields {type(result).__name__}, which is no value") from error


def several(results: Any, values: torch.Tensor) -> list[torch.Tensor]:
    """A function's results, one or several, in the shape of its values."""
    parts = results if isinstance(results, (tuple, list)) else (results,)
    return [spread(as_value(one, values.device), values.shape) for one in parts]


def spread(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A function's values in the shape of what it was given; `FunctionError` where they have another."""
    try:
        return values.expand(tuple(shape))
    except RuntimeError:
        raise FunctionError(f"a function of values of shape {tuple(shape)} yields {tuple(values.shape)}") from None


def stored(value: torch.Tensor, dtype: Any, out: Any) -> torch.Tensor:
    """One result in its type, in its place where there is one."""
    if isinstance(dtype, tuple):
        raise DTypeError(f"out_dtype names {len(dtype)} types, the epilogue returns no tuple")
    if isinstance(out, (tuple, list)):
        raise ShapeError(f"out has {len(out)} tensors, the epilogue returns no tuple")
    value = value.to(dtype) if dtype is not None else value
    return value if out is None else out.copy_(value)

"""The one reader of arguments of public functions: by the types that they declare.

`reads` wraps a function off the hot path, whose annotations say what each argument is. What is of that kind comes in as
the function expects it (a number as a plain one, an array as a tensor, the name of a type as the type); anything else
is an `ArgumentError` that names the argument, and nothing has happened then. Calls on the hot path (`contract`, plans)
read theirs where they are not known, by `read_keywords`.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch

from weft.base.arguments import read_device
from weft.base.arrays import as_tensor
from weft.base.figures import nearest
from weft.errors import ArgumentError, UnsupportedError, WeftError, call_context
from weft.spec.dtypes import read_dtype

Reader = Callable[[str, Any], Any]
Call = TypeVar("Call", bound=Callable[..., Any])

#: Names of types that have readers of their own.
_ALIASES = {"DTypeLike": torch.dtype, "Equation": Any}
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes, on Linux
_MOST_READ = 1 << 16  # elements of an array that stands for a sequence


def reads(call: str) -> Callable[[Call], Call]:
    """Let a function's arguments be read by its annotations; `call` is its name in messages."""

    def wrap(function: Call) -> Call:
        signature = inspect.signature(function)
        readers: dict[str, Reader] = {}

        @functools.wraps(function)
        def read(*places: Any, **keywords: Any) -> Any:
            try:
                bound = signature.bind(*places, **keywords)
            except TypeError as error:
                raise ArgumentError(f"{call}: {error}") from None
            with call_context(lambda: call):
                if not readers:
                    readers.update(readers_of(function))
                for name, value in bound.arguments.items():
                    bound.arguments[name] = _read(signature.parameters[name], readers[name], value)
                try:
                    return function(*bound.args, **bound.kwargs)
                except NotImplementedError as error:  # of torch, for tensors of kinds that an operation does not take
                    if isinstance(error, WeftError):
                        raise
                    reason = str(error).partition("\n")[0]
                    raise UnsupportedError(f"torch does not compute this: {reason}") from error

        return typing.cast(Call, read)

    return wrap


def readers_of(function: Callable[..., Any]) -> dict[str, Reader]:
    """A reader for each parameter."""
    hints = _hints(function)
    return {name: reader_of(hints.get(name, Any)) for name in inspect.signature(function).parameters}


def reader_of(hint: Any) -> Reader:
    """The function that reads a value of a type, or refuses it."""
    if isinstance(hint, TypeVar) or hint in (Any, object, inspect.Parameter.empty):
        return _as_it_is
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _of_union(inner)
    if origin is Literal:
        return functools.partial(_word, inner)
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return functools.partial(_tuple, tuple(map(reader_of, inner)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_mapping, reader_of(inner[1]) if inner else _as_it_is)
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Callable):  # type: ignore[arg-type]
        read = functools.partial(_sequence, reader_of(inner[0]) if inner else _as_it_is)
        return (lambda name, value: tuple(read(name, value))) if origin is tuple else read
    if origin is type:
        return functools.partial(_instance, type)
    if origin in (Callable, typing.Callable) or hint in (Callable, typing.Callable):
        return _function
    kind = origin or hint
    return functools.partial(_instance, kind) if isinstance(kind, type) else _as_it_is


def refused(name: str, kind: str, value: Any) -> ArgumentError:
    """The error for an argument of another kind."""
    return ArgumentError(f"{name} is {kind}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """A number or a word as it is, of anything else its type."""
    if value is None or isinstance(value, (bool, str, int, float, complex)):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return type(value).__name__


def _read(parameter: inspect.Parameter, reader: Reader, value: Any) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(reader(f"{parameter.name}[{at}]", each) for at, each in enumerate(value))
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return value
    if value is parameter.default:
        return value
    return reader(parameter.name, value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as types; those whose names are there for type checkers alone say nothing."""
    plain = inspect.unwrap(function)
    scope = {**plain.__globals__, **_ALIASES}
    found = {}
    for name, text in getattr(plain, "__annotations__", {}).items():
        try:
            found[name] = eval(text, scope) if isinstance(text, str) else text
        except (NameError, TypeError, AttributeError):
            continue
    return found


# -- kinds -------------------------------------------------------------------------------------------------------------


def _as_it_is(name: str, value: Any) -> Any:
    return value


def read_flag(name: str, value: Any) -> bool:
    """True or False; any other value would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise refused(name, "True or False", value)
    return bool(value)


def read_integer(name: str, value: Any, least: int = -(2**63)) -> int:
    """A whole number of 64 bits, `least` at least."""
    try:
        number = operator.index(value)
    except Exception:  # whatever an object of somebody else raises
        raise refused(name, "a whole number", value) from None
    if not least <= number < 2**63:
        raise ArgumentError(f"{name} is {least} at least and has 64 bits, not {_shown(number)}")
    return number


def read_real(name: str, value: Any) -> float:
    """A real number."""
    array = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0
    real = isinstance(value, (int, float, np.number, np.bool_)) and not isinstance(value, np.complexfloating)
    if not (array or real):
        raise refused(name, "a real number", value)
    try:
        return float(value)
    except Exception:
        raise refused(name, "a real number", value) from None


def _complex(name: str, value: Any) -> complex:
    if isinstance(value, (complex, np.complexfloating)):
        return complex(value)
    return read_real(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refused(name, "text", value)
    return value


def _tensor(name: str, value: Any) -> torch.Tensor:
    tensor = as_tensor(name, value)
    if tensor.is_meta:
        raise UnsupportedError(f"{name} is a meta tensor, which has no values")
    return tensor


def read_path(name: str, value: Any) -> Path:
    """A path that files may have."""
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise refused(name, "a path", value)
    try:
        spelled = os.fsencode(value)
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} is no path that this system can write: {value!r}") from None
    if len(spelled) >= _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in spelled.split(os.sep.encode())):
        raise ArgumentError(f"{name} is longer than a path of this system: {_shown(str(value))}")
    return Path(value)


def _function(name: str, value: Any) -> Any:
    if not callable(value):
        raise refused(name, "a function", value)
    return value


def _nothing(name: str, value: Any) -> None:
    if value is not None:
        raise refused(name, "None", value)


_SIMPLE: dict[Any, Reader] = {
    bool: read_flag, int: read_integer, float: read_real, complex: _complex, str: _text, torch.Tensor: _tensor,
    torch.dtype: read_dtype, torch.device: lambda _, value: read_device(value), Path: read_path, type(None): _nothing,
    Callable: _function,
}  # fmt: skip


def _instance(kind: type, name: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is a {kind.__name__}, not {type(value).__name__}")
    return value


def _word(words: tuple[Any, ...], name: str, value: Any) -> Any:
    if not isinstance(value, (str, int)) or value not in words:
        near = nearest(value, [word for word in words if isinstance(word, str)]) if isinstance(value, str) else ""
        raise refused(name, f"one of {', '.join(map(repr, words))}", value) if not near else ArgumentError(
            f"{name}={value!r} is none of {', '.join(map(repr, words))}{near}"
        )
    return value


def _sequence(element: Reader, name: str, value: Any) -> list[Any]:
    """A list of elements that are read one by one."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if value.ndim != 1 or math.prod(value.shape) > _MOST_READ:
            raise refused(name, "a sequence", value)
        value = as_tensor(name, value).tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping, set, frozenset)) or not isinstance(value, Iterable):
        raise refused(name, "a sequence", value)
    try:
        elements = list(value)
    except Exception as error:
        raise ArgumentError(f"{name} is a sequence, and {_shown(value)} yields none ({type(error).__name__})") from None
    return [element(f"{name}[{at}]", each) for at, each in enumerate(elements)]


def read_sequence(name: str, value: Any) -> list[Any]:
    """The elements of a sequence, of any kind."""
    return _sequence(_as_it_is, name, value)


def _tuple(elements: tuple[Reader, ...], name: str, value: Any) -> tuple[Any, ...]:
    found = _sequence(_as_it_is, name, value)
    if len(found) != len(elements):
        raise ArgumentError(f"{name} has {len(elements)} entries, not {len(found)}")
    return tuple(read(f"{name}[{at}]", each) for at, (read, each) in enumerate(zip(elements, found, strict=True)))


def _mapping(element: Reader, name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise refused(name, "a mapping", value)
    return {each: element(f"{name}[{each!r}]", one) for each, one in value.items()}


def _of_union(kinds: tuple[Any, ...]) -> Reader:
    """The first kind that takes a value; a type's name and a device's are read where types and devices are."""
    for special in (torch.device, Path):  # whose names are text
        if special in kinds:
            kinds = tuple(kind for kind in kinds if kind is not str)
    readers = [reader_of(kind) for kind in kinds if kind is not type(None)]

    def read(name: str, value: Any) -> Any:
        if value is None and type(None) in kinds:
            return None
        error: WeftError | None = None
        for each in readers:
            try:
                return each(name, value)
            except WeftError as wrong:
                error = error or wrong
        assert error is not None
        raise error

    return read

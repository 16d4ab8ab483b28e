"""Stored values read by the types of the fields that they are for: whatever a file holds, the rest of weft meets none
that its types rule out."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Kind = TypeVar("_Kind")
_MOST = 2**63  # integers are below


def number(value: Any) -> float:
    """A number that is finite and not negative; `ValueError` where a value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf or value >= 1e308:
        raise ValueError(f"{str(value)[:40]} is no such number")
    return float(value)


def fields_of(kind: type[_Kind], saved: Any) -> _Kind:
    """A dataclass, or named tuple, of its stored fields; `ValueError` where one is missing, unknown or of another type.

    Numbers are finite and not negative, lists stand for tuples.
    """
    if not isinstance(saved, Mapping):
        raise ValueError(f"it has no fields of {kind.__name__}")
    known: Any = kind
    hints = _hints(known)
    try:
        return kind(**{name: _read(value, hints[name]) for name, value in saved.items()})
    except (KeyError, TypeError) as error:
        raise ValueError(f"it has other fields than {kind.__name__}: {error}") from None


def _read(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(value, next(each for each in inner if each is not type(None)))
    if hint is Any or (origin is Literal and value in inner):
        return value
    if hint is float:
        return number(value)
    if hint is int and not (isinstance(value, int) and 0 <= value < _MOST):
        raise ValueError(f"{str(value)[:40]} is no such integer")
    if origin is tuple and isinstance(value, list):
        return tuple(_read(each, inner[0]) for each in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(each, inner[1]) for name, each in value.items()}
    if hasattr(hint, "_fields") and isinstance(value, list):
        return fields_of(hint, dict(zip(hint._fields, value, strict=True)))
    if origin is not None or not isinstance(value, hint) or isinstance(value, bool) is not (hint is bool):
        raise ValueError(f"{str(value)[:40]} is no {hint}")
    return value


@lru_cache
def _hints(kind: Hashable) -> dict[str, Any]:
    known: Any = kind
    names = [field.name for field in dataclasses.fields(known)] if dataclasses.is_dataclass(known) else known._fields
    hints = get_type_hints(known, localns={"Mapping": Mapping})
    return {name: hints[name] for name in names}

"""Attributes, items and parts of values, read only where that runs no code of anybody's."""

from __future__ import annotations

import collections
import functools
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from weft.fn.reads import Opaque

#: What there is not, or what code would have to be run for.
ABSENT = object()
_MODULES = (torch._ops._Ops, torch._ops._OpNamespace)


def step(value: Any, how: str, what: Any) -> Any:
    """An attribute or an item of a value; `ABSENT` where there is none, or where code would run to find it."""
    kind: Any = type(value)
    if how == "[":
        known = kind is dict or ((kind is list or kind is tuple) and type(what) is int and -len(value) <= what)
        try:
            return value[what] if known else ABSENT
        except (LookupError, TypeError):
            return ABSENT
    if kind is types.ModuleType:
        return value.__dict__.get(what, ABSENT)
    if kind in _MODULES or value is torch.Tensor:
        found = getattr(value, what, ABSENT)
        if type(found) in (property, types.MethodType):
            raise Opaque
        return found
    if kind is type:
        found = inherited(value, what)
        return found if type(found) is types.FunctionType or not _is_descriptor(found, "__get__") else ABSENT
    if kind is types.FunctionType or isinstance(value, type) or kind.__getattribute__ is not object.__getattribute__:
        return ABSENT
    return _attribute(value, kind, what)


def _attribute(value: Any, kind: Any, name: str) -> Any:
    of_class = inherited(kind, name)
    if type(of_class) is types.MemberDescriptorType:
        return slot(of_class, value)
    if _is_descriptor(of_class, "__set__") or _is_descriptor(of_class, "__delete__"):
        return ABSENT
    own = held(value)
    if name in own:
        return own[name]
    if of_class is ABSENT and isinstance(value, torch.nn.Module):
        within = own.get("_modules", {}) if kind.__getattr__ is torch.nn.Module.__getattr__ else {}
        return within.get(name, ABSENT)
    if type(of_class) is types.FunctionType:
        return types.MethodType(of_class, value)
    return ABSENT if _is_descriptor(of_class, "__get__") else of_class


def inherited(kind: type, name: str) -> Any:
    """An entry of a class or its bases, as it stands there."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


def _is_descriptor(entry: Any, method: str) -> bool:
    return inherited(type(entry), method) is not ABSENT


def held(value: Any) -> dict[str, Any]:
    """An object's own attributes."""
    if (found := inherited(type(value), "__dict__")) is ABSENT:
        return {}
    if type(found) is not types.GetSetDescriptorType:
        raise Opaque
    own: dict[str, Any] = found.__get__(value)
    return own


def slot(entry: Any, value: Any) -> Any:
    try:
        return entry.__get__(value)
    except AttributeError:
        return ABSENT


def cells(fn: types.FunctionType) -> dict[str, Any]:
    try:
        return dict(zip(fn.__code__.co_freevars, [cell.cell_contents for cell in fn.__closure__ or ()], strict=True))
    except ValueError:
        raise Opaque from None  # not yet assigned


def items(*held: Mapping[Any, Any]) -> tuple[Any, ...]:
    parts: list[Any] = []
    for each in held:
        parts += (len(each), *each, *each.values()) if each else (0,)
    return tuple(parts)


#: Kinds of values that are their parts.
PARTS: dict[type, Callable[[Any], Collection[Any]]] = {
    **dict.fromkeys((tuple, list, set, frozenset, torch.Size), lambda value: value),
    **dict.fromkeys((dict, collections.OrderedDict), items),
    functools.partial: lambda value: (
        value.func, len(value.args), *value.args, *items(value.keywords, value.__dict__)
    ),
    functools.cached_property: lambda value: (value.func, value.attrname),
    property: lambda value: (value.fget, value.fset, value.fdel),
    classmethod: lambda value: (value.__func__,),
    staticmethod: lambda value: (value.__func__,),
    types.SimpleNamespace: lambda value: items(value.__dict__),
    types.MappingProxyType: items,
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step),
    inspect.Signature: lambda value: tuple([
        part for each in value.parameters.values() for part in (each.name, int(each.kind), each.default)
    ]),
}  # fmt: skip

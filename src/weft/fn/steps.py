"""Attributes and items of values, read only where that runs no code of anybody's."""

from __future__ import annotations

import types
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

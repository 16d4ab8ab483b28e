"""Whether a function may do something else than it did the last time, told without running it.

Two functions have one fingerprint only where all that they can reach was read and is equal: their code (which holds
their constants), defaults, cells, the globals and attributes that code names, what containers and objects hold, the
functions of their classes, and the same of every function that they call. Objects are numbered in the order in which
they are reached, so cycles end and an object that is met twice counts as one. The steps that code names are followed
as far as they run no code of anybody's (`weft.fn.reads`), and what is found there is read as a whole: whatever is done
with it then is seen.

What cannot be seen through has no fingerprint: objects with state of their own in C, look-ups by computed names, and
functions of torch that are no operations on tensors, since those tell of torch's state (the number of threads,
autocast, a seed). A function that reaches such things equals no other and is traced in each call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, cast

import numpy as np
import torch

from weft.fn.pointwise import Pointwise, is_triton_function
from weft.fn.reads import (
    ABSENT,
    NUMBERS,
    OF_VALUES,
    PARTS,
    PURE_MODULES,
    UNREAD,
    Opaque,
    Step,
    cells,
    code_of,
    held,
    inherited,
    items,
    number,
    slot,
    step,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
#: Of values that never change and tell themselves apart.
_SELVES = frozenset({torch.dtype, torch.device, torch.memory_format, torch.layout, *_DESCRIPTORS})
#: Entries of a class that read state which is held in C.
_OF_C = (*_DESCRIPTORS, types.ClassMethodDescriptorType, types.BuiltinFunctionType)
#: Packages whose classes are taken not to change, as are Triton's functions.
_SETTLED = frozenset(
    {"torch", "triton", "math", "cmath", "operator", "_operator", "builtins", "functools", "inspect", "types"}
)
#: Those of whose objects the state is in their attributes.
_SETTLED_BASES = ("torch.nn.modules.", "triton.language.")
#: Modules written in Python whose functions do what their arguments say.
_PURE_PYTHON = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor", "operator"})
#: Modules written in C whose functions do. Those of `torch._C` itself read and set torch's state.
_PURE_BUILT_IN = PURE_MODULES | {
    "builtins", "_functools", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft"
}  # fmt: skip
#: Built-ins through which a function can read what its bytecode does not name.
_OPAQUE = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "getattr", "setattr", "delattr", "__import__", "open", "input",
    "id", "hash", "repr", "ascii", "dir", "compile", "breakpoint", "attrgetter", "methodcaller"}
)  # fmt: skip
_OPERATIONS = frozenset({"aten", "prims", "weft_fn"})
_DISPATCHING = functools.singledispatch(abs).__code__  # type: ignore[attr-defined]
_HEAP_TYPE = 1 << 9  # made while running, by Python or C
#: Under this attribute a function has itself and that which says all that it does with a tensor.
_MEANING = "__weft_ready__"

_settled: set[Any] = set()  # functions and classes that were found not to change
_HASHED = frozenset({types.FunctionType, types.BuiltinFunctionType, type})  # kinds of what is there


def standing_for(function: _Function, meaning: Any) -> _Function:
    """`function`, known by its `meaning` from here on; what `functools.wraps` gives its attributes to is not."""
    setattr(function, _MEANING, (function, meaning))
    return function


def settled(function: _Function) -> _Function:
    """`function`, which does what its name says as long as this process runs."""
    _settled.add(function)
    return function


def fingerprint(fn: Any) -> Hashable | None:
    """A key that changes whenever `fn` may have changed, or None where that cannot be told.

    Numbers are told apart by type and bits: 1, 1.0, True, 0.0 and -0.0 are five values. The key refers to live
    objects, so it means something in this process only; `Pointwise.identity` is the key that lasts.
    """
    kind = type(fn)
    if kind in _HASHED and fn in _settled:
        return torch.get_default_dtype(), fn
    try:
        if kind is types.FunctionType and (quick := _quick(fn)) is not None:
            return quick
        reading = _Reading()
        reading.called(fn)
    except Exception:  # whatever stops the reading: it is not read
        return None
    return tuple(reading.key)


def fingerprints(functions: tuple[Callable[..., Any] | None, ...]) -> tuple[Hashable, ...] | None:
    """One for each function, None where there is none; None for all where one cannot be seen through, `()` for none."""
    prints: list[Hashable] = []
    for function in functions:
        found = None if function is None else fingerprint(function)
        if function is not None and found is None:
            return None
        prints.append(None if function is None else (found,))
    return tuple(prints) if prints.count(None) < len(prints) else ()


def _quick(fn: types.FunctionType) -> Hashable | None:
    """The key that a `_Reading` has of a function that reads numbers and operations by names; None for others."""
    key: list[Hashable] = [torch.get_default_dtype()]
    inner: Any = fn
    if fn.__dict__:
        inner = _meaning(fn)
        if type(inner) is not types.FunctionType or inner.__dict__:
            return None
        key.append("ready")
    code = code_of(inner.__code__)
    if code.flat is None or inner.__defaults__ or inner.__kwdefaults__ or inner in _settled:
        return None
    key += (code, inner.__name__)
    for name, cell, attributes in code.flat:  # as `_Reading` looks them up, in place: this is asked in every call
        if cell is not None:
            value = inner.__closure__[cell].cell_contents
        elif name is OF_VALUES:
            value = torch.Tensor
        else:
            value = inner.__globals__.get(name, ABSENT)
            if value is ABSENT:
                value = cast(Any, inner).__builtins__.get(name, ABSENT)
        for attribute in attributes:
            if type(value) is types.ModuleType:
                value = value.__dict__.get(attribute, ABSENT)
            elif value is torch.Tensor:
                value = getattr(value, attribute, ABSENT)
            else:
                return None
        kind = type(value)
        if kind in NUMBERS:
            value = number(value)
        elif kind not in _SELVES and (kind not in _HASHED or value not in _settled):
            return None
        key.append(value)
    return tuple(key)


class _Reading:
    """All that a function reaches, in order: each value begins with itself or a word that says what follows."""

    def __init__(self) -> None:
        self.key: list[Hashable] = [torch.get_default_dtype()]
        self._numbers: dict[Hashable, int] = {}  # of what was met, by address
        self._begun: set[Hashable] = set()  # what was read as a whole, or is being read
        self._kept: list[Any] = []  # so that no address is that of another value later

    def called(self, fn: Any) -> None:
        """A function, or an object of which nothing but a call is known."""
        kind = type(fn)
        if kind is types.FunctionType:
            self.value(fn)
        elif isinstance(fn, torch.nn.Module):
            if kind.__call__ is not torch.nn.Module.__call__ or _has_hooks(fn):
                raise Opaque
            self._word("module", step(fn, ".", "forward"))
        elif type(call := inherited(kind, "__call__")) is types.FunctionType and not _is_known(fn):
            self._bound(call, fn)
            if hasattr(fn, "__signature__") or hasattr(fn, "__wrapped__"):  # then more tells what it takes
                self.value(fn)
        else:
            self.value(fn)

    def value(self, value: Any) -> None:
        """A value as a whole, with all that it holds."""
        kind = type(value)
        if kind in NUMBERS:
            self.key.append(number(value))
        elif kind in _SELVES or (kind in _HASHED and value in _settled) or _is_settled(value, kind):
            self.key.append(value)
        elif kind is types.MethodType:
            self._bound(value.__func__, value.__self__)
        elif self._begin(id(value), value):
            if kind is types.FunctionType:
                self._function(value)
            elif kind in PARTS:
                parts = PARTS[kind](value)
                self.key += (kind.__name__, len(parts))
                self._all(parts)
            elif isinstance(value, type):
                self._class(value)
            elif kind is types.BuiltinFunctionType:  # `table.get`
                if value.__self__ is None or isinstance(value.__self__, types.ModuleType) or value.__name__ in _OPAQUE:
                    raise Opaque
                self._word("of", value.__name__, value.__self__)
            elif value is ABSENT:
                self.key.append("absent")
            else:
                self._object(value, kind)

    def _number(self, place: Hashable, value: Any) -> int:
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self._numbers)
            self._kept.append(value)
        return found

    def _begin(self, place: Hashable, value: Any) -> bool:
        """Whether it is to be read; what was, or was met on the way to a part of it, is told by its number."""
        found = self._numbers.get(place)
        if found is None:
            self._number(place, value)
        elif place in self._begun:
            self.key += ("again", found)
            return False
        else:
            self.key += ("met", found)
        self._begun.add(place)
        return True

    def _word(self, word: str, *values: Any) -> None:
        self.key.append(word)
        self._all(values)

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) in NUMBERS:
                self.key.append(number(value))
            else:
                self.value(value)

    # -- functions -------------------------------------------------------------------------------------------------

    def _function(self, fn: types.FunctionType) -> None:
        meaning = _meaning(fn)
        if meaning is not None:  # what it does with a tensor is what its function does
            self._word("ready", meaning)
        elif fn.__code__ is _DISPATCHING:
            self._word("dispatching", cells(cells(fn)["dispatch"])["registry"], fn.__dict__.get("__wrapped__"))
        else:
            self._body(fn, {}, bound=False)

    def _bound(self, fn: Any, owner: Any) -> None:
        if type(fn) is not types.FunctionType:
            raise Opaque
        if not self._begin((id(fn), id(owner)), (fn, owner)):
            return
        self.key.append("method")
        name = code_of(fn.__code__).own_name()
        if name is None or _meaning(fn) is not None:
            self.value(owner)
            self.value(fn)
        else:
            self._body(fn, {name: owner}, bound=True)

    def _body(self, fn: types.FunctionType, names: dict[str, Any], *, bound: bool) -> None:
        code = code_of(fn.__code__)
        if type(fn.__globals__) is not dict:
            raise Opaque
        if fn.__closure__:
            names |= cells(fn)
        self.key += (code, fn.__name__)
        for name, steps in code.reads(bound):
            if name in names:
                value = names[name]
            elif name is OF_VALUES:
                value = torch.Tensor
            elif (value := fn.__globals__.get(name, ABSENT)) is ABSENT:
                value = cast(Any, fn).__builtins__.get(name, ABSENT)
            self._read(value, steps)
        if fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__:
            defaults = fn.__defaults__ or ()
            self._word("with", len(defaults), *defaults, *items(fn.__kwdefaults__ or {}, fn.__dict__))

    def _read(self, value: Any, steps: tuple[Step, ...]) -> None:
        for at, (how, what) in enumerate(steps):
            found = step(value, how, what)
            if type(value) is not types.ModuleType and value is not torch.Tensor:  # those are not written to
                self.key.append(self._number(id(value), value))
            if found is ABSENT:
                self.key += ("from", at)
                break
            value = found
        self.value(value)

    # -- objects and classes -----------------------------------------------------------------------------------------

    def _object(self, value: Any, kind: type) -> None:
        if _is_known(value):
            self._word("known", *((value.identity, value.inputs) if issubclass(kind, Pointwise) else (value.fn,)))
        elif kind is types.ModuleType and value.__name__ in PURE_MODULES:
            self._word("pure", value.__name__)
        elif _is_self(value, kind):
            self.key.append(value)
        elif isinstance(value, (np.number, np.bool_)) and kind.__module__ == "numpy":
            self.key += ("numpy", kind, value.tobytes())
        else:
            if isinstance(value, torch.nn.Module) and _has_hooks():
                raise Opaque
            self._class(kind, of_object=True)
            slots = [
                slot(entry, value) for base in kind.__mro__ for entry in base.__dict__.values()
                if type(entry) is types.MemberDescriptorType
            ]  # fmt: skip
            self._word("object", *items(held(value)), *slots)

    def _class(self, kind: type, *, of_object: bool = False) -> None:
        """A class with its bases; `of_object` where one of it is read, whose state must be in what it holds."""
        heap = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
        if type(kind) is not type or (of_object and not heap):
            raise Opaque
        self.key += ("class", kind.__name__, len(kind.__mro__))
        for base in kind.__mro__:
            known = base.__module__.startswith(_SETTLED_BASES) if of_object else True
            if base is object or (known and _is_settled(base, type)):
                self.key.append(base)
            elif self._begin((id(base), "entries"), base):
                self._entries(base)

    def _entries(self, kind: type) -> None:
        for name, entry in kind.__dict__.items():
            if name in UNREAD:
                continue
            self.key.append((str, name))
            if type(entry) is types.MemberDescriptorType:
                self.key.append("slot")
            elif isinstance(entry, _OF_C) and getattr(entry, "__objclass__", getattr(entry, "__self__", None)) is kind:
                raise Opaque
            else:
                self.value(entry)
        self.key.append("end")


def _meaning(fn: types.FunctionType) -> Any:
    of, meaning = fn.__dict__.get(_MEANING, (None, None))
    return meaning if of is fn else None


def _is_settled(value: Any, kind: type) -> bool:
    """Whether a function or a class does not change, and what it does depends on its arguments alone."""
    if kind is types.FunctionType:
        found = _is_pure(value) and (not hasattr(value, "__wrapped__") or _is_pure(inspect.unwrap(value)))
    elif kind is types.BuiltinFunctionType:
        found = _is_pure_built_in(value)
    else:
        found = isinstance(value, type) and _is_settled_class(value)
    if found:
        _settled.add(value)
    return found


def _is_settled_class(kind: type) -> bool:
    """Whether it is a class of theirs, not one that was given the name of one."""
    if kind.__module__.partition(".")[0] not in _SETTLED or kind.__name__ in _OPAQUE:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind or not kind.__flags__ & _HEAP_TYPE


def _is_pure(fn: Any) -> bool:
    name = fn.__globals__.get("__name__", "") if type(fn) is types.FunctionType else ""
    known = name in _PURE_PYTHON or name.startswith("triton.")
    return known and getattr(sys.modules.get(name), "__dict__", None) is fn.__globals__


def _is_pure_built_in(fn: types.BuiltinFunctionType) -> bool:
    owner: Any = fn.__self__
    if owner is None:
        return fn.__module__ == "torch"  # an operation
    if isinstance(owner, types.ModuleType):
        pure = owner.__name__ in _PURE_BUILT_IN or fn is torch.get_default_dtype  # which a fingerprint has
    else:
        pure = isinstance(owner, type) and owner.__module__ == "builtins"
    return pure and fn.__name__ not in _OPAQUE


def _is_known(value: Any) -> bool:
    """Whether it is a function that weft has traced or that Triton compiles."""
    kind = type(value)
    return kind.__module__.startswith("weft.") if issubclass(kind, Pointwise) else is_triton_function(value)


def _is_self(value: Any, kind: type) -> bool:
    """Whether it is an operation of torch or NumPy, which does not change."""
    if kind is np.ufunc:
        return getattr(np, value.__name__, None) is value
    if kind is torch._ops.OpOverload:
        return value.namespace in _OPERATIONS
    return kind is torch._ops.OpOverloadPacket and value._qualified_op_name.partition("::")[0] in _OPERATIONS


def _has_hooks(module: torch.nn.Module | None = None) -> bool:
    everywhere = torch.nn.modules.module
    return bool(
        everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks
        or (module is not None and (
            module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl is not None
        ))
    )  # fmt: skip

"""Whether a function may do something else than it did the last time, told without running it.

A fingerprint holds everything that a plain function's outcome depends on: its code (which holds its constants), its
defaults, and the values that it reads, with the same of every function it calls: cells and globals, what lists and
dictionaries hold, attributes of modules and of plain objects, of the object that a method is of, and what torch has
under the names that are called. Which values a code object reads is worked out once (`weft.fn.reads`); a call only
reads them again.

What cannot be seen through has no fingerprint: objects whose attributes are computed, look-ups by computed names, and
functions of torch that are no operations on tensors, since those tell of torch's state (the number of threads,
autocast, a seed). A function that reads such things is traced in each call.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from weft.fn.reads import OF_VALUES, PURE_MODULES, Opaque, Step, own_name, reads_of

_NUMBERS = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
#: Of values that never change and tell themselves apart.
_SELVES = frozenset({
    torch.dtype, torch.device, torch.memory_format, torch.layout, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, np.ufunc,
})  # fmt: skip
_MODULES = (types.ModuleType, torch._ops._Ops, torch._ops._OpNamespace)
#: Packages whose classes are taken not to change, as are Triton's functions.
_SETTLED = frozenset({"torch", "triton", "math", "cmath", "operator", "_operator", "builtins", "functools"})
#: Modules written in Python whose functions do what their arguments say.
_PURE_PYTHON = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor", "operator", "functools"})
#: Modules written in C whose functions do. Those of `torch._C` itself read and set torch's state.
_PURE_BUILT_IN = PURE_MODULES | {
    "builtins", "_functools", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft"
}  # fmt: skip
#: Built-ins through which a function can read what its bytecode does not name.
_OPAQUE = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "getattr", "setattr", "delattr", "__import__", "open", "input",
    "id", "dir", "compile", "breakpoint", "attrgetter", "methodcaller"}
)  # fmt: skip
#: Under this attribute a ready function (`weft.functions`) has the one that it calls with a tensor.
READY = "__weft_ready__"
#: Under this attribute of its class a traced function says that its `identity` is all that it depends on.
TRACED = "__weft_traced__"

_Callers = tuple[types.CodeType, ...]  # those being looked at, the outermost first
_absent = object()
_settled: set[Any] = set()  # functions and classes that were found not to change
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
#: Code that reads its arguments, numbers and what modules have under names, `torch.relu`, and no more: those names.
_flat: dict[types.CodeType, tuple[tuple[str, tuple[str, ...]], ...]] = {}
_FLAT = 4096  # of them that are remembered


def fingerprint(fn: Any) -> Hashable | None:
    """A key that changes whenever `fn` may have changed, or None where that cannot be told.

    Numbers are told apart by type and bits: 1, 1.0, True, 0.0 and -0.0 are five values. The key refers to live
    objects, so it means something in this process only; `Pointwise.identity` is the key that lasts.
    """
    if type(fn) is types.FunctionType and (quick := _quick(fn)) is not None:
        return (torch.get_default_dtype(), quick)
    try:
        return (torch.get_default_dtype(), _of_value(fn, ()))
    except (Opaque, RecursionError):  # a list may hold itself
        return None


def _quick(fn: types.FunctionType) -> Hashable | None:
    """The key that `_of_value` has for a function of flat code; None for others, and at first."""
    ready = fn.__dict__.get(READY)
    inner = fn if ready is None else ready
    code = getattr(inner, "__code__", None)
    reads = _flat.get(code)  # type: ignore[arg-type]
    if reads is None or inner.__closure__ or inner.__defaults__ or inner.__kwdefaults__:
        return None
    key: list[Hashable] = [code]
    for name, attributes in reads:
        value = torch.Tensor if name is OF_VALUES else inner.__globals__.get(name)
        for attribute in attributes:
            if type(value) is not types.ModuleType and value is not torch.Tensor:
                return None
            value = getattr(value, attribute, None)
        kind = type(value)
        if kind in _NUMBERS:
            value = repr(value)
        elif kind not in _SELVES and (kind not in _FUNCTIONS or value not in _settled):
            return None
        key.append(value)
    return tuple(key) if ready is None else ("ready", tuple(key))


def _is_settled(value: Any) -> bool:
    """Whether a value is known to be its own key."""
    return type(value) in _SELVES or (type(value) in _FUNCTIONS and value in _settled)


def fingerprints(functions: tuple[Callable[..., Any] | None, ...]) -> tuple[Hashable, ...] | None:
    """One for each function, None where there is none; None for all where one cannot be seen through, `()` for none."""
    prints: list[Hashable] = []
    given = False
    for function in functions:
        if function is None:
            prints.append(None)
            continue
        found = fingerprint(function)
        if found is None:
            return None
        prints.append((found,))
        given = True
    return tuple(prints) if given else ()


def _of_value(value: Any, callers: _Callers) -> Hashable:
    kind = type(value)
    if kind in _NUMBERS:
        return repr(value)  # of these types only: tells kinds and signs of zero apart
    if kind in _SELVES:
        return value
    if kind is types.FunctionType:
        if READY in value.__dict__:  # what it does with a tensor is what its function does
            return ("ready", _of_value(value.__dict__[READY], callers))
        if value.__globals__.get("__name__") not in _PURE_PYTHON:
            return _of_function(value, None, callers)
        _settled.add(value)
        return value
    if kind is types.BuiltinFunctionType or isinstance(value, type):
        if value not in _settled:
            _check_settled(value)
            _settled.add(value)
        return value
    if kind is tuple or kind is list:
        return (kind, *[_of_value(item, callers) for item in value])
    if kind is dict:
        return (kind, *[(_of_value(key, callers), _of_value(item, callers)) for key, item in value.items()])
    if kind is types.MethodType:
        return ("method", _of_method(value.__func__, value.__self__, callers))
    if kind is functools.partial:
        return ("partial", *[_of_value(part, callers) for part in (value.func, value.args, value.keywords)])
    if isinstance(value, np.generic):
        return (kind, value.tobytes())
    return _of_object(value, kind, callers)


def _of_object(value: Any, kind: type, callers: _Callers) -> Hashable:
    """The fingerprint of a callable, or of a module whose functions depend on their arguments alone."""
    if kind is types.ModuleType and value.__name__ in PURE_MODULES:
        return value.__name__
    if hasattr(kind, TRACED):
        return ("traced", value.identity, value.inputs)
    if kind.__module__ == "triton.language.core" and kind.__name__ == "constexpr":
        return ("constexpr", _of_value(value.value, callers))
    if kind.__module__ in ("triton.runtime.jit", "triton.runtime.interpreter") and hasattr(value, "fn"):
        return ("triton", _of_value(value.fn, callers))
    if isinstance(value, torch.nn.Module):
        if kind.__call__ is not torch.nn.Module.__call__ or _has_hooks(value):
            raise Opaque
        return ("module", _of_value(_step(value, ".", "forward"), callers))
    called = getattr(kind, "__call__", None)  # noqa: B004  (of the class: what a call runs)
    if type(called) is not types.FunctionType:
        raise Opaque
    return ("called", _of_method(called, value, callers))


def _has_hooks(module: torch.nn.Module) -> bool:
    everywhere = torch.nn.modules.module
    return bool(
        module._forward_hooks or module._forward_pre_hooks
        or everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks
    )  # fmt: skip


def _check_settled(value: Any) -> None:
    """Raise `Opaque` for a built-in function or a class that may change, or tell of what is not its argument."""
    if isinstance(value, type):
        settled = value.__module__.partition(".")[0] in _SETTLED
    elif value is torch.get_default_dtype:  # a fingerprint has it
        settled = True
    elif value.__self__ is None:
        settled = value.__module__ == "torch"  # an operation
    elif isinstance(value.__self__, types.ModuleType):
        settled = value.__self__.__name__ in _PURE_BUILT_IN
    else:
        settled = isinstance(value.__self__, type) and value.__self__.__module__ == "builtins"
    if not settled or value.__name__ in _OPAQUE:
        raise Opaque


def _of_method(function: Any, owner: Any, callers: _Callers) -> Hashable:
    if type(function) is not types.FunctionType:
        raise Opaque
    return _of_function(function, (owner,), callers)


def _of_function(fn: types.FunctionType, owner: tuple[Any] | None, callers: _Callers) -> Hashable:
    """`owner`: the object that it is a method of, alone in a tuple."""
    if fn.__globals__.get("__name__", "").startswith("triton."):
        return fn
    code = fn.__code__
    if owner is None and code in callers:
        return "recursion"
    if len(callers) > 32:  # methods of one class that call one another for ever deeper objects
        raise Opaque
    callers = (*callers, code)
    names: dict[str, Any] = {} if owner is None else {own_name(code): owner[0]}
    if fn.__closure__:
        for name, cell in zip(code.co_freevars, fn.__closure__, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # not yet assigned
                raise Opaque from None
    key: list[Hashable] = [code]
    reads = reads_of(code, owner is not None)
    for name, steps in reads:
        key.append(_of_value(_read(fn, names, name, steps), callers))
    if fn.__defaults__:
        key.append(_of_value(fn.__defaults__, callers))
    if fn.__kwdefaults__:
        key.append(_of_value(fn.__kwdefaults__, callers))
    if owner is None and len(callers) == 1 and not (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__):
        _remember(code, reads, key[1:])
    return tuple(key)


def _remember(code: types.CodeType, reads: Any, values: list[Hashable]) -> None:
    """Code that is flat: it reads attributes alone, and numbers and what is settled."""
    settled = all(type(each) is str or _is_settled(each) for each in values)
    if settled and len(_flat) < _FLAT and all(how == "." for _, steps in reads for how, _ in steps):
        _flat[code] = tuple([(name, tuple([what for _, what in steps])) for name, steps in reads])


def _read(fn: types.FunctionType, names: dict[str, Any], name: str, steps: tuple[Step, ...]) -> Any:
    value: Any
    if name in names:
        value = names[name]
    elif name in fn.__globals__:
        value = fn.__globals__[name]
    elif name is OF_VALUES:
        value = torch.Tensor
    else:
        value = getattr(builtins, name, _absent)
    for how, what in steps:
        if type(value) in _NUMBERS or type(value) in _SELVES:
            break  # what is read of an immutable value says nothing more
        value = _step(value, how, what)
    return value


def _step(value: Any, how: str, what: Any) -> Any:
    """An attribute or an item of a value, where reading it runs no code of anybody's."""
    kind = type(value)
    if how == "[":
        if kind not in (list, tuple, dict):
            raise Opaque
        try:
            return value[what]
        except (LookupError, TypeError):
            raise Opaque from None
    if kind in _MODULES or kind is type or value is torch.Tensor:
        found = getattr(value, what, _absent)
        if kind not in _MODULES and type(found) in (property, types.MethodType):
            raise Opaque
        return found
    reader: Any = kind.__getattribute__
    if kind is types.FunctionType or isinstance(value, type) or reader is not object.__getattribute__:
        raise Opaque
    of_class = getattr(kind, what, _absent)
    if type(of_class) is types.MemberDescriptorType:
        return getattr(value, what, _absent)
    if of_class is not _absent and hasattr(type(of_class), "__set__"):
        raise Opaque
    held = getattr(value, "__dict__", {})
    if what in held:
        return held[what]
    if of_class is _absent and isinstance(value, torch.nn.Module):
        return value._modules.get(what, _absent)
    if type(of_class) is types.FunctionType:
        return types.MethodType(of_class, value)
    if of_class is not _absent and hasattr(type(of_class), "__get__"):
        raise Opaque
    return of_class

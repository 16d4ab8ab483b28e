"""Whether a function may do something else than it did the last time, told without running it.

A fingerprint holds everything that a plain function's outcome depends on: its code (which holds its constants), its
defaults, the cells it closes over, the globals and module attributes it reads, and the same of every function it
calls. Which names a code object reads is worked out once from its bytecode; a call only reads the values again.
What cannot be seen through (objects, lists, attributes of instances, dynamic look-ups) has no fingerprint.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import torch

_NUMBERS = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
_SETTLED_KINDS = (types.BuiltinFunctionType, type)
_CONSTANTS = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch._ops.OpOverload)
#: Packages whose modules and functions are taken not to change.
_SETTLED = frozenset({"torch", "triton", "math", "cmath", "operator", "_operator", "builtins", "functools"})
#: Built-ins through which a function can read what its bytecode does not name.
_OPAQUE = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "getattr", "setattr", "delattr", "__import__", "open", "input",
    "id", "dir", "compile", "breakpoint"}
)  # fmt: skip
_REFUSED_OPERATIONS = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_BUILD_CLASS", "IMPORT_STAR", "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_FROM_DICT_OR_DEREF"}
)  # fmt: skip
_READS_OF_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})
_READS_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_REMEMBERED = 4096
#: Under this attribute a ready function (`weft.functions`) has the one that it calls with a tensor.
READY = "__weft_ready__"
#: Under this attribute of its class a traced function says that its `identity` is all that it depends on.
TRACED = "__weft_traced__"

#: A name and the attributes read from it: ("config", ("ALPHA",)). None: the code does something opaque.
_Reads = tuple[tuple[str, tuple[str, ...]], ...] | None
_reads: dict[types.CodeType, _Reads] = {}


class _Opaque(Exception):
    """Something that a fingerprint cannot see through."""


def fingerprint(fn: Any) -> Hashable | None:
    """A key that changes whenever `fn` may have changed, or None where that cannot be told.

    Numbers are told apart by type and bits: 1, 1.0, True, 0.0 and -0.0 are five values. The key refers to live
    objects, so it means something in this process only; `Pointwise.identity` is the key that lasts.
    """
    try:
        return (torch.get_default_dtype(), _of_value(fn, ()))
    except _Opaque:
        return None


def _of_value(value: Any, callers: tuple[types.CodeType, ...]) -> Hashable:
    kind = type(value)
    if kind in _NUMBERS:
        return repr(value)  # of these types only: tells kinds and signs of zero apart
    if kind is types.FunctionType:
        if READY in value.__dict__:  # what it does with a tensor is what its function does
            return ("ready", _of_value(value.__dict__[READY], callers))
        return value if _is_settled(value) else _of_function(value, callers)
    if isinstance(value, _SETTLED_KINDS) and _is_settled(value) and value.__name__ not in _OPAQUE:
        return value
    if isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, np.generic):
        return (kind, value.tobytes())
    if kind is tuple:
        return tuple([_of_value(item, callers) for item in value])
    if kind is functools.partial:
        return (
            "partial",
            _of_value(value.func, callers),
            _of_value(value.args, callers),
            tuple([(name, _of_value(item, callers)) for name, item in value.keywords.items()]),
        )
    if kind is types.ModuleType and _is_settled_name(value.__name__):
        return value
    if kind is np.ufunc:
        return value
    if hasattr(kind, TRACED):
        return ("traced", value.identity, value.inputs)
    if kind.__module__ == "triton.language.core" and kind.__name__ == "constexpr":
        return ("constexpr", _of_value(value.value, callers))
    if kind.__module__ in ("triton.runtime.jit", "triton.runtime.interpreter") and hasattr(value, "fn"):
        return ("triton", _of_value(value.fn, callers))
    raise _Opaque


def _is_settled(value: Any) -> bool:
    if isinstance(value, types.FunctionType):  # not __module__, which functools.wraps copies
        return _is_settled_name(value.__globals__.get("__name__", ""))
    owner = getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return _is_settled_name(owner.__name__)
    return _is_settled_name((owner if isinstance(owner, type) else value).__module__ or "")


def _is_settled_name(module: str) -> bool:
    return module.partition(".")[0] in _SETTLED


def _of_function(fn: types.FunctionType, callers: tuple[types.CodeType, ...]) -> Hashable:
    code = fn.__code__
    if code in callers:
        return "recursion"
    reads = _reads_of(code)
    if reads is None:
        raise _Opaque
    callers = (*callers, code)
    cells: dict[str, Any] = {}
    if fn.__closure__:
        for name, cell in zip(code.co_freevars, fn.__closure__, strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # not yet assigned
                raise _Opaque from None
    key: list[Hashable] = [code]
    for name, attributes in reads:
        key.append(_of_read(fn, cells, name, attributes, callers))
    if fn.__defaults__:
        key.append(_of_value(fn.__defaults__, callers))
    if fn.__kwdefaults__:
        key.extend((name, _of_value(value, callers)) for name, value in fn.__kwdefaults__.items())
    return tuple(key)


def _of_read(
    fn: types.FunctionType,
    cells: dict[str, Any],
    name: str,
    attributes: tuple[str, ...],
    callers: tuple[types.CodeType, ...],
) -> Hashable:
    if name in cells:
        value = cells[name]
    elif name in fn.__globals__:
        value = fn.__globals__[name]
    else:
        value = getattr(builtins, name, _Opaque)
    for attribute in attributes:
        if type(value) is not types.ModuleType:
            if type(value) in _NUMBERS or isinstance(value, _CONSTANTS):
                break  # an attribute of an immutable value says nothing more
            raise _Opaque
        if _is_settled_name(value.__name__):
            break
        value = getattr(value, attribute, _Opaque)
    return _of_value(value, callers)


def _reads_of(code: types.CodeType) -> _Reads:
    try:
        return _reads[code]
    except KeyError:
        pass
    if len(_reads) >= _REMEMBERED:
        _reads.clear()
    try:
        found: _Reads = tuple(dict.fromkeys(_scan(code, frozenset(code.co_freevars))))
    except _Opaque:
        found = None
    _reads[code] = found
    return found


def _scan(code: types.CodeType, outer: frozenset[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every name that the code, or code defined inside it, reads from outside of `outer`'s function."""
    name: str | None = None
    attributes: list[str] = []
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if operation in _REFUSED_OPERATIONS:
            raise _Opaque
        if operation == "IMPORT_NAME" and not _is_settled_name(instruction.argval):
            raise _Opaque
        if name is not None and operation in _READS_OF_ATTRIBUTES:
            attributes.append(instruction.argval)
            continue
        if name is not None and operation not in ("CACHE", "EXTENDED_ARG"):
            yield name, tuple(attributes)
            name = None
        if operation in _READS_OF_NAMES and (operation != "LOAD_DEREF" or instruction.argval in outer):
            name, attributes = instruction.argval, []
    if name is not None:
        yield name, tuple(attributes)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _scan(constant, outer)

"""Which values a function reads from outside of itself, worked out from its bytecode once for each code object.

A read is a name and the steps that lead on from it: ``cfg.scales[0]`` is ("cfg", ((".", "scales"), ("[", 0))). Steps
are gone, and parts of values read, only where that runs no code of anybody's.
"""

from __future__ import annotations

import collections
import dis
import functools
import inspect
import struct
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

Step = tuple[str, Any]  # (".", attribute) or ("[", key)


class Read(NamedTuple):
    """A value that code reads: where its name is looked up, the name, and the steps from there."""

    name: str
    steps: tuple[Step, ...] = ()


class Opaque(Exception):
    """Something that a fingerprint cannot see through."""


#: The name under which methods of values stand, `v.relu()`: whoever replaces one in `torch.Tensor` changes functions.
OF_VALUES = ""
#: Modules whose functions depend on their arguments alone.
PURE_MODULES = frozenset({"math", "cmath", "operator", "_operator"})
#: Attributes of functions and classes that no fingerprint has.
UNREAD = frozenset({
    "__qualname__", "__module__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__type_params__", "__firstlineno__", "__static_attributes__", "__weakref__", "__dict__",
    "__orig_bases__", "__parameters__",
})  # fmt: skip
#: Those, and attributes that lead from a value to what it does not hold: a function's globals, a frame's locals.
_REFUSED_ATTRIBUTES = UNREAD | frozenset({"__subclasses__", "__reduce__", "__reduce_ex__", "__traceback__"}).union(*[
    set(dir(kind)) - set(dir(object)) - {"__call__", "__get__", "__name__", "__iter__", "__next__", "__del__"}
    for kind in (
        types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.CodeType,
        types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.TracebackType,
    )
]) - {"send", "throw", "close", "clear"}  # fmt: skip
_REFUSED_OPERATIONS = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_BUILD_CLASS", "IMPORT_STAR", "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_FROM_DICT_OR_DEREF"}
)  # fmt: skip
_OF_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_OF_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF"})
_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_OF_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_REMEMBERED = 4096


class Code:
    """Code, wherever it stands: code objects of one content share one of these."""

    __slots__ = ("_code", "_reads", "flat")

    def __init__(self, code: types.CodeType) -> None:
        self._code = code
        self._reads: dict[bool, tuple[Read, ...] | None] = {}
        #: The names, the cells that some of them are of, and the attributes that it reads, where it reads no items.
        self.flat: tuple[tuple[str, int | None, tuple[str, ...]], ...] | None = None

    def own_name(self) -> str | None:
        """A method's name for the object that it belongs to."""
        return self._code.co_varnames[0] if self._code.co_argcount else None

    def reads(self, bound: bool) -> tuple[Read, ...]:
        """The reads; of a `bound` method its first argument's attributes, too. `Opaque` where unknown."""
        if bound not in self._reads:
            self._reads[bound] = self._scanned(bound)
        found = self._reads[bound]
        if found is None:
            raise Opaque
        return found

    def _scanned(self, bound: bool) -> tuple[Read, ...] | None:
        code = self._code
        try:
            found = tuple(dict.fromkeys(_scan(code, frozenset(code.co_freevars), self.own_name() if bound else None)))
        except Opaque:
            return None
        if not bound and all(how == "." for read in found for how, _ in read.steps):
            cells = {name: at for at, name in enumerate(code.co_freevars)}
            self.flat = tuple(
                [(read.name, cells.get(read.name), tuple([what for _, what in read.steps])) for read in found]
            )
        return found


_known: dict[int, tuple[types.CodeType, Code]] = {}
_alike: dict[Any, Code] = {}


def code_of(code: types.CodeType) -> Code:
    """The `Code` of a code object: that of an earlier one with the same instructions, names and constants."""
    found = _known.get(id(code))
    if found is None:
        if len(_known) >= _REMEMBERED:
            _known.clear()
            _alike.clear()
        content = (
            code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount,
            code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_exceptiontable,
            _constant(code.co_consts),
        )  # fmt: skip
        found = _known[id(code)] = code, _alike.setdefault(content, Code(code))
    return found[1]


def number(value: Any) -> Any:
    """A number, text or the like so that equal ones are of one type and the same bits."""
    kind = type(value)
    if kind is float and value == value:
        return repr(value)
    return (kind, struct.pack("dd", value.real, value.imag) if kind is float or kind is complex else value)


def _constant(value: Any) -> Any:
    kind = type(value)
    if kind is tuple or kind is frozenset:  # as they are iterated
        return kind, *[_constant(each) for each in value]
    if kind is slice:
        return kind, *[_constant(each) for each in (value.start, value.stop, value.step)]
    if kind is types.CodeType:
        return code_of(value)
    if kind in NUMBERS:
        return number(value)
    raise Opaque


NUMBERS = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})


def _scan(code: types.CodeType, outer: frozenset[str], own: str | None) -> Iterator[Read]:
    """`outer`: names of cells that are not the function's own; `own`: that of the object a method is of."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    at = 0
    while at < len(instructions):
        each = instructions[at]
        at += 1
        operation, argument = each.opname, each.argval
        names = argument if type(argument) is tuple else (argument,)  # of an instruction that stands for two
        if operation in _REFUSED_OPERATIONS or (operation == "IMPORT_NAME" and argument not in PURE_MODULES):
            raise Opaque
        if operation in ("STORE_DEREF", "DELETE_DEREF") and argument in outer:  # others may share the cell
            raise Opaque
        if operation in _OF_NAMES or (operation in _OF_CELLS and (argument in outer or argument == own)):
            steps, at = _steps(instructions, at)
            yield Read(argument, steps)
            if argument == "super" and own is not None:  # without arguments it takes the object itself
                yield Read(own)
        elif own is not None and "LOAD_FAST" in operation and own in names:
            if own in names[:-1]:
                yield Read(own)
            if names[-1] == own:
                steps, at = _steps(instructions, at)
                yield Read(own, steps)
        elif operation in _OF_ATTRIBUTES:
            yield Read(OF_VALUES, ((".", _attribute(argument)),))
    inner = outer if own is None else outer | {own}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _scan(constant, inner, None)


def _attribute(name: str) -> str:
    if name in _REFUSED_ATTRIBUTES:
        raise Opaque
    return name


def _steps(instructions: list[dis.Instruction], at: int) -> tuple[tuple[Step, ...], int]:
    """The attributes and constant keys that are read of the value on top, and where the code goes on."""
    steps: list[Step] = []
    while at < len(instructions):
        each = instructions[at]
        if each.opname in _OF_ATTRIBUTES:
            steps.append((".", _attribute(each.argval)))
            at += 1
        elif each.opname in _OF_CONSTANTS and at + 1 < len(instructions) and _subscripts(instructions[at + 1]):
            steps.append(("[", each.argval))
            at += 2
        else:
            break
    return tuple(steps), at


def _subscripts(each: dis.Instruction) -> bool:
    return each.opname == "BINARY_SUBSCR" or (each.opname == "BINARY_OP" and each.argrepr == "[]")


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
    return _of_object(value, kind, what)


def _of_object(value: Any, kind: Any, name: str) -> Any:
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

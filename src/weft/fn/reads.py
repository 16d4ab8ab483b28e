"""Which values a function reads from outside of itself, worked out from its bytecode once for each code object.

A read is a name and the steps that lead on from it: ``cfg.scales[0]`` is ("cfg", ((".", "scales"), ("[", 0))).
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
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
_REFUSED_OPERATIONS = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_BUILD_CLASS", "IMPORT_STAR", "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_FROM_DICT_OR_DEREF"}
)  # fmt: skip
_OF_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_OF_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF"})
_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_REMEMBERED = 4096

_known: dict[tuple[types.CodeType, bool], tuple[Read, ...] | None] = {}


def reads_of(code: types.CodeType, bound: bool) -> tuple[Read, ...]:
    """The reads of the code; of a `bound` method its first argument's attributes, too. `Opaque` where unknown."""
    try:
        found = _known[code, bound]
    except KeyError:
        try:
            found = tuple(dict.fromkeys(_scan(code, frozenset(code.co_freevars), own_name(code) if bound else None)))
        except Opaque:
            found = None
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[code, bound] = found
    if found is None:
        raise Opaque
    return found


def own_name(code: types.CodeType) -> str:
    """A method's name for the object that it belongs to."""
    if not code.co_argcount:
        raise Opaque
    return code.co_varnames[0]


def _scan(code: types.CodeType, outer: frozenset[str], own: str | None) -> Iterator[Read]:
    """`outer`: names of cells that are not the function's own; `own`: that of the object a method is of."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    at = 0
    while at < len(instructions):
        each = instructions[at]
        at += 1
        operation, argument = each.opname, each.argval
        if operation in _REFUSED_OPERATIONS or (operation == "IMPORT_NAME" and argument not in PURE_MODULES):
            raise Opaque
        if operation in _OF_NAMES or (operation in _OF_CELLS and (argument in outer or argument == own)):
            steps, at = _steps(instructions, at)
            yield Read(argument, steps)
        elif own is not None and "_FAST" in operation and _touches(argument, own):
            if not operation.startswith("LOAD_FAST") or (type(argument) is tuple and own in argument[:-1]):
                raise Opaque
            steps, at = _steps(instructions, at)
            if not steps:  # the object as a whole
                raise Opaque
            yield Read(own, steps)
        elif own is not None and operation in ("STORE_DEREF", "DELETE_DEREF") and argument == own:
            raise Opaque
        elif operation in _OF_ATTRIBUTES and hasattr(torch.Tensor, argument):
            yield Read(OF_VALUES, ((".", argument),))
    inner = outer if own is None else outer | {own}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _scan(constant, inner, None)


def _touches(argument: Any, name: str) -> bool:
    return argument == name or (type(argument) is tuple and name in argument)


def _steps(instructions: list[dis.Instruction], at: int) -> tuple[tuple[Step, ...], int]:
    """The attributes and constant keys that are read of the value on top, and where the code goes on."""
    steps: list[Step] = []
    while at < len(instructions):
        each = instructions[at]
        if each.opname in _OF_ATTRIBUTES:
            steps.append((".", each.argval))
            at += 1
        elif each.opname in _OF_CONSTANTS and at + 1 < len(instructions) and _subscripts(instructions[at + 1]):
            steps.append(("[", each.argval))
            at += 2
        else:
            break
    return tuple(steps), at


def _subscripts(each: dis.Instruction) -> bool:
    return each.opname == "BINARY_SUBSCR" or (each.opname == "BINARY_OP" and each.argrepr == "[]")

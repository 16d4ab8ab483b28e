"""The caller's functions in code that dynamo reads.

Dynamo reads the function as it reads all else, on stand-ins for its values, and so guards on whatever the function
reads: globals, cells, items of lists, attributes, arguments of the code around it. What it wrote down of the function
is taken out of its graph and is the function from then on. Numbers in it that dynamo keeps open become constants, with
a guard each. Nothing uses the stand-ins any more: compilers drop them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch import fx

from weft.base.caches import BoundedCache
from weft.base.dispatch import is_dynamo_compiling
from weft.fn.binding import parameters
from weft.fn.pointwise import Pointwise, is_triton_function
from weft.fn.portable import of_graph

Call = TypeVar("Call", bound=Callable[..., Any])

#: Stands for a function that dynamo cannot read: the call is made outside of its graph.
UNREAD = ("unread", 0)
_SHAPE = (5, 7)  # of stand-ins
_PYTHON = (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)

_serial = count()
_captured = BoundedCache(256)  # by number, until the call that they are given to is spelled
_latest: list[fx.Graph | None] = []  # what `_take` found, until `_number` takes it


def constant_of_graph(call: Call) -> Call:
    """Let dynamo run this while it reads the code, and take what it returns for a constant."""
    setattr(call, "_dynamo_marked_constant", True)  # noqa: B010  # as torch.compiler.assume_constant_result does
    return call


def undisturbed(call: Call) -> Call:
    """The call as dynamo does not read it: where it could not read the arguments of a call it runs such functions."""
    return _unread(call) if "torch._dynamo" in sys.modules else call


@functools.cache
def _unread(call: Call) -> Call:
    return cast(Call, torch._dynamo.disable(call))


def capture(function: Any, names: tuple[str, ...] | None, dtypes: tuple[torch.dtype, ...]) -> Any:
    """The stand-in for a function among the constants of a call: see `function_of`. Dynamo reads this.

    `dtypes`: of its values. The first is given by position and the others by `names`; all by position without these.
    """
    if function is None:
        return None
    if not isinstance(function, _PYTHON) and not _runs_python(function):
        return function
    if not is_dynamo_compiling():  # dynamo gave this frame up: it could not read the function
        return UNREAD
    from torch._dynamo.comptime import comptime

    stand_ins = tuple([torch.empty(_SHAPE, dtype=dtype, device="cpu") for dtype in dtypes])
    try:
        if names is None:
            found = function(*stand_ins)
        else:
            found = function(stand_ins[0], **dict(zip(names, stand_ins[1:], strict=True)))
    except Exception:  # what is wrong the call says better
        return UNREAD
    comptime(_take)
    del found
    return _number(names)


def captured_all(functions: Any, seen: Any, beside: Any) -> Any:
    """The stand-ins for all functions of a call; None where dynamo cannot read one. Dynamo reads this.

    `seen`: the types of their values, in the order of the functions. `beside`: names and types of what else there is:
    each function gets what it has a parameter for, one alone gets all.
    """
    alone = len([function for function in functions if function is not None]) == 1
    found = []
    for function, dtype in zip(functions, seen, strict=True):
        given = beside
        if beside and function is not None and not alone:
            given = [each for each in beside if each[0] in _parameters(function)]
        one = capture(function, tuple([name for name, _ in given]), (dtype, *[kind for _, kind in given]))
        if is_unread(one):
            return None
        found.append(one)
    return tuple(found)


def captured_algebra(algebra: Any, dtype: torch.dtype) -> Any:
    """The parts of an algebra, in the order of its fields; None where dynamo cannot read one. Dynamo reads this."""
    combine, reduce, identity, name, requires, vjp = algebra
    taken = [capture(part, None, (dtype, dtype)) for part in (combine, reduce)]
    taken.append(capture(vjp, None, (dtype, dtype, dtype, dtype)))
    for part in taken:
        if is_unread(part):
            return None
    return (taken[0], taken[1], identity, name, requires, taken[2])


def is_unread(taken: Any) -> bool:
    """Whether `capture` could not. Dynamo reads this."""
    return isinstance(taken, tuple) and taken[0] == "unread"


def unread(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Make a call outside of the graph that dynamo is reading."""
    return torch._dynamo.disable(call)(*arguments, **keywords)


# What torch.compiler.disable sets, without its import of dynamo.
unread._torchdynamo_disable = True  # type: ignore[attr-defined]
unread._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "weft: torch.compile cannot read a function that is fused here. It may read Python numbers from anywhere; tensors "
    "that it uses are passed by operands="
)


def _parameters(function: Any) -> Any:
    """The names that a function takes after its value. Dynamo reads this."""
    if isinstance(function, types.FunctionType):
        names = _names_in(function.__code__)
        if names is not None:
            return names
    return _names_of(function)


@constant_of_graph
def _names_in(code: types.CodeType) -> tuple[str, ...] | None:
    """None where there are more than it names."""
    if code.co_flags & (inspect.CO_VARKEYWORDS | inspect.CO_VARARGS):
        return None
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


@constant_of_graph
def _names_of(function: Any) -> tuple[str, ...]:
    return parameters(function) or ()


def function_of(constant: Any) -> Any:
    """The function that `capture` gave this for."""
    return _captured.take(constant[1]) if type(constant) is tuple else constant


@constant_of_graph
def _runs_python(function: Any) -> bool:
    """Whether an object that is called runs Python that may do something else the next time."""
    if is_triton_function(function) or isinstance(function, Pointwise):
        return False
    return isinstance(getattr(type(function), "__call__", None), types.FunctionType)  # noqa: B004


@constant_of_graph
def _number(names: tuple[str, ...] | None) -> tuple[str, int]:
    """The stand-in for the function that was taken last."""
    graph = _latest.pop()
    if graph is None:
        return UNREAD
    own = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    found = "captured", next(_serial)
    _captured.put(found[1], of_graph(graph, own if names is None else ("value", *names), found))
    return found


def _take(context: Any) -> None:
    """Keep what dynamo wrote down of the function that `capture` has just called; None where that is not to be had."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        stand_ins, found = (context.get_local(name).as_proxy() for name in ("stand_ins", "found"))
        _latest.append(_read(context.graph(), [each.node for each in stand_ins], found))
    except (NotImplementedError, GuardOnDataDependentSymNode):
        _latest.append(None)


def _read(graph: fx.Graph, places: list[fx.Node], found: Any) -> fx.Graph:
    """Raises `NotImplementedError` for a function that uses values of tensors of the code around it."""
    nodes, new = list(graph.nodes), fx.Graph()
    known = {place: new.placeholder(f"x{at}") for at, place in enumerate(places)}

    def constant(node: fx.Node) -> Any:
        if (number := _open_number(node)) is not None:
            return _fixed(number)
        if node not in known:
            raise NotImplementedError
        return known[node]

    for node in nodes[nodes.index(places[-1]) + 1 :]:
        if node.op not in ("call_function", "call_method") or _open_number(node) is not None:
            continue
        try:
            known[node] = new.node_copy(node, constant)
        except NotImplementedError:  # of the tensors around it alone: their shapes, say
            if known.keys() & node.all_input_nodes:
                raise
    new.output(fx.node.map_aggregate(found, lambda each: constant(each.node) if isinstance(each, fx.Proxy) else each))
    return new


def _open_number(node: fx.Node) -> torch.SymInt | torch.SymFloat | torch.SymBool | None:
    """A number that dynamo keeps open, where the node is one."""
    value = node.meta.get("example_value")
    return value if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else None


def _fixed(number: Any) -> bool | int | float:
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    found: bool | int | float = guard_scalar(number)
    return found

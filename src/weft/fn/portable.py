"""A traced function as plain data that outlives the process, and the Python function that such data describes.

A recorded function is its graph: a list of aten operations. Written as data (lists, texts, numbers: what JSON holds) it
can stand in a compiled program or in a file, and be made a function again where the user's own source is not there.
A function that the user wrote in Triton has no such graph: it travels by its module and name.

    {"takes": ["value", "bias"], "does": [["aten.add.Tensor", [{"at": 0}, {"at": 1}], {}]], "gives": {"at": 2}}

`{"at": i}` is the i-th value: parameters first, then the result of each operation in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from weft.base.figures import dtype_name
from weft.errors import FunctionError
from weft.fn.binding import naming
from weft.fn.fingerprint import standing_for
from weft.fn.pointwise import Pointwise, RecordedFunction, TritonFunction, is_triton_function

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # what functions were made of
_live: dict[str, Any] = {}  # functions in Triton that this process has written, by what was written


def written(function: Any) -> dict[str, Any]:
    """A traced function, or one that `read` has made, as data that JSON holds.

    Raises `FunctionError` for a constant that has no such form.
    """
    if function in _made:
        return _made[function]
    if isinstance(function, TritonFunction):
        return _named(function)
    assert isinstance(function, RecordedFunction), "a function is recorded or written in Triton"
    places: dict[fx.Node, int] = {}
    does = []
    gives: Any = None
    for node in function.graph.nodes:
        if node.op == "output":
            gives = _data(node.args[0], places)
            continue
        if node.op == "call_function":
            named = {key: _data(value, places) for key, value in node.kwargs.items()}
            does.append([str(node.target), [_data(each, places) for each in node.args], named])
        places[node] = len(places)
    return {"takes": list(function.inputs), "does": does, "gives": gives}


def is_written(function: Any) -> bool:
    """Whether `written` takes it."""
    return isinstance(function, Pointwise) or (callable(function) and function in _made)


def read(data: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that `written` wrote: the same object for the same data.

    Its parameters have the names that the traced function's had. Raises `FunctionError` where it is a Triton function
    that is not to be had here.
    """
    return _read(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=1024)
def _read(text: str) -> Callable[..., Any]:
    data = json.loads(text)
    if "triton" in data:
        return _found(data["triton"], data["key"])
    graph, names = fx.Graph(), list(data["takes"])
    values = [graph.placeholder(name) for name in names]
    for operation, args, kwargs in data["does"]:
        named = {key: _argument(value, values) for key, value in kwargs.items()}
        values.append(graph.call_function(_operation(operation), _argument(args, values), named))
    graph.output(_argument(data["gives"], values))
    _made[function := of_graph(graph, names, text)] = data
    return function


def of_graph(graph: fx.Graph, names: Sequence[str], meaning: Any) -> Callable[..., Any]:
    """The function of tensors with these names that a graph is, known by its `meaning`."""
    forward = fx.GraphModule(torch.nn.Module(), graph).forward

    def rebuilt(*given: Any, **named: Any) -> Any:
        return forward(*given, *[named[name] for name in names[len(given) :]])

    return standing_for(naming(names, rebuilt), meaning)


# -- values ------------------------------------------------------------------------------------------------------------


def _data(value: Any, places: Mapping[fx.Node, int]) -> Any:
    """An argument as JSON holds it: floats in hexadecimal, which keeps every bit and writes infinities."""
    if isinstance(value, fx.Node):
        return {"at": places[value]}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, (tuple, list)):
        return [_data(each, places) for each in value]
    raise FunctionError(f"a function with the constant {value!r} cannot be put into a compiled program")


def constant(value: Any) -> Any:
    """A number, a dtype or a text as data that JSON holds."""
    return _data(value, {})


def read_constant(data: Any) -> Any:
    """The value that `constant` wrote."""
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(*map(float.fromhex, value))
    return getattr(torch, value)


def _argument(data: Any, values: Sequence[fx.Node]) -> Any:
    """An argument that `_data` wrote."""
    if isinstance(data, list):
        return tuple([_argument(each, values) for each in data])
    return values[data["at"]] if isinstance(data, dict) and "at" in data else read_constant(data)


def _operation(text: str) -> Any:
    """`aten.add.Tensor` as torch's object."""
    try:
        return attrgetter(text)(torch.ops)
    except AttributeError:
        raise FunctionError(f"a function in a compiled program uses {text}, which this torch lacks") from None


# -- functions in Triton -----------------------------------------------------------------------------------------------


def _named(function: TritonFunction) -> dict[str, Any]:
    jit = function.jit
    _live[function.identity] = jit
    return {"triton": f"{jit.fn.__module__}:{jit.fn.__qualname__}", "key": function.identity}


def _found(name: str, key: str) -> Any:
    if key in _live:
        return _live[key]
    module, _, path = name.partition(":")
    try:
        found = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError):
        found = None
    if found is None or not is_triton_function(found):
        raise FunctionError(f"a compiled program calls the Triton function {path} of module {module}: it is not here")
    return found

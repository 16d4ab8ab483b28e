"""Calls as text, and the calls again: JSON of the fields of what describes a call, whatever fields it has.

A field that has its default is left out. Functions are written as what they compute (`weft.fn.portable`), an algebra of
weft's own by its name, a schedule as its text; all else that holds values is written field by field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from weft.algebra import NAMED, Algebra, find
from weft.cascades.described import CascadeNotation
from weft.compiled.captured import constant_of_graph
from weft.fn import portable, trace
from weft.planner.options import Options, options_of
from weft.planner.request import Request
from weft.planner.target import resolve_backend

Stored = tuple[torch.dtype, int]  # a tensor's type and rank
Kind = TypeVar("Kind", bound=type)

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (Algebra, CascadeNotation, Options)}


def has_text(kind: Kind) -> Kind:
    """A dataclass whose values `text_of` writes and `read` makes."""
    _KINDS[kind.__name__] = kind
    return kind


def text_of(call: Any) -> str:
    """The text of what describes a call, whose functions are traced, or were read from a text."""
    return json.dumps(_data(call), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def read(text: str) -> Any:
    """The call that a text describes; `FunctionError` where a function of it is not to be had here."""
    return _value(json.loads(text))


def _data(value: Any) -> Any:
    """A value as JSON holds it."""
    if portable.is_written(value):
        return {"function": portable.written(value)}
    if isinstance(value, Algebra) and NAMED.get(value.name) is value:
        return {"algebra": value.name}
    if type(value).__name__ in _KINDS and is_dataclass(value):
        said = {each.name: getattr(value, each.name) for each in fields(value) if not _is_default(value, each)}
        return {"is": type(value).__name__, **{name: _data(each) for name, each in said.items()}}
    if isinstance(value, Mapping):
        return {"items": [[_data(key), _data(each)] for key, each in value.items()]}
    if isinstance(value, (tuple, list)):
        return [_data(each) for each in value]
    return str(value) if hasattr(value, "family") else portable.constant(value)


def _is_default(value: Any, field: Any) -> bool:
    usual = field.default if field.default_factory is MISSING else field.default_factory()
    found = getattr(value, field.name)
    return type(found) is type(usual) and bool(found == usual)


def _value(data: Any) -> Any:
    """The value that `_data` wrote, its functions as Python's."""
    if isinstance(data, list):
        return tuple(map(_value, data))
    if not isinstance(data, dict):
        return data
    if "is" in data:
        return _KINDS[data["is"]](**{name: _value(each) for name, each in data.items() if name != "is"})
    if "function" in data:
        return portable.read(data["function"])
    if "items" in data:
        return {_value(key): _value(each) for key, each in data["items"]}
    return find(data["algebra"]) if "algebra" in data else portable.read_constant(data)


# -- what texts are made of --------------------------------------------------------------------------------------------


def stand_in(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A tensor of one element: all that a text says holds for any extents."""
    return torch.empty((1,) * rank, dtype=dtype, device="cpu")


def settled_algebra(given: Algebra | None, dtype: torch.dtype) -> Algebra | None:
    """An algebra as what it computes in this type; one of weft's own as it is."""
    if given is None or NAMED.get(given.name) is given:
        return given
    traced, vjp = given.traced(dtype), given.vjp
    if vjp is not None:
        hook = f"vjp of the algebra {given.name}"
        vjp = trace(_of_four(vjp), (dtype,) * 4, names=("y", "total", "grad"), hook=hook)
    return Algebra(traced.combine, traced.reduce, traced.identity, given.name, None, vjp)


def _of_four(function: Any) -> Any:
    """`function` called by position, as its parameters may have any names; a gradient that is None is zero."""

    def of_four(x: Any, y: Any, total: Any, grad: Any) -> Any:
        found = function(x, y, total, grad)
        several = isinstance(found, (tuple, list))
        return tuple([torch.zeros_like(x) if each is None else each for each in found]) if several else found

    return of_four


def check_backend_of(options: Options, kind: str) -> None:
    """Raise what a call on such a device would: stand-ins are on none."""
    if kind != "meta":
        resolve_backend(options.backend, torch.device(kind))


def options_of_plan(request: Request) -> Options:
    """The options of a plan's calls: the backend is named only where it is not what the device gets anyway."""
    usual = request.device.type in ("cpu", "cuda") and resolve_backend("auto", request.device) == request.backend
    backend = "auto" if usual else request.backend
    return replace(options_of(request, {}), backend=backend, schedule=request.schedule)


# -- the flops of an operation, for torch.utils.flop_counter.FlopCounterMode -------------------------------------------
# They are those of `weft.machine.counts`: multiply-adds, two each; four times as many of complex numbers. Functions are
# not counted: torch counts no pointwise operation either.

_COUNTER = "torch.utils.flop_counter"
#: How often an operation does what its text describes: a backward pass makes the cascade again, and two contractions
#: for each of its two.
_TIMES = {"contract": 1, "contract_out": 1, "cascade": 1, "cascade_backward": 3}


@constant_of_graph
def announce_flops() -> None:
    """Tell torch's flop counter of weft's operations, where it is there: its import takes a quarter of a second.

    A counter copies what is known when it is made: those that are on get it, too.
    """
    counter = sys.modules.get(_COUNTER)
    if counter is None:
        return
    packets = {getattr(torch.ops.weft, name): times for name, times in _TIMES.items()}
    for packet, times in packets.items():
        if packet not in counter.flop_registry:
            counter.register_flop_formula(packet, get_raw=True)(_formula(times))
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", mode), "flop_registry", {})
        for packet in packets:
            registry.setdefault(packet, counter.flop_registry[packet])


def _formula(times: int) -> Any:
    return lambda call, tensors, *others, **named: times * read(call).flops(tensors)

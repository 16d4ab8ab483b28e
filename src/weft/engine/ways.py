"""Which way a call goes that is not known: by its plan, by rules of derivatives, or as an operation that torch sees.

A known call asks none of this: no derivative with respect to its operands is requested, and torch sees no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from weft.base.arrays import is_transformed, is_transforming
from weft.base.dispatch import as_operation, is_traced
from weft.errors import UnsupportedError
from weft.planner.request import Results

_REQUIRES = attrgetter("requires_grad")
_ROOM = "weft.autograd.calls"  # by name: it is a room above


def each_of(out: Any) -> tuple[Any, ...]:
    """The results of a call as a tuple."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


class Arguments(NamedTuple):
    """The tensors and factors of a plan's call, operands of functions by name. A permutation has no B."""

    a: torch.Tensor
    b: Any = None
    c: torch.Tensor | None = None
    out: Results | None = None
    alpha: Any = 1.0  # a number; before the call's way is known also a tensor of no dimensions
    beta: Any = 1.0
    operands: Mapping[str, torch.Tensor] = MappingProxyType({})


def aside(name: str, subject: Any, call: Arguments, *others: Any) -> tuple[Any, Any] | None:
    """The result of a call that is not made by its plan alone, and what makes it in later calls; None for a plain call.

    Where a derivative is requested the function of that name in the room of derivatives makes it, where torch traces
    the operation of that name. `subject`: the equation or the plan that is called; `others`: what a call says else.
    """
    tensors = (call.a, call.b, call.c, *call.operands.values())
    if asked(*tensors) or any_tensor(call.alpha, call.beta):
        found: tuple[Any, Any] = differentiable(name)(subject, call, *others)
        return found
    if is_traced((*tensors, *each_of(call.out))):
        return as_operation(name)(subject, call, *others), None
    return None


def is_seen(tensors: Sequence[Any]) -> bool:
    """Whether torch is to see what is made of these tensors: a derivative is requested, or torch traces."""
    return asked(*tensors) or is_traced(tensors)


def is_hidden(tensors: Sequence[Any]) -> bool:
    """Whether tensors show neither values nor addresses: others stand for them in a transform, or torch traces."""
    return is_transforming() or is_traced(tensors)


def asked(*values: Any) -> bool:
    """Whether a derivative with respect to one of these tensors may be requested, by any means of torch."""
    return is_transforming() or any(map(asks, [value for value in values if isinstance(value, torch.Tensor)]))


def asked_of_many(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a derivative with respect to one of thousands of tensors may be requested, by one look at all of them."""
    if is_transforming() or forward_ad._current_level >= 0:
        return asked(*tensors)
    return (torch.is_grad_enabled() and any(map(_REQUIRES, tensors))) or any(map(is_transformed, tensors))


def asks(tensor: torch.Tensor) -> bool:
    """Whether a tensor requires a gradient here, has a tangent, or stands for others inside a transform."""
    if is_transformed(tensor) or (tensor.requires_grad and torch.is_grad_enabled()):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def any_tensor(*values: Any) -> bool:
    """Whether one of these factors is a tensor, which takes part as an operand does."""
    return any(map(isinstance, values, repeat(torch.Tensor)))


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to plan for; `UnsupportedError` inside a transform of torch.func, where tensors have no layout."""
    if is_transformed(tensor):
        raise UnsupportedError(
            "a plan is made of tensors, and inside a transform of torch.func (vmap, grad, jvp) others stand for them: "
            "make it outside, and call it inside"
        )
    return tensor.detach()


def operand_tensors(operands: Any) -> Iterable[Any]:
    """The tensors among a call's operands, given alone or with their modes."""
    if not isinstance(operands, Mapping):
        return
    for value in operands.values():
        yield value[1] if isinstance(value, (tuple, list)) and len(value) == 2 else value


def differentiable(call: str) -> Any:
    """The function that makes a call of that name where derivatives are requested."""
    return getattr(import_module(_ROOM), call)

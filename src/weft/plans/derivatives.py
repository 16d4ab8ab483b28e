"""The seam where a call that is to be differentiated leaves the plain way, for the room above that knows derivatives.

Only calls that are not known look here: a known plain call has no operand of which a derivative is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from weft.base.arrays import is_transformed, is_transforming
from weft.errors import UnsupportedError

_REQUIRES = attrgetter("requires_grad")
_ROOM = "weft.autograd.calls"  # by name: it is a room above


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

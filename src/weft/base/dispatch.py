"""Calls that torch wants to see as operations: while it traces, on tensors without memory, within dispatch modes.

Such a call is not planned and launched: it becomes an operation that torch knows (`torch.ops.weft`), with rules of its
own for shapes and derivatives. The room of these operations lies above this one; it says here what takes a call.

`is_dynamo_compiling` is False but where dynamo reads the code. Dynamo takes it for a constant, so that the branch which
it guards is all that dynamo sees of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from weft.base.arrays import dispatch_modes, without_memory

__all__ = ["as_operation", "is_dynamo_compiling", "is_traced", "taken_by"]

_TAKEN: dict[str, Callable[..., Any]] = {}


def taken_by(call: str, operation: Callable[..., Any]) -> None:
    """Let `operation` take the calls of that name."""
    _TAKEN[call] = operation


def as_operation(call: str) -> Callable[..., Any]:
    """What takes the calls of that name."""
    return _TAKEN[call]


def is_traced(tensors: Iterable[Any]) -> bool:
    """Whether a call on these tensors is to be an operation."""
    return dispatch_modes() > 0 or any(isinstance(one, torch.Tensor) and without_memory(one) for one in tensors)

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

__all__ = ["as_operation", "is_dynamo_compiling", "is_traced", "near_dynamo", "outside", "taken_by"]

_TAKEN: dict[str, Callable[..., Any]] = {}


def taken_by(call: str, operation: Callable[..., Any]) -> None:
    """Let `operation` take the calls of that name."""
    _TAKEN[call] = operation


def as_operation(call: str) -> Callable[..., Any]:
    """The operation that takes the calls of that name."""
    return _TAKEN[call]


def is_traced(tensors: Iterable[Any]) -> bool:
    """Whether a call on these tensors is to be an operation.

    Meta tensors beside others are a mistake, which the call itself names.
    """
    given = [one for one in tensors if isinstance(one, torch.Tensor)]
    if dispatch_modes() > 0:
        return True
    if not any(map(without_memory, given)):
        return False
    return all(one.is_meta for one in given) or any(without_memory(one) and not one.is_meta for one in given)


def near_dynamo() -> bool:
    """Whether dynamo reads this code, or would read what is called from here.

    It passes by a function whose arguments are no tensors, and reads those that it calls.
    """
    return is_dynamo_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def outside(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Run what is no operation, the making of a plan say, outside of the graph that dynamo is reading.

    Dynamo ends its graph here and goes on after it. What runs is the function as it was written: as dynamo compiles it
    `is_dynamo_compiling` would be true.
    """
    return torch._dynamo.disable(call)(*arguments, **keywords)


# What torch.compiler.disable sets, without its import of dynamo.
outside._torchdynamo_disable = True  # type: ignore[attr-defined]
outside._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "plans are made, and tensors transposed in place, outside of compiled code; groups are contracted there, "
    "and calls made whose factors are tensors"
)

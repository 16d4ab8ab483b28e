"""Calls that torch wants to see as operations: while it traces, on tensors without memory, within dispatch modes.

Such a call is not planned and launched: it becomes an operation that torch knows (`torch.ops.weft`), with rules of its
own for shapes and derivatives. The room of these operations lies above this one; it says here what takes a call.

`is_dynamo_compiling` is False but where dynamo reads the code. Dynamo takes it for a constant, so that the branch which
it guards is all that dynamo sees of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.compiler import is_dynamo_compiling

from weft import errors
from weft.base.arrays import dispatch_modes, without_memory

__all__ = ["as_operation", "is_dynamo_compiling", "is_traced", "near_dynamo", "outside", "outside_graphs", "taken_by"]

Call = TypeVar("Call", bound=Callable[..., Any])

errors.is_dynamo_compiling = is_dynamo_compiling

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


def outside_graphs(call: Call) -> Call:
    """A public call that is no operation: it is made outside of the graph that dynamo is reading."""

    @wraps(call)
    def made(*arguments: Any, **keywords: Any) -> Any:
        return outside(call, *arguments, **keywords) if near_dynamo() else call(*arguments, **keywords)

    return cast(Call, made)


# What torch.compiler.disable sets, without its import of dynamo.
outside._torchdynamo_disable = True  # type: ignore[attr-defined]
outside._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "weft: outside of compiled code plans are made, tensors are transposed in place, and networks, groups, plans of "
    "cascades, and calls with reduce=, ragged= or a tensor as a factor are computed"
)

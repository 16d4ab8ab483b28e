"""Backward passes of many gradients at once: `torch.autograd.grad` with `is_grads_batched`, and what is made of it.

There torch gives a backward pass tensors that stand for a batch of others and have no memory, of an older kind than
those of `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

#: Whether a tensor stands for a batch of others so; torch has no public name for it.
is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
_LEVEL = 1  # torch nests none in another


def each_of_batch(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The `backward` of a `torch.autograd.Function`, of gradients that stand for batches one after the other."""

    @wraps(backward)
    def called(ctx: Any, *grads: torch.Tensor | None) -> Any:
        for each in grads:
            if each is not None and is_batched(each):
                return one_by_one(backward, ctx, grads)
        return backward(ctx, *grads)

    return called


def one_by_one(
    backward: Callable[..., Any], ctx: Any, grads: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor | None, ...]:
    """A backward pass of gradients some of which stand for batches, one after the other."""
    size = next(_unbatched(each, 1).shape[0] for each in grads if each is not None and is_batched(each))
    lists = [[None] * size if each is None else _unbatched(each, size).unbind() for each in grads]
    found = [_as_tuple(backward(ctx, *one)) for one in zip(*lists, strict=True)]
    return tuple([_batched(each) for each in zip(*found, strict=True)])


def _unbatched(grad: torch.Tensor, size: int) -> torch.Tensor:
    """All that a gradient stands for, along a first dimension; one that stands for itself is repeated."""
    found: torch.Tensor = torch._remove_batch_dim(grad, _LEVEL, size, 0)
    return found


def _batched(found: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    """The gradients of one input as a tensor that stands for them; None where there are none."""
    made = [each for each in found if each is not None]
    if not made:
        return None
    whole = torch.stack([torch.zeros_like(made[0]) if each is None else each for each in found])
    return torch._add_batch_dim(whole, 0, _LEVEL)


def _as_tuple(found: Any) -> tuple[torch.Tensor | None, ...]:
    return found if isinstance(found, tuple) else (found,)

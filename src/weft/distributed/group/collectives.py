"""Collectives of torch.distributed on flat buffers, begun and not waited for.

What only travels goes as bytes, so that any type does. What is reduced on the way goes in its own type; complex sums go
as pairs of reals.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from weft.algebra import Algebra
from weft.base.arrays import as_bytes, flat
from weft.distributed.group.ranks import Ranks


def all_gather(ranks: Ranks, whole: torch.Tensor, part: torch.Tensor) -> Any:
    """`part` of every rank into `whole`, one after the other; both are contiguous."""
    return _named("all_gather_single", "all_gather_into_tensor")(
        as_bytes(whole), as_bytes(part), group=ranks.group, async_op=True
    )


def all_to_all(ranks: Ranks, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """Piece i of `sent` to rank i; pieces are equally long."""
    return dist.all_to_all_single(as_bytes(received), as_bytes(sent), group=ranks.group, async_op=True)


def reduce_scatter(ranks: Ranks, part: torch.Tensor, whole: torch.Tensor, op: Any) -> Any:
    """Piece i of `whole`, reduced over all ranks, to rank i."""
    return _named("reduce_scatter_single", "reduce_scatter_tensor")(
        _numbers(part), _numbers(whole), op=op, group=ranks.group, async_op=True
    )


def all_reduce(ranks: Ranks, whole: torch.Tensor, op: Any) -> Any:
    return dist.all_reduce(_numbers(whole), op=op, group=ranks.group, async_op=True)


def own_operation(algebra: Algebra | None, dtype: torch.dtype) -> Any | None:
    """The collectives' own operation for an algebra's reduction; None where they have none."""
    if algebra is None:
        return dist.ReduceOp.SUM
    if dtype.is_complex:
        return None
    ordered: dict[Any, Any] = {torch.maximum: dist.ReduceOp.MAX, torch.minimum: dist.ReduceOp.MIN}
    if dtype is torch.bool:  # travels as bytes of 0 and 1
        return ordered.get(algebra.reduce)
    known: dict[Any, Any] = {torch.add: dist.ReduceOp.SUM, torch.mul: dist.ReduceOp.PRODUCT}
    # Of floating types gloo and NCCL drop a NaN from a maximum (`<`, fmax); torch.maximum, and so weft, keeps it.
    return (known if dtype.is_floating_point else known | ordered).get(algebra.reduce)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return torch.view_as_real(flat(tensor)).view(-1)
    return as_bytes(tensor) if tensor.dtype is torch.bool else flat(tensor)


def _named(new: str, old: str) -> Callable[..., Any]:
    """A collective by the name that this torch has for it."""
    found = getattr(dist, new, None)
    if found is not None:
        return found

    def quiet(*args: Any, **keywords: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return getattr(dist, old)(*args, **keywords)

    return quiet

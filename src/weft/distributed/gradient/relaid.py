"""A tensor where it is needed, with derivatives: from one placement to another, and beside what others have parts of.

The gradient of a tensor that lies otherwise goes the same way back: whole tensors stand for one tensor that every rank
has. What a rank has beside its own part of a larger tensor takes part in elements that other ranks do not have: there
its gradients are summed over ranks, and the gradient of such a sum is beside each part again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.base.figures import counted
from weft.distributed.group.collectives import all_reduce, own_operation
from weft.distributed.group.lanes import wait_for
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.moves import Route


def relaid(tensor: torch.Tensor, route: Route, at: Sequence[int], lines: Sequence[Ranks]) -> torch.Tensor:
    """This rank's part under the route's target, from that under its source. Every rank calls it."""
    if route.source == route.target:
        return tensor
    found: torch.Tensor = _Relaid.apply(tensor, route, at, lines)
    return found


def beside_parts(tensor: torch.Tensor, lines: Sequence[Ranks]) -> torch.Tensor:
    """A tensor that the ranks of each of these lines have alike, beside parts that they do not."""
    found: torch.Tensor = _BesideParts.apply(tensor, lines) if lines else tensor
    return found


class _Relaid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, route: Route, at: Sequence[int], lines: Sequence[Ranks]) -> Any:
        ctx.way = replace(route, source=route.target, target=route.source), at, lines
        return route.run(tensor, at, lines, wait_for)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return relaid(grad, *ctx.way), None, None, None


class _BesideParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, lines: Sequence[Ranks]) -> Any:
        ctx.lines = lines
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Summed.apply(grad, ctx.lines), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, lines: Sequence[Ranks]) -> Any:
        ctx.lines = lines
        found = tensor.clone(memory_format=torch.contiguous_format)
        for line in lines:
            if found.numel():
                operation = own_operation(None, found.dtype)
                what = f"all-reduce of a gradient ({counted(line.size, 'rank')})"
                wait_for(all_reduce(line, found, operation), line, what)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return beside_parts(grad, ctx.lines), None

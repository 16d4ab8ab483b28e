"""Tensors moved to where they are needed, with derivatives: between placements, and alongside parts of others.

The gradient of a tensor that is placed otherwise goes the same way back: whole tensors stand for one tensor that every
rank has. What a rank has alongside its own part of a larger tensor takes part in elements that other ranks do not have:
there its gradients are summed over ranks, and the gradient of such a sum is alongside each part again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from weft.base.figures import counted
from weft.distributed.group.collectives import all_reduce, own_operation
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.moves import TensorRoute

Move = Callable[[torch.Tensor], torch.Tensor]


class RankLines(NamedTuple):
    """The lines of a mesh that a tensor goes along, and this rank's place in it.

    `comparing` are all ranks, where they compare that each of them is on the same way back; None where they do not.
    """

    lines: Sequence[Ranks]
    at: Sequence[int]
    comparing: Ranks | None

    def compare(self, what: str) -> None:
        if self.comparing is not None:
            self.comparing.exchanged(f"the backward pass of {what}", None)


def relaid(tensor: torch.Tensor, route: TensorRoute, among: RankLines) -> torch.Tensor:
    """This rank's part under the route's target, from that under its source. Every rank calls it."""
    if route.source == route.target:
        return tensor

    def back(grad: torch.Tensor) -> torch.Tensor:
        among.compare(f"{route.name} on its way from {route.source} to {route.target}")
        return relaid(grad, replace(route, source=route.target, target=route.source), among)

    found: torch.Tensor = _Linear.apply(tensor, lambda part: route.run(part, among.at, among.lines), back)
    return found


def alongside_parts(tensor: torch.Tensor, among: RankLines) -> torch.Tensor:
    """A tensor that the ranks of each of these lines have alike, alongside parts that they do not."""
    if not among.lines:
        return tensor

    def back(grad: torch.Tensor) -> Any:
        among.compare("a tensor beside parts")
        return _Linear.apply(grad, lambda part: _summed(part, among), lambda other: alongside_parts(other, among))

    found: torch.Tensor = _Linear.apply(tensor, lambda part: part.view_as(part), back)
    return found


def _summed(tensor: torch.Tensor, among: RankLines) -> torch.Tensor:
    found = tensor.clone(memory_format=torch.contiguous_format)
    for line in among.lines:
        if found.numel():
            operation = own_operation(None, found.dtype)
            line.wait(all_reduce(line, found, operation), f"all-reduce of a gradient ({counted(line.size, 'rank')})")
    return found


class _Linear(torch.autograd.Function):
    """A linear function of a tensor, and that of its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, function: Move, back: Move) -> Any:
        ctx.back = back
        return function(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.back(grad), None, None

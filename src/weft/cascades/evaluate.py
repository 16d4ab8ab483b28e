"""A graph run on tensors: of a block, or whole. Every tensor has all modes of S in order, extent 1 where it lacks one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.fn.backward_rules import IN_PLACE_OF
from weft.fn.reductions import is_reduction

Reducing = Callable[[fx.Node, Tensor], Tensor]


def evaluate(
    nodes: Sequence[fx.Node], values: dict[fx.Node, Tensor], rank: int, reducing: Reducing, device: torch.device,
    kept: frozenset[fx.Node],
) -> None:  # fmt: skip
    """Run `nodes`, which are in order, beside the `values` that are there, and put theirs there, too.

    A value that no later one reads is dropped, but for those of `kept`.
    """
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for source in node.all_input_nodes:
            last[source] = at
    for at, node in enumerate(nodes):
        values[node] = _run(node, values, rank, reducing, device)
        for source in node.all_input_nodes:
            if last[source] == at and source not in kept:
                values.pop(source, None)


def _run(node: fx.Node, values: Mapping[fx.Node, Tensor], rank: int, reducing: Reducing, device: torch.device) -> Any:
    if is_reduction(node):
        return reducing(node, values[node.args[0]])  # type: ignore[index]
    name = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
    if name in ("full_like", "scalar_tensor"):
        number = node.args[1] if name == "full_like" else node.args[0]
        shape = (1,) * rank if name == "full_like" else ()
        return torch.full(shape, number, dtype=node.meta["dtype"], device=device)  # type: ignore[arg-type]
    args = fx.map_arg(node.args, values.__getitem__)
    call: Any = IN_PLACE_OF.get(name, node.target)
    return call(*args, **fx.map_arg(node.kwargs, values.__getitem__))


def reduce_whole(kind: str, value: Tensor, dims: tuple[int, ...], count: int) -> Tensor:
    """A reduction over `dims` of a value that has them; `count` is the number of elements that a mean is over.

    Differentiable, with gradient 0 where every value is -inf.
    """
    if kind == "sum":
        if value.is_floating_point():
            return value.sum(dims, keepdim=True)
        return value.sum(dims, keepdim=True, dtype=torch.int64)
    if kind == "mean":
        return value.sum(dims, keepdim=True) / (count or math.nan)
    if kind in ("amax", "amin"):
        return extreme(kind, value, dims)
    if kind == "logsumexp":
        return log_sum(value, dims)[0]
    if kind == "softmax":
        return softmax(value, dims)
    return value.argmax(dims[0], keepdim=True) if kind == "argmax" else value.argmin(dims[0], keepdim=True)


def extreme(kind: str, value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest or smallest value; of no elements -inf or inf, the smallest or largest whole number."""
    if 0 in [value.shape[dim] for dim in dims]:
        shape = [1 if dim in dims else extent for dim, extent in enumerate(value.shape)]
        return value.new_full(shape, worst(kind, value.dtype))
    return value.amax(dims, keepdim=True) if kind == "amax" else value.amin(dims, keepdim=True)


def worst(kind: str, dtype: torch.dtype) -> float | int | bool:
    """The value that every other one is better than."""
    if dtype == torch.bool:
        return kind == "amin"
    if dtype.is_floating_point:
        return -math.inf if kind in ("amax", "argmax", "logsumexp") else math.inf
    return torch.iinfo(dtype).min if kind in ("amax", "argmax") else torch.iinfo(dtype).max


def log_sum(value: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of exponentials, and the exponentials over the largest."""
    peak = finite(extreme("amax", value.detach(), dims))
    weights = torch.exp(value - peak)
    return logarithm(weights.sum(dims, keepdim=True), peak), weights


def finite(peak: Tensor) -> Tensor:
    """A peak to subtract: 0 for one that is infinite, as in a row that has nothing."""
    return torch.where(peak.isinf(), 0.0, peak)


def logarithm(total: Tensor, peak: Tensor) -> Tensor:
    """``peak + log(total)``; -inf, without a gradient, where the total is 0."""
    nothing = total == 0
    return torch.where(nothing, -math.inf, torch.log(torch.where(nothing, 1.0, total)) + peak)


def softmax(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Exponentials over their sum; 0 where there is none."""
    if len(dims) == 1 and not value.is_cuda and value.shape[dims[0]] > 0:
        found = torch.softmax(value, dims[0])
        rows = found.detach().narrow(dims[0], 0, 1).isnan()
        if not bool(rows.any()):
            return found
        rows = rows & (value.detach().amax(dims[0], keepdim=True) == -math.inf)
        return torch.where(rows, 0.0, torch.softmax(torch.where(rows, 0.0, value), dims[0]))
    peak = finite(extreme("amax", value.detach(), dims))
    weights = torch.exp(value - peak)
    total = weights.sum(dims, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)

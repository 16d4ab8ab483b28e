"""`check_finite`: the first step that makes NaN or Inf of finite numbers, named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.base.figures import counted
from weft.errors import AccuracyError
from weft.networks.planned import Planned
from weft.networks.tree import TreeStep


def finite_watch(network: Planned) -> Any:
    """A watch that looks at every result, and waits for the device to do so."""

    def watch(step: TreeStep, values: Sequence[Any], where: Mapping[int, int]) -> None:
        bad = _not_finite(values[step.node])
        if not bad:
            return
        tree, graph = network.tree, network.tree.graph
        for child in (step.left, step.right):
            if child < tree.leaves and (wrong := _not_finite(values[child])):
                places = f"in {counted(wrong, 'place')}{_slice(network, where)}"
                raise AccuracyError(f"operand {child} holds NaN or Inf {places}")
        left, right, made = (graph.text(sorted(tree.nodes[node])) for node in (step.left, step.right, step.node))
        raise AccuracyError(
            f"step {step.node} ('{left}' of node {step.left}, '{right}' of node {step.right}, into '{made}') makes "
            f"NaN or Inf of finite values in {counted(bad, 'place')}{_slice(network, where)}"
        )

    return watch


def check_alone(operand: torch.Tensor, result: torch.Tensor) -> None:
    """A network of one operand has no steps: `AccuracyError` says what of the two is not finite."""
    if bad := _not_finite(result):
        if wrong := _not_finite(operand):
            raise AccuracyError(f"operand 0 holds NaN or Inf in {counted(wrong, 'place')}")
        raise AccuracyError(f"sums of the one operand make NaN or Inf of finite values in {counted(bad, 'place')}")


def _not_finite(tensor: torch.Tensor) -> int:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return 0
    return int((~torch.isfinite(tensor)).sum())


def _slice(network: Planned, where: Mapping[int, int]) -> str:
    if not where:
        return ""
    names = network.tree.graph.names
    length = dict(zip(network.tree.sliced, network.tree.stretches, strict=True))
    spans = {label: (index * length[label], (index + 1) * length[label] - 1) for label, index in where.items()}
    return " in slice " + ", ".join(
        f"{names[label]}={first}" + (f"..{last}" if last > first else "") for label, (first, last) in spans.items()
    )

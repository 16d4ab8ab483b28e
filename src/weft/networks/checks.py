"""Operands and results of a network's calls, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from weft.base.arrays import (
    as_results,
    as_tensor,
    is_scalar,
    is_transforming,
    like,
    number_tensor,
    source_of,
    without_neg,
    written,
)
from weft.base.dispatch import is_traced
from weft.base.figures import counted, given
from weft.base.memory import new_tensor
from weft.errors import AccuracyError, ArgumentError, DTypeError, ShapeError, UnsupportedError
from weft.networks.graph import Graph
from weft.networks.plan import NetworkPlan
from weft.networks.tree import TreeStep
from weft.spec.dtypes import dtype_name
from weft.spec.memory import overlaps_itself, share_memory

Watch = Callable[[TreeStep, Sequence[Any], Mapping[int, int]], None]


def read_tensors(plan: NetworkPlan, tensors: Sequence[Any]) -> list[torch.Tensor]:
    """The operands of a call, checked."""
    promote, device = plan.settings.options.promote, plan.settings.device
    wanted, leaves = plan.folded.given, plan.leaves
    if len(tensors) != len(wanted):
        fixed = len(plan.graph.operands) - len(wanted)
        constant = f" besides {counted(fixed, 'constant')}" if fixed else ""
        raise ShapeError(f"the network takes {counted(len(wanted), 'operand')}{constant}, {given(len(tensors))}")
    read = []
    for at, one in zip(wanted, tensors, strict=True):
        what = f"operand {at}"
        number = number_tensor(what, one, leaves[at], promote).to(device) if is_scalar(one) else one
        read.append(without_neg(as_tensor(what, number, promote)))
    placed = dict(zip(wanted, read, strict=True))
    check_same(plan, placed)
    check_signs(plan.graph, placed)
    return read


def result_place(plan: NetworkPlan, out: Any = None, read: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """The place of the result: `out`, checked, or memory that is not filled."""
    shape, dtype, device = plan.graph.shape, plan.dtype, plan.settings.device
    if out is None:
        return new_tensor(shape, dtype, device)
    place = as_results(out)
    if not isinstance(place, torch.Tensor):
        raise ArgumentError("a network has one result: out is one tensor")
    if tuple(place.shape) != shape or place.dtype != dtype or place.device != device:
        raise ShapeError(
            f"out has shape {tuple(place.shape)}, type {place.dtype} on {place.device}; the result has "
            f"{shape}, {dtype} on {device}"
        )
    if overlaps_itself(place):
        raise ShapeError("out overlaps itself in memory: two elements of the result would share a place")
    for at, tensor in zip(plan.folded.given, read, strict=True):
        if share_memory(place, tensor):
            raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")
    return place


def result_of(tensors: Sequence[Any], out: Any, place: torch.Tensor) -> Any:
    """The result of a call whose kernels have written to a place: `out`, or the place as an array of theirs."""
    written((place,))
    return out if out is not None else like(kind_of(tensors), place)


def kind_of(tensors: Sequence[Any]) -> Any:
    """The operand that says what kind of array a result is; torch's where all are constants or numbers."""
    found = source_of(*tensors) if tensors else None
    return torch.empty(0, device="cpu") if found is None or is_scalar(found) else found


def read_changed(plan: NetworkPlan, changed: Any) -> list[int] | None:
    """Operands of a call among those of the folded tree."""
    if changed is None:
        return None
    places = plan.folded.given
    if not isinstance(changed, Collection):
        raise ArgumentError(f"changed is a collection of places of operands, not {changed!r}")
    if wrong := [at for at in changed if at not in places]:
        raise ArgumentError(f"changed names operand {wrong[0]}, the network takes {', '.join(map(str, places))}")
    return [places.index(at) for at in changed]


def check_same(plan: NetworkPlan, tensors: Mapping[int, torch.Tensor]) -> None:
    """Operands by their places among all have the shapes and types that the network was made for."""
    device = plan.settings.device
    for at, tensor in tensors.items():
        shape, dtype = plan.graph.operands[at].shape, plan.leaves[at]
        if tuple(tensor.shape) != shape:
            raise ShapeError(f"operand {at} has shape {tuple(tensor.shape)}, the network was made for {shape}")
        if tensor.dtype != dtype:
            raise DTypeError(
                f"operand {at} is {dtype_name(tensor.dtype)}, the network was made for {dtype_name(dtype)}"
            )
        if tensor.device != device:
            raise ShapeError(f"operand {at} is on {tensor.device}, the network was made for {device}")


def check_signs(graph: Graph, tensors: Mapping[int, torch.Tensor]) -> None:
    """`UnsupportedError` where the algebra may be reduced early of values that are not negative alone, and one of these
    operands has one."""
    if not graph.early.unsigned or is_traced(tensors.values()) or is_transforming():
        return
    for at, tensor in tensors.items():
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if not tensor.is_complex() and tensor.dtype is not torch.bool and bool((tensor < 0).any()):
            raise UnsupportedError(
                f"operand {at} has negative values, and with them operands cannot be contracted two at a time: "
                f"{graph.early.broken}"
            )


def watch_of(plan: NetworkPlan) -> Watch | None:
    """With `check_finite` a watch that looks at every result, and waits for the device to do so."""
    if not plan.settings.check_finite:
        return None

    def watch(step: TreeStep, values: Sequence[Any], where: Mapping[int, int]) -> None:
        bad = _not_finite(values[step.node])
        if not bad:
            return
        tree, graph = plan.tree, plan.tree.graph
        for child in (step.left, step.right):
            if child < tree.leaves and (wrong := _not_finite(values[child])):
                places = f"in {counted(wrong, 'place')}{_slice(plan, where)}"
                raise AccuracyError(f"operand {child} holds NaN or Inf {places}")
        left, right, made = (graph.text(sorted(tree.nodes[node])) for node in (step.left, step.right, step.node))
        raise AccuracyError(
            f"step {step.node} ('{left}' of node {step.left}, '{right}' of node {step.right}, into '{made}') makes "
            f"NaN or Inf of finite values in {counted(bad, 'place')}{_slice(plan, where)}"
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


def _slice(plan: NetworkPlan, where: Mapping[int, int]) -> str:
    if not where:
        return ""
    names = plan.tree.graph.names
    length = dict(zip(plan.tree.sliced, plan.tree.stretches, strict=True))
    spans = {label: (index * length[label], (index + 1) * length[label] - 1) for label, index in where.items()}
    return " in slice " + ", ".join(
        f"{names[label]}={first}" + (f"..{last}" if last > first else "") for label, (first, last) in spans.items()
    )

"""The arguments of a network's call, read and checked: its operands, the place of its result, and what has changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from weft.base.arrays import as_results, as_tensor, is_scalar, number_tensor, without_neg
from weft.base.figures import counted, given
from weft.errors import ArgumentError, ShapeError
from weft.networks.planned import Planned
from weft.networks.settings import check_same, check_signs
from weft.spec.memory import overlaps_itself, share_memory


def read_tensors(network: Planned, tensors: Sequence[Any]) -> list[torch.Tensor]:
    """The operands of a call, checked."""
    promote, device = network.settings.options.promote, network.settings.device
    wanted, leaves = network.folded.given, network.leaves
    if len(tensors) != len(wanted):
        fixed = len(network.graph.operands) - len(wanted)
        constant = f" besides {counted(fixed, 'constant')}" if fixed else ""
        raise ShapeError(f"the network takes {counted(len(wanted), 'operand')}{constant}, {given(len(tensors))}")
    read = []
    for at, one in zip(wanted, tensors, strict=True):
        what = f"operand {at}"
        number = number_tensor(what, one, leaves[at], promote).to(device) if is_scalar(one) else one
        read.append(without_neg(as_tensor(what, number, promote)))
    check_same(read, network.graph, leaves, wanted, device)
    check_signs(network.graph, dict(zip(wanted, read, strict=True)))
    return read


def read_out(network: Planned, out: Any, read: Sequence[torch.Tensor]) -> torch.Tensor:
    """The place of the result that a call gives."""
    shape, dtype, device = network.graph.shape, network.dtype, network.settings.device
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
    for at, tensor in zip(network.folded.given, read, strict=True):
        if share_memory(place, tensor):
            raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")
    return place


def read_changed(network: Planned, changed: Any) -> list[int] | None:
    """Operands of a call among those of the folded tree."""
    if changed is None:
        return None
    places = network.folded.given
    if not isinstance(changed, Collection):
        raise ArgumentError(f"changed is a collection of places of operands, not {changed!r}")
    if wrong := [at for at in changed if at not in places]:
        raise ArgumentError(f"changed names operand {wrong[0]}, the network takes {', '.join(map(str, places))}")
    return [places.index(at) for at in changed]

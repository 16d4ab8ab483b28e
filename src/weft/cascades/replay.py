"""A call of a cascade that is made again, with other tensors of the same layouts: it only launches."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.base.arrays import is_transforming

_ALIGNED = 256  # bytes


class Launched(NamedTuple):
    """A kernel that was launched: what Triton has compiled, its grid and its arguments.

    An argument that is a `Slot` is another tensor in each call.
    """

    compiled: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


class Slot(NamedTuple):
    """A tensor of a call, by its number among operands and new memory; by a tensor map where there is one."""

    at: int
    tensor_map: Any = None


class Room(NamedTuple):
    """Memory that is new in each call."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Replay:
    """Launches in order, of tensors and of new memory behind them; D is the memory `result`, permuted."""

    def __init__(
        self, launched: Sequence[Launched], rooms: Sequence[Room], device: torch.device, result: int,
        shape: Sequence[int], order: Sequence[int],
    ) -> None:  # fmt: skip
        self._device, self._result = device, result
        self._d = rooms[result]
        self._places: list[int] = []  # of the other memory, in bytes from where all of it begins
        self._bytes = 0
        for at, room in enumerate(rooms):
            self._places.append(self._bytes)
            if at != result:
                self._bytes += -(-math.prod(room.shape) * room.dtype.itemsize // _ALIGNED) * _ALIGNED
        self._shape = tuple(shape)
        self._order = None if list(order) == sorted(order) else tuple(order)
        self._steps = []
        for each in launched:
            grid = (*each.grid, 1, 1)[:3]
            slots = [(at, slot.at, slot.tensor_map) for at, slot in enumerate(each.arguments) if isinstance(slot, Slot)]
            self._steps.append((each.compiled[grid], list(each.arguments), slots))

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """D of operands in the order of the plan's."""
        d = torch.empty(self._d.shape, dtype=self._d.dtype, device=self._device)
        room = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        start = room.data_ptr()
        given: list[Any] = [*tensors, *(start + place for place in self._places)]
        given[len(tensors) + self._result] = d
        for run, arguments, slots in self._steps:
            arguments = arguments.copy()
            for at, place, tensor_map in slots:
                arguments[at] = given[place] if tensor_map is None else _moved(tensor_map, given[place])
            run(*arguments)
        d = d.view(self._shape)
        return d if self._order is None else d.permute(self._order)


def _moved(tensor_map: Any, tensor: Tensor) -> Any:
    """A tensor map of another tensor."""
    found = copy.copy(tensor_map)
    found.base = tensor
    return found


def layouts_of(tensors: Sequence[Any], operands: Mapping[str, Any] | None, names: Sequence[str]) -> Hashable | None:
    """All of a call that launches follow from; None for one that is not made again: it has gradients, say."""
    if is_transforming() or (operands or {}).keys() != set(names):
        return None
    grads, found = torch.is_grad_enabled(), []
    for each in (*tensors, *(operands or {}).values()):
        if type(each) is not Tensor or (grads and each.requires_grad) or each.is_neg() or not each.is_cuda:
            return None
        found.append((each.shape, each.stride(), each.dtype, each.get_device(), each.data_ptr() % 16))
    return (torch._C._cuda_getDevice(), *found)


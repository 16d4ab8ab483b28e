"""A call of a cascade that is made again, with other tensors of the same layouts: it only launches."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.base.kept import keep_if_captured
from weft.cascades.arguments import Call
from weft.gpu.common.cubin import Cubin, parameter_sizes
from weft.gpu.common.driver import DirectLaunch, launches_are_hooked
from weft.spec import Layout

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
    """Launches in order, of tensors and of new memory behind them; some of that, by number, are the results.

    `zeroed`: the other memory begins as zeros.
    """

    def __init__(
        self, launched: Sequence[Launched], rooms: Sequence[Room], device: torch.device, results: Sequence[int],
        zeroed: bool = False,
    ) -> None:  # fmt: skip
        self._device, self._new = device, torch.zeros if zeroed else torch.empty
        self._results = [(at, rooms[at]) for at in results]
        self._places: list[int] = []  # of the other memory, in bytes from where all of it begins
        self._bytes = 0
        for at, room in enumerate(rooms):
            self._places.append(self._bytes)
            if at not in results:
                self._bytes += -(-math.prod(room.shape) * room.dtype.itemsize // _ALIGNED) * _ALIGNED
        self._steps = [_Step(each, device) for each in launched]
        self._fixed = [each for step in launched for each in step.arguments if isinstance(each, Tensor)]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for tensors in the order that slots number them in."""
        device = self._device
        keep_if_captured(device, *self._fixed)
        found = [torch.empty(room.shape, dtype=room.dtype, device=device) for _, room in self._results]
        room = self._new(self._bytes, dtype=torch.uint8, device=device)
        start = room.data_ptr()
        given: list[Any] = [*tensors, *(start + place for place in self._places)]
        for (at, _), each in zip(self._results, found, strict=True):
            given[len(tensors) + at] = each
        addresses = [each if isinstance(each, int) else each.data_ptr() for each in given]
        hooked = launches_are_hooked()
        for step in self._steps:
            if hooked or not step.past_triton(addresses):
                step.by_triton(given)
        return found


class _Step:
    """A launch with other tensors, past Triton's launcher where that can be."""

    def __init__(self, launched: Launched, device: torch.device) -> None:
        self._arguments = list(launched.arguments)
        self._slots = [(at, each) for at, each in enumerate(self._arguments) if isinstance(each, Slot)]
        self._run = launched.compiled[(*launched.grid, 1, 1)[:3]]
        self._direct: DirectLaunch | None = None
        self._words: list[int] = []
        self._changing: list[tuple[int, int]] = []
        if device.type == "cuda" and math.prod(launched.grid) == launched.grid[0]:
            self._pass(launched.compiled, launched.grid[0], torch.cuda.current_device())

    def _pass(self, compiled: Any, programs: int, device: int) -> None:
        """Find how CUDA's driver launches the kernel: with a word for each parameter, addresses of tensors those."""
        kinds, metadata = list(compiled.src.signature.values()), compiled.metadata
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        cubin, passed = Cubin.of(compiled), [at for at, kind in enumerate(kinds) if kind != "constexpr"]
        sizes = parameter_sizes({str(at): "i32" if kinds[at] == "fp32" else kinds[at] for at in passed}, cubin.maps)
        if len(kinds) != len(self._arguments) or metadata.num_ctas > 1 or scratch or sizes is None:
            return
        maps = [each.tensor_map for _, each in self._slots if each.tensor_map is not None]
        layouts = [Layout(tuple(each.shape), tuple(each.strides), each.base.dtype) for each in maps]
        cubin = replace(cubin, sizes=tuple(sizes))
        self._direct = DirectLaunch.of(cubin, compiled.function, programs, device, (), layouts)
        self._words = [_word(self._arguments[at]) for at in passed]
        self._changing = [(passed.index(at), each.at) for at, each in self._slots if at in passed]

    def past_triton(self, addresses: Sequence[int]) -> bool:
        """Launch by CUDA's driver; false where it does not."""
        if self._direct is None:
            return False
        words = self._words.copy()
        for at, place in self._changing:
            words[at] = addresses[place]
        self._direct(words)
        return True

    def by_triton(self, given: Sequence[Any]) -> None:
        """Launch by Triton."""
        arguments = self._arguments.copy()
        for at, each in self._slots:
            arguments[at] = given[each.at] if each.tensor_map is None else _moved(each.tensor_map, given[each.at])
        self._run(*arguments)


def _word(value: Any) -> int:
    """A parameter as an integer: the address of a tensor, the bits of a float32 number."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    return value if isinstance(value, int) else 0


def slotted(
    calls: Sequence[tuple[Any, Call]], tensors: Sequence[Tensor], results: Sequence[Tensor], room: Sequence[Tensor]
) -> Replay:
    """Calls again, with other tensors, of what was launched: each as Triton has compiled it, and as it was called.

    `room` is the memory besides the results; it begins as zeros. What is none of these is the same in each call.
    """
    slots = {id(each): at for at, each in enumerate((*tensors, *results, *room))}

    def slot(value: Any) -> Any:
        if isinstance(value, Tensor):
            return Slot(slots[id(value)]) if id(value) in slots else value
        return Slot(slots[id(value.base)], value) if hasattr(value, "base") else value

    launched = [
        Launched(compiled, call.grid, (*map(slot, call.given), *in_order(call.kernel, call.named)))
        for compiled, call in calls
    ]
    rooms = [Room(tuple(each.shape), each.dtype) for each in (*results, *room)]
    return Replay(launched, rooms, tensors[0].device, range(len(results)), zeroed=True)


def in_order(kernel: Any, constants: Mapping[str, Any]) -> list[Any]:
    """Constants in the order of a kernel's parameters."""
    return [constants[name] for name in kernel.arg_names if name in constants]


def _moved(tensor_map: Any, tensor: Tensor) -> Any:
    """A tensor map of another tensor."""
    found = copy.copy(tensor_map)
    found.base = tensor
    return found

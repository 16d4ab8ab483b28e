"""A call of a cascade that is made again, with other tensors of the same layouts: it only launches."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.base.kept import keep_if_captured
from weft.cascades.arguments import Call
from weft.gpu.common.cubin import Cubin, parameter_sizes
from weft.gpu.common.driver import DirectLaunch, launches_are_hooked
from weft.spec import Layout

_ALIGNED = 256  # bytes


class Replay:
    """Calls again, with other tensors, of what is launched here: each as Triton has compiled it, and as it was called.

    `results` are new in each call, and `room` is memory besides, which begins as zeros where it is `zeroed`. What is
    neither of these nor among `tensors` is the same in each call.
    """

    def __init__(
        self, calls: Sequence[Call], tensors: Sequence[Tensor], results: Sequence[Tensor], room: Sequence[Tensor],
        zeroed: bool = False,
    ) -> None:  # fmt: skip
        self._device, self._new = tensors[0].device, torch.zeros if zeroed else torch.empty
        self._results = [(each.shape, each.dtype) for each in results]
        self._places: list[int] = []  # of the room, in bytes from where it begins
        self._bytes = 0
        for each in room:
            self._places.append(self._bytes)
            self._bytes += -(-each.nbytes // _ALIGNED) * _ALIGNED
        slots = {id(each): at for at, each in enumerate((*tensors, *results, *room))}
        self._steps = [_Step(call, slots, self._device) for call in calls]
        self._fixed = [each for step in self._steps for each in step.arguments if isinstance(each, Tensor)]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for other tensors."""
        device = self._device
        keep_if_captured(device, *self._fixed)
        found = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._results]
        room = self._new(self._bytes, dtype=torch.uint8, device=device)
        start = room.data_ptr()
        given: list[Any] = [*tensors, *found, *(start + place for place in self._places)]
        addresses = [each if isinstance(each, int) else each.data_ptr() for each in given]
        hooked = launches_are_hooked()
        for step in self._steps:
            if hooked or not step.past_triton(addresses):
                step.by_triton(given)
        return found


class _Step:
    """A launch with other tensors, past Triton's launcher where that can be."""

    def __init__(self, call: Call, slots: Mapping[int, int], device: torch.device) -> None:
        compiled, names = call(), call.kernel.arg_names
        self.arguments = [*call.given, *(call.named[name] for name in names if name in call.named)]
        of = [id(getattr(each, "base", each)) for each in self.arguments]  # a tensor map is of a tensor
        self._slots = [(at, slots[each]) for at, each in enumerate(of) if each in slots]
        self._run = compiled[(*call.grid, 1, 1)[:3]]
        self._direct: DirectLaunch | None = None
        self._words: list[int] = []
        self._changing: list[tuple[int, int]] = []
        if device.type == "cuda" and math.prod(call.grid) == call.grid[0]:
            self._pass(compiled, call.grid[0], torch.cuda.current_device())
        for at, _ in self._slots:  # none of this call's tensors is kept
            self.arguments[at] = _moved(self.arguments[at], None)

    def _pass(self, compiled: Any, programs: int, device: int) -> None:
        """Find how CUDA's driver launches the kernel: with a word for each parameter, addresses of tensors those."""
        kinds, metadata = list(compiled.src.signature.values()), compiled.metadata
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        cubin, passed = Cubin.of(compiled), [at for at, kind in enumerate(kinds) if kind != "constexpr"]
        sizes = parameter_sizes({str(at): "i32" if kinds[at] == "fp32" else kinds[at] for at in passed}, cubin.maps)
        if len(kinds) != len(self.arguments) or metadata.num_ctas > 1 or scratch or sizes is None:
            return
        maps = [self.arguments[at] for at, _ in self._slots if hasattr(self.arguments[at], "base")]
        layouts = [Layout(tuple(each.shape), tuple(each.strides), each.base.dtype) for each in maps]
        cubin = replace(cubin, sizes=tuple(sizes))
        self._direct = DirectLaunch.of(cubin, compiled.function, programs, device, (), layouts)
        self._words = [_word(self.arguments[at]) for at in passed]
        self._changing = [(passed.index(at), place) for at, place in self._slots if at in passed]

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
        arguments = self.arguments.copy()
        for at, place in self._slots:
            arguments[at] = _moved(arguments[at], given[place])
        self._run(*arguments)


def _word(value: Any) -> int:
    """A parameter as an integer: the address of a tensor, the bits of a float32 number."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    return value if isinstance(value, int) else 0


def _moved(argument: Any, tensor: Any) -> Any:
    """Another tensor in the place of one, or the tensor map of it."""
    if not hasattr(argument, "base"):
        return tensor
    found = copy.copy(argument)
    found.base = tensor
    return found

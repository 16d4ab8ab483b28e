"""Launches of kernels as the addresses that the kernels take: those of a call's tensors, and of one workspace.

What a launch does between its kernels, views and workspaces and factors, is the same in every call without C and alpha.
It is noted in one call; later ones add offsets to addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.base.arrays import dispatch_modes
from weft.base.kept import is_capturing
from weft.gpu.common.driver import DirectLaunch, launches_are_hooked
from weft.gpu.common.launch import noting
from weft.planner.schedule import AuxTensors, Launch, Scalar

_ALIGNED = 256  # bytes, as torch's allocator has it
_ATEN = torch.ops.aten
_ALLOCATE = (_ATEN.empty.memory_format, _ATEN.empty_strided.default, _ATEN.new_empty.default)


class AddressedLaunch:
    """A launch of kernels alone, whose second plain call is noted; it is called as the launch is."""

    def __init__(self, launch: Any) -> None:
        self._launch: Launch = launch
        self.kernels = launch.kernels
        self._plain_calls = 0
        self._sequence: _Sequence | None = None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        sequence = self._sequence
        if c is not None or alpha != 1:
            self._launch(a, b, c, d, alpha, beta, aux)
        elif sequence is not None and sequence.device == torch._C._cuda_getDevice() and not launches_are_hooked():
            sequence((a, b, d, *aux) if aux else (a, b, d))
        else:
            self._plain_calls += 1
            if self._plain_calls == 2 and not dispatch_modes() and not is_capturing(d.device):
                self._sequence = _noted(self._launch, a, b, d, beta, aux)
            else:
                self._launch(a, b, None, d, alpha, beta, aux)


def addressed(launch: Any) -> Any:
    """The launch, to be noted where Triton launches none of its kernels, and it is more than one as it is."""
    kernels = launch.kernels
    several = len(kernels) > 1 or not hasattr(launch, "bound")
    known = bool(kernels) and all(getattr(each, "is_direct", False) for each in kernels)
    return AddressedLaunch(launch) if several and known else launch


class _Word(NamedTuple):
    """A parameter of a kernel: an offset to the address of a tensor, or a number where that is 0."""

    place: int
    offset: int


class _Sequence:
    """Kernels one after the other. Places of addresses: 0, the tensors of a call, the workspace."""

    def __init__(self, steps: Sequence[tuple[DirectLaunch, Sequence[_Word]]], size: int, device: torch.device) -> None:
        self._steps = [(direct, [tuple(word) for word in words]) for direct, words in steps]
        self._size, self._device, self.device = (size,), device, steps[0][0].device

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        addresses = [0]
        addresses += [x.data_ptr() for x in tensors if x is not None]
        if self._size[0]:
            workspace = torch.empty_strided(self._size, (1,), dtype=torch.uint8, device=self._device)
            addresses.append(workspace.data_ptr())
        for direct, words in self._steps:
            direct([addresses[place] + offset for place, offset in words])


def _noted(launch: Launch, a: Tensor, b: Tensor, d: Tensor, beta: Scalar, aux: AuxTensors) -> _Sequence | None:
    """Run a launch and note its kernels; None where it does something else besides, or addresses do not tell tensors
    apart."""
    tensors = [x for x in (a, b, d, *aux) if x is not None]
    with _Allocations() as made, noting() as noted:
        launch(a, b, None, d, 1, beta, aux)
    ranges, start = [_Range.of(x, at) for at, x in enumerate(tensors, 1)], 0
    for each in made.found:
        ranges.append(_Range.of(each, len(tensors) + 1, start))
        start += -(-each.numel() * each.element_size() // _ALIGNED) * _ALIGNED
    ranges.sort()
    apart = all(one.end <= other.first for one, other in pairwise(ranges))
    steps = [each for each in noted if each is not None]
    on_one = len({direct.device for direct, _ in steps}) == 1
    if not (made.alone and apart and on_one and len(steps) == len(noted)):
        return None
    return _Sequence([(direct, [_word(word, ranges) for word in words]) for direct, words in steps], start, d.device)


class _Range(NamedTuple):
    """The addresses of a tensor's elements."""

    first: int
    end: int
    place: int
    base: int  # what an offset is added to

    @classmethod
    def of(cls, tensor: Tensor, place: int, start: int = 0) -> _Range:
        """`start`: where it begins in the memory of a place."""
        last = sum([stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)])
        first = tensor.data_ptr()
        return cls(first, first + (last + 1) * tensor.element_size(), place, first - start)


def _word(word: int, ranges: Sequence[_Range]) -> _Word:
    for each in ranges:
        if each.first <= word < each.end:
            return _Word(each.place, word - each.base)
    return _Word(0, word)


class _Allocations(TorchDispatchMode):
    """Tensors that are allocated within; `alone`: torch computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self.alone = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATE:
            self.found.append(result)
        elif not func.is_view:
            self.alone = False
        return result

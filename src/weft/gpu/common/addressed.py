"""Launches of kernels as the addresses that the kernels take: those of a call's tensors, and of one workspace.

What a launch does between its kernels, views and workspaces and factors, is the same in every call without C and alpha.
It is noted in one call; later ones add offsets to addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.base.arrays import dispatch_modes
from weft.base.kept import is_capturing
from weft.gpu.common.driver import (
    DirectLaunch,
    Noted,
    NotedKernel,
    NotedProduct,
    launches_are_hooked,
    noting,
)
from weft.planner.schedule import AuxTensors, Launch, Scalar

_ALIGNED = 256  # bytes, as torch's allocator has it
_ATEN = torch.ops.aten
_ALLOCATE = (_ATEN.empty.memory_format, _ATEN.empty_strided.default, _ATEN.new_empty.default)
_PRODUCTS = tuple(
    getattr(packet, name) for packet in (_ATEN.mm, _ATEN.bmm) for name in ("out", "dtype_out") if hasattr(packet, name)
)


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


class _AddressedKernel(NamedTuple):
    """A kernel, and for each of its parameters the place of an address and what is added to that."""

    direct: DirectLaunch
    words: Sequence[tuple[int, int]]

    def __call__(self, addresses: Sequence[int], tensors: Sequence[Tensor]) -> None:
        self.direct([addresses[place] + offset for place, offset in self.words])


class _Product(NamedTuple):
    """A product of the vendor's library, and how it sees its factors and its result among the tensors."""

    multiply: Callable[..., Any]
    seen: Sequence[tuple[int, Callable[[Tensor], Tensor] | None]]

    def __call__(self, addresses: Sequence[int], tensors: Sequence[Tensor]) -> None:
        left, right, result = [tensors[at] if see is None else see(tensors[at]) for at, see in self.seen]
        self.multiply(left, right, out=result)


class _Sequence:
    """Steps one after the other, on the tensors of a call and the workspace behind them.

    Place 0 of the addresses is 0, for parameters that are numbers; others are one more than the tensors' places.
    """

    def __init__(
        self, steps: Sequence[_AddressedKernel | _Product], workspace: tuple[int, torch.dtype], device: torch.device
    ) -> None:
        self._steps, self._device = steps, device
        self._size, self._dtype = workspace[:1], workspace[1]
        self.device = next(step.direct.device for step in steps if isinstance(step, _AddressedKernel))

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        given = [x for x in tensors if x is not None]
        if self._size[0]:
            given.append(torch.empty_strided(self._size, (1,), dtype=self._dtype, device=self._device))
        addresses = [0, *[x.data_ptr() for x in given]]
        for step in self._steps:
            step(addresses, given)


class _Unknown(Exception):
    """A launch does something that is not noted."""


def _noted(launch: Launch, a: Tensor, b: Tensor, d: Tensor, beta: Scalar, aux: AuxTensors) -> _Sequence | None:
    """Run a launch and note what it launches; None where it does something else besides, or addresses do not tell
    tensors apart."""
    tensors = [x for x in (a, b, d, *aux) if x is not None]
    with _Allocations() as made, noting() as noted:
        launch(a, b, None, d, 1, beta, aux)
    if not made.alone or made.products != sum(isinstance(each, NotedProduct) for each in noted):
        return None
    try:
        return _sequence(tensors, made.found, noted)
    except _Unknown:
        return None


def _sequence(tensors: Sequence[Tensor], made: Sequence[Tensor], noted: Sequence[Noted]) -> _Sequence:
    ranges, start = [_Range.of(x, at) for at, x in enumerate(tensors)], 0
    for each in made:
        ranges.append(_Range.of(each, len(tensors), start))
        start += -(-each.numel() * each.element_size() // _ALIGNED) * _ALIGNED
    ranges.sort()
    if any(one.end > other.first for one, other in pairwise(ranges)):
        raise _Unknown
    dtypes, steps = {torch.uint8}, list[_AddressedKernel | _Product]()
    for step in noted:
        if isinstance(step, NotedKernel):
            steps.append(_AddressedKernel(step.direct, [_word(word, ranges) for word in step.words]))
        elif step is not None:
            places = [_word(x.data_ptr(), ranges) for x in step.tensors]
            every = list(zip(step.tensors, places, strict=True))
            dtypes |= {x.dtype for x, (place, _) in every if place > len(tensors)}
            seen = [_seeing(x, place - 1, offset, tensors) for x, (place, offset) in every]
            steps.append(_Product(step.multiply, seen))
        else:
            raise _Unknown
    if len(dtypes) > 2 or not any(isinstance(step, _AddressedKernel) for step in steps):
        raise _Unknown
    dtype = max(dtypes, key=lambda each: each.itemsize)
    return _Sequence(steps, (start // dtype.itemsize, dtype), tensors[0].device)


def _seeing(
    x: Tensor, at: int, offset: int, tensors: Sequence[Tensor]
) -> tuple[int, Callable[[Tensor], Tensor] | None]:
    """The place of what a product took, and how it is seen there."""
    if at == len(tensors):
        return at, methodcaller("as_strided", x.shape, x.stride(), offset // x.element_size())
    given = tensors[at] if at >= 0 else None
    if given is None or offset or x.is_conj() != given.is_conj():
        raise _Unknown
    if given.is_complex() and x.dtype == given.dtype.to_real():
        shape, strides = x.shape, x.stride()
        return at, lambda tensor: torch.view_as_real(tensor).as_strided(shape, strides)
    if x.dtype != given.dtype:
        raise _Unknown
    alike = x.shape == given.shape and x.stride() == given.stride()
    return at, None if alike else methodcaller("as_strided", x.shape, x.stride())


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


def _word(word: int, ranges: Sequence[_Range]) -> tuple[int, int]:
    for each in ranges:
        if each.first <= word < each.end:
            return each.place + 1, word - each.base
    return 0, word


class _Allocations(TorchDispatchMode):
    """Tensors that are allocated within; `alone`: torch computes nothing but products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self.alone, self.products = True, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATE:
            self.found.append(result)
        elif func in _PRODUCTS:
            self.products += 1
        elif not func.is_view:
            self.alone = False
        return result

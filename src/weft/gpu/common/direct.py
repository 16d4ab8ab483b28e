"""Launches past Triton's own launcher: of one kernel, and of a noted sequence of kernels.

A kernel takes addresses: those of a call's tensors, and of one workspace. What a launch of several does between its
kernels, views and workspaces and factors, is the same in every call without C and alpha. It is noted in one call; later
ones add offsets to addresses.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, pairwise
from operator import methodcaller
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.base.arrays import dispatch_modes
from weft.base.kept import is_capturing
from weft.gpu.common.cubins import Cubin
from weft.gpu.common.driver import BYTES, EncodedMap, bind_context, error_name, loaded_driver
from weft.gpu.common.release import launches_are_hooked
from weft.planner.schedule import AuxTensors, Launch, Launched, Scalar
from weft.spec import Layout

SCRATCH = 2  # pointers that Triton adds to a kernel's parameters: memory that none of weft's kernels asks for
_FOLLOWS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, see `device`
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60),
    ]  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


class DirectLaunch:
    """A loaded kernel on a grid; call it with an integer for each parameter, but for the last that are fixed.

    A tensor map is one parameter, the address of its tensor; `maps` are the layouts of those tensors.
    """

    def __init__(
        self, driver: Any, function: int, cubin: Cubin, programs: int, device: int, fixed: Sequence[int] = (),
        maps: Sequence[Layout] = (),
    ) -> None:  # fmt: skip
        self._driver, self.device, self._layouts = driver, device, maps
        self.cubin, self.programs = cubin, programs
        self.function = function  # the kernel as it is loaded: a `CUfunction`
        self._function = ctypes.c_void_p(function)
        words = _Words(cubin, fixed, [EncodedMap(driver, *each) for each in zip(cubin.maps, maps, strict=True)])
        self._words, self._kept, self._maps = words.changing, words.kept, words.maps
        self._pack = struct.Struct(f"={len(self._words)}q").pack_into  # a smaller number is the first bytes of its word
        self._params = (ctypes.c_void_p * len(words.places))(*words.places)
        self._attribute = _Attribute(_FOLLOWS, b"", 1, b"")
        self._config = _Config(
            programs, 1, 1, cubin.threads, 1, 1, cubin.shared, None, ctypes.pointer(self._attribute), int(cubin.pdl)
        )
        self._by_reference = ctypes.byref(self._config)
        self._lock = Lock()  # threads share the buffer until the driver has read it

    @classmethod
    def of(
        cls, cubin: Cubin, function: int, programs: int, device: int, fixed: Sequence[int] = (),
        maps: Sequence[Layout] = (),
    ) -> DirectLaunch | None:  # fmt: skip
        """A launch of the kernel that is loaded as `function`; None where it needs more than is known here."""
        driver, sizes = loaded_driver(), cubin.sizes
        if driver is None or sizes is None or not _agrees(driver, function, sizes):
            return None
        if cubin.maps and not hasattr(driver, "cuTensorMapReplaceAddress"):
            return None
        return cls(driver, function, cubin, programs, device, fixed, maps)

    def launched(self, words: Sequence[int]) -> Launched:
        """The kernel with these parameters."""
        self._pack(self._words, 0, *words)
        self._move(words)
        cubin, parameters = self.cubin, [each or 0 for each in self._params]
        sizes, grid = [*(cubin.sizes or ()), *[8] * SCRATCH], (self.programs, 1, 1)
        return Launched(self.function, parameters, sizes, grid, cubin.threads, cubin.shared, cubin.pdl)

    def at(self, programs: int, fixed: Sequence[int]) -> DirectLaunch:
        """A launch of this kernel on another grid, with other fixed parameters."""
        return DirectLaunch(self._driver, self.function, self.cubin, programs, self.device, fixed, self._layouts)

    def __call__(self, words: Sequence[int]) -> None:
        """Launch on torch's current stream of the device, which must be the current one."""
        if NOTED.get() is not None:
            note(NotedKernel(self, words))
        with self._lock:
            self._pack(self._words, 0, *words)
            if self._maps:
                self._move(words)
            self._config.stream = torch._C._cuda_getCurrentRawStream(self.device)
            status = self._driver.cuLaunchKernelEx(self._by_reference, self._function, self._params, None)
            if status == _NO_CONTEXT:  # a thread that has not used CUDA before
                bind_context(self._driver, self.device)
                status = self._driver.cuLaunchKernelEx(self._by_reference, self._function, self._params, None)
        if status:
            raise RuntimeError(f"CUDA's driver did not launch a kernel: {error_name(self._driver, status)}")

    def _move(self, words: Sequence[int]) -> None:
        """Tensor maps to the addresses of their tensors."""
        for at, each in self._maps:
            if status := each.move(words[at]):
                raise RuntimeError(f"CUDA's driver writes no tensor map: {error_name(self._driver, status)}")


class NotedKernel(NamedTuple):
    """A launched kernel with its parameters."""

    direct: DirectLaunch
    words: Sequence[int]


class NotedProduct(NamedTuple):
    """A product of the vendor's library: its factors, and the place of its result."""

    multiply: Callable[..., Any]
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


#: None for what cannot be launched again so.
Noted: TypeAlias = NotedKernel | NotedProduct | None
NOTED: ContextVar[list[Noted] | None] = ContextVar("what is launched", default=None)


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Kernels and products that this thread launches within, in their order."""
    noted: list[Noted] = []
    token = NOTED.set(noted)
    try:
        yield noted
    finally:
        NOTED.reset(token)


def note(launched: Noted) -> None:
    """Tell who notes launches in this thread, if anybody. All that torch does not dispatch itself says so, lest a
    sequence of what was noted leave it out."""
    if (noted := NOTED.get()) is not None:
        noted.append(launched)


class _Words:
    """Where the parameters of a launch stand: those that change from call to call, and those that are kept."""

    def __init__(self, cubin: Cubin, fixed: Sequence[int], maps: Sequence[EncodedMap]) -> None:
        sizes = list(cubin.sizes or ())
        kept = [number for each in maps for number in each.numbers] + list(fixed) + [0] * SCRATCH
        count = len(sizes) + SCRATCH - len(kept)
        self.changing, self.kept = (ctypes.c_int64 * count)(), (ctypes.c_int64 * len(kept))(*kept)
        changing, others, waiting = _addresses(self.changing), _addresses(self.kept), iter(maps)
        #: Addresses of the parameters, and the maps with the place of their tensors among what changes.
        self.places: list[int] = []
        self.maps: list[tuple[int, EncodedMap]] = []
        for at, place in enumerate(changing):
            if sizes[len(self.places)] != BYTES:
                self.places.append(place)
                continue
            each = next(waiting)
            self.maps.append((at, each))
            self.places += [each.address, *islice(others, len(each.numbers))]
        self.places += others


def _addresses(words: Any) -> Iterator[int]:
    start = ctypes.addressof(words)
    return iter(range(start, start + 8 * len(words), 8))


def _agrees(driver: Any, function: int, sizes: Sequence[int]) -> bool:
    """Whether the loaded kernel has just these parameters and the two for scratch; false before CUDA 12.4, where the
    driver does not say."""
    ask = getattr(driver, "cuFuncGetParamInfo", None)
    if ask is None:
        return False
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    for at, wanted in enumerate((*sizes, *[8] * SCRATCH)):
        place = ctypes.c_size_t(at)
        if ask(ctypes.c_void_p(function), place, ctypes.byref(offset), ctypes.byref(size)) or size.value != wanted:
            return False
    past = ctypes.c_size_t(len(sizes) + SCRATCH)
    return bool(ask(ctypes.c_void_p(function), past, ctypes.byref(offset), ctypes.byref(size)))


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

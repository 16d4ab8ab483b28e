"""Calls of the CUDA driver: the share of shared memory, and launches past Triton's own launcher."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.base.arrays import outside_inference
from weft.base.kept import await_making, is_capturing
from weft.gpu.common.cubin import Cubin
from weft.gpu.common.tensor_maps import BYTES, EncodedMap
from weft.planner.schedule import Launched, Target
from weft.spec import Layout


@cache
def loaded_driver() -> Any:
    """The driver's library, which has long been loaded where a kernel has; None where there is none."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def driver_version() -> int | None:
    """The version of CUDA that the driver is for, 12030 for 12.3; None where there is none."""
    driver, version = loaded_driver(), ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value


DEPENDENT = 12030  # the first version of CUDA whose graphs can hold launches that are dependent by program, see `pdl`


def can_pdl(target: Target) -> bool:
    """Whether launches on the device may be dependent by program; without a driver, whether the device could."""
    version = driver_version()
    return target.kind == "cuda" and target.capability >= 90 and (version is None or version >= DEPENDENT)


@contextmanager
def aside_of_capture() -> Iterator[None]:
    """Within, this thread may allocate and load while a CUDA graph is captured, which has no part of that."""
    driver, mode = loaded_driver(), ctypes.c_int(_RELAXED)
    if driver is not None:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        if driver is not None:
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def made_aside(make: Callable[[], Tensor], device: torch.device) -> Tensor:
    """A tensor that outlives the call that makes it, filled when this returns. Within the capture of a CUDA graph it
    is made on another stream: the graph has no part of that."""
    with outside_inference():
        if not is_capturing(device):
            found = make()
            await_making(device)
            return found
        side = torch.cuda.Stream(device)
        with aside_of_capture(), torch.cuda.stream(side):
            found = make()
            side.synchronize()
    return found


_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PREFERRED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT of CUDA's driver


def carveout_of(function: int) -> int | None:
    """The per cent that `prefer_carveout` asked for; None where the driver does as it likes."""
    driver, found = loaded_driver(), ctypes.c_int(-1)
    if driver is not None:
        driver.cuFuncGetAttribute(ctypes.byref(found), _PREFERRED_CARVEOUT, ctypes.c_void_p(function))
    return found.value if found.value >= 0 else None


def prefer_carveout(function: int, percent: int) -> bool:
    """Ask CUDA's driver that at most so much of what can be shared memory should be, whenever this loaded function (a
    `CUfunction`) runs; false where it refuses or is not there. A hint: results never depend on it.

    Left alone, the driver makes room for as many programs as fit; where these use much shared memory, little is left to
    hold what they are reading.
    """
    driver = loaded_driver()
    if driver is None:
        return False
    return bool(driver.cuFuncSetAttribute(ctypes.c_void_p(function), _PREFERRED_CARVEOUT, ctypes.c_int(percent)) == 0)


SCRATCH = 2  # pointers that Triton adds to a kernel's parameters: memory that none of weft's kernels asks for
_FOLLOWS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, see `pdl`
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
        self._driver, self.device = driver, device
        self._made_of = cubin, device, maps
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

    @property
    def cubin(self) -> Cubin:
        """The kernel as data."""
        return self._made_of[0]

    @property
    def function(self) -> int:
        """The kernel as it is loaded: a `CUfunction`."""
        return self._function.value or 0

    @property
    def programs(self) -> int:
        """Programs of the grid."""
        return int(self._config.grid_x)

    def launched(self, words: Sequence[int]) -> Launched:
        """The kernel with these parameters."""
        self._pack(self._words, 0, *words)
        self._move(words)
        cubin, config = self._made_of[0], self._config
        sizes = [*(cubin.sizes or ()), *[8] * SCRATCH]
        grid = (config.grid_x, config.grid_y, config.grid_z)
        return Launched(
            self.function, [each or 0 for each in self._params], sizes, grid, config.block_x, config.shared,
            bool(config.count),
        )  # fmt: skip

    def at(self, programs: int, fixed: Sequence[int]) -> DirectLaunch:
        """A launch of this kernel on another grid, with other fixed parameters."""
        cubin, device, maps = self._made_of
        return DirectLaunch(self._driver, self.function, cubin, programs, device, fixed, maps)

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


def launches_are_hooked() -> bool:
    """Whether somebody, a profiler say, has hooked Triton's launches."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    runtime = knobs.runtime
    before, after = runtime.launch_enter_hook, runtime.launch_exit_hook
    # The calls of a chain of hooks, or the hook itself where somebody has set one.
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


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


def bind_context(driver: Any, ordinal: int) -> None:
    """Make the device's primary context, which torch works in, the one of this thread."""
    driver.cuCtxSetCurrent(_primary_context(driver, ordinal))


@contextmanager
def in_context(driver: Any, ordinal: int) -> Iterator[None]:
    """Within, the device's primary context is the one of this thread."""
    driver.cuCtxPushCurrent_v2(_primary_context(driver, ordinal))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@lru_cache(maxsize=64)
def _primary_context(driver: Any, ordinal: int) -> ctypes.c_void_p:
    """Kept, as torch does, until the process ends."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    return context


def error_name(driver: Any, status: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return (name.value or b"an unknown error").decode()

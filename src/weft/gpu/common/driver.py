"""Calls of the CUDA driver: its version, captures, contexts, the share of shared memory, and tensor maps.

By a tensor map the tensor memory accelerator (TMA) of an NVIDIA GPU finds the tiles of a tensor. A kernel takes each as
128 bytes that the driver writes, with the tensor's extents and strides behind them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.base.arrays import outside_inference
from weft.base.kept import await_making, is_capturing
from weft.planner.schedule import Target
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


DEPENDENT = 12030  # the first CUDA whose graphs can hold launches that are dependent by program, see `device`


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


BYTES = 128  # of a tensor map
_ALIGNMENT = 64
# Triton's numbers of element types, which are the device's, where the driver has others for them.
_OF_THE_DRIVER = {8: 10, 9: 8, 10: 9}
_NO_INTERLEAVE, _L2_OF_128, _ZEROS_OUTSIDE = 0, 2, 0


class MapForm(NamedTuple):
    """Facts on a tensor map that a kernel is compiled for."""

    element: int  # the driver's number of the element type
    itemsize: int  # bytes of an element
    swizzle: int  # the driver's number of the order in shared memory
    block: tuple[int, ...]  # elements of a tile, outermost first

    @classmethod
    def all_of(cls, compiled: Any) -> tuple[MapForm, ...] | None:
        """Forms of all maps that a compiled kernel takes, in order; None where one is of another kind."""
        found = getattr(compiled.metadata, "tensordesc_meta", None) or ()
        if any(each is None or each.get("fp4_padded") or each.get("is_im2col") for each in found):
            return None
        return tuple(
            cls(
                _OF_THE_DRIVER.get(each["elem_type"], each["elem_type"]), each["elem_size"], each["swizzle"],
                tuple(each["block_size"]),
            )
            for each in found
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the parameters that a tensor map is to a kernel: itself, extents, strides."""
        rank = len(self.block)
        return BYTES, *(4,) * rank, *(8,) * rank


class EncodedMap:
    """The 128 bytes of one tensor, which may move from launch to launch."""

    def __init__(self, driver: Any, form: MapForm, layout: Layout) -> None:
        self._driver, self._form, self._layout = driver, form, layout
        self._room = (ctypes.c_char * (BYTES + _ALIGNMENT))()
        start = ctypes.addressof(self._room)
        #: Where the bytes stand.
        self.address = start + -start % _ALIGNMENT
        self._place = ctypes.c_void_p(self.address)
        self._tensor = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Extents and strides, which a kernel takes behind the bytes."""
        return *self._layout.shape, *self._layout.strides

    def move(self, tensor: int) -> int:
        """Have the bytes speak of the tensor at an address; returns the driver's status."""
        if tensor == self._tensor:
            return 0
        if self._tensor:
            status = self._driver.cuTensorMapReplaceAddress(self._place, ctypes.c_void_p(tensor))
        else:
            status = self._encode(tensor)
        self._tensor = 0 if status else tensor
        return int(status)

    def _encode(self, tensor: int) -> int:
        form, layout = self._form, self._layout
        rank = len(form.block)
        strides = [form.itemsize * stride for stride in layout.strides[:-1]]
        status: int = self._driver.cuTensorMapEncodeTiled(
            self._place, form.element, rank, ctypes.c_void_p(tensor), _innermost_first(ctypes.c_uint64, layout.shape),
            _innermost_first(ctypes.c_uint64, strides or [0]), _innermost_first(ctypes.c_uint32, form.block),
            _innermost_first(ctypes.c_uint32, [1] * rank), _NO_INTERLEAVE, form.swizzle, _L2_OF_128, _ZEROS_OUTSIDE,
        )  # fmt: skip
        return status


def _innermost_first(kind: Any, numbers: Iterable[int]) -> Any:
    held = list(numbers)[::-1]
    return (kind * len(held))(*held)

"""A CUDA driver of the tests: it takes any cubin, and notes what is loaded and launched."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from weft.base.caches import BoundedCache
from weft.gpu.common import cubins, direct, driver
from weft.gpu.common.cubins import Cubin


class FakeDriver:
    """Functions are numbered as they are loaded. `refused`: machine code that is not taken."""

    def __init__(self, refused: tuple[bytes, ...] = ()) -> None:
        self.refused = refused
        self.loaded: list[bytes] = []
        self.named: list[bytes] = []
        self.rooms: list[int] = []  # bytes of shared memory that functions were allowed
        self.launches: list[tuple[int, int, int]] = []  # function, programs, shared memory
        self.contexts: list[int] = []

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        if code in self.refused:
            return 200
        self.loaded.append(code)
        module._obj.value = len(self.loaded)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.named.append(name)
        function._obj.value = 1000 + module.value
        return 0

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> int:
        value._obj.value = {0: 1024, 1: 64, 3: 8, 4: 40}[attribute]
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: Any) -> int:
        self.rooms.append(value.value)
        return 0

    def cuFuncSetCacheConfig(self, function: Any, config: int) -> int:
        return 0

    def cuFuncGetParamInfo(self, function: Any, at: Any, offset: Any, size: Any) -> int:
        known = Cubin.from_bytes(SHELVED[self.loaded[function.value - 1001]])
        sizes = (*(known.sizes or ()), 8, 8)
        if at.value >= len(sizes):
            return 1
        size._obj.value = sizes[at.value]
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = 232448
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 100 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_IMAGE"
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        given = config._obj
        self.launches.append((ctypes.cast(function, ctypes.c_void_p).value or 0, given.grid_x, given.shared))
        return 0


SHELVED: dict[bytes, bytes] = {}  # whole cubins by their machine code


def cubin(text: str, sizes: tuple[int, ...], shared: int = 1024) -> Cubin:
    """One that is no machine code but says which it is."""
    found = Cubin(b"\x7fELF" + text.encode(), "kernel", 128, 1, shared, 0, True, sizes, (), "3.9.0")
    SHELVED[found.code] = found.to_bytes()
    return found


def nothing_loaded(patch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    patch.setattr(cubins, "_LOADED", BoundedCache(64))


@contextmanager
def a_gpu(patch: pytest.MonkeyPatch, found: FakeDriver) -> Iterator[FakeDriver]:
    """Within, this process seems to have a GPU with that driver."""
    for room in (driver, direct, cubins):
        patch.setattr(room, "loaded_driver", lambda: found)
    nothing_loaded(patch)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "device", lambda device: nullcontext())
    patch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    yield found

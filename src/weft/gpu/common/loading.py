"""A kernel on a device: found or compiled, and loaded through CUDA's driver into the context that torch works in."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.base.bounded_cache import BoundedCache
from weft.base.log import warn
from weft.gpu.common import cubins
from weft.gpu.common.cubin import Cubin, excess
from weft.gpu.common.driver import DirectLaunch, aside_of_capture, error_name, in_context, loaded_driver
from weft.planner.schedule import ResourceError, Target

_ROOM = 49152  # bytes of shared memory that a program has without asking
_WORD = 4  # bytes of a spilled register
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
# Attributes of functions and of devices, as CUDA's driver numbers them.
_THREADS, _STATIC, _STACK, _REGISTERS, _DYNAMIC = 0, 1, 3, 4, 8
_OPTIN = 97
_PREFER_SHARED = 1

_LOADED = BoundedCache(4096)  # by key, device and carveout


class LoadError(RuntimeError):
    """The driver does not take a cubin: it is damaged, or made for another driver."""


class Loaded(NamedTuple):
    """A kernel that is on a device."""

    cubin: Cubin
    function: int  # a `CUfunction`
    device: int
    registers: int  # 32-bit ones that each thread is launched with
    stack: int  # bytes of local memory of each thread


def on_device(recipe: cubins.CubinRecipe, target: Target) -> Loaded | None:
    """A kernel on the current device, loaded once for all that are the same; None where Triton loads it.

    What the driver does not take of the store is compiled anew.
    """
    key, device = cubins.key_of(recipe), torch.cuda.current_device()
    if key is None:
        return None
    known: Loaded | None = _LOADED.get((key, device, recipe.carveout))
    if known is None:
        known = _found(key, target, device) or _tried(cubins.compiled(recipe, key), target, device)
        if known is not None:
            _LOADED.put((key, device, recipe.carveout), known)
    return known


def _found(key: str, target: Target, device: int) -> Loaded | None:
    """The kernel of the store, loaded."""
    cubin = cubins.found(key, target.capability)
    if cubin is None:
        return None
    try:
        return _tried(cubin, target, device)
    except LoadError as error:
        _tell(str(error))
        cubins.forget(key, target.capability)
        return None


def _tried(cubin: Cubin, target: Target, device: int) -> Loaded | None:
    """A kernel loaded; None where only Triton can launch it."""
    if (reason := excess(cubin.shared, cubin.tensor_memory, target)) is not None:
        raise ResourceError(reason)
    return load(cubin, device) if cubin.sizes is not None else None


def by_triton(compiled: Any, device: int) -> Loaded:
    """A kernel that Triton has loaded."""
    stack = _WORD * int(compiled.n_spills)
    return Loaded(Cubin.of(compiled), compiled.function, device, int(compiled.n_regs), stack)


def load(cubin: Cubin, device: int) -> Loaded:
    """Load a kernel on the device.

    Raises `LoadError` where the driver does not take it, and `ResourceError` where the device cannot hold it.
    """
    driver = loaded_driver()
    if driver is None:
        raise LoadError("CUDA's driver is not there")
    with aside_of_capture(), in_context(driver, device):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _done(driver, driver.cuModuleLoadData(ctypes.byref(module), cubin.code))
        _done(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, cubin.name.encode()))
        threads = _of_function(driver, function, _THREADS)
        if cubin.threads > threads:
            raise ResourceError(f"it needs {cubin.threads} of threads, the device has {threads}")
        _make_room(driver, function, cubin.shared, device)
        registers, stack = (_of_function(driver, function, each) for each in (_REGISTERS, _STACK))
    return Loaded(cubin, function.value or 0, device, registers, stack)


def loaded_of(launch: DirectLaunch) -> Loaded:
    """The kernel of a launch; `LoadError` where there is no driver."""
    driver = loaded_driver()
    if driver is None:
        raise LoadError("CUDA's driver is not there")
    function = ctypes.c_void_p(launch.function)
    registers, stack = (_of_function(driver, function, each) for each in (_REGISTERS, _STACK))
    return Loaded(launch.cubin, launch.function, launch.device, registers, stack)


@lru_cache(maxsize=64)
def _tell(why: str) -> None:
    warn(f"weft does without kernels of its store: {why}")


def _make_room(driver: Any, function: ctypes.c_void_p, shared: int, ordinal: int) -> None:
    """Let a program have all the shared memory that the device allows, where it needs more than the usual."""
    if shared <= _ROOM:
        return
    device, most = ctypes.c_int(), ctypes.c_int()
    _done(driver, driver.cuDeviceGet(ctypes.byref(device), ordinal))
    _done(driver, driver.cuDeviceGetAttribute(ctypes.byref(most), _OPTIN, device))
    if most.value <= _ROOM:
        return
    static = _of_function(driver, function, _STATIC)
    _done(driver, driver.cuFuncSetCacheConfig(function, _PREFER_SHARED))
    _done(driver, driver.cuFuncSetAttribute(function, _DYNAMIC, ctypes.c_int(most.value - static)))


def _of_function(driver: Any, function: ctypes.c_void_p, attribute: int) -> int:
    found = ctypes.c_int()
    _done(driver, driver.cuFuncGetAttribute(ctypes.byref(found), attribute, function))
    return found.value


def _done(driver: Any, status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("CUDA's driver could not load a kernel: out of memory")
    if status:
        raise LoadError(f"CUDA's driver does not load it: {error_name(driver, status)}")

"""Compiled kernels: machine code of an NVIDIA GPU as data, where it comes from, and how it is loaded.

It comes from weft's own store on this machine, or else from Triton. A key says what a kernel is made of: the text of
its code, its constants, types and alignments, options, and the device's capability. It is computed without Triton,
whose version belongs to it where Triton is installed. CUDA's driver loads it into the context that torch works in.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch

from weft.base.caches import BoundedCache, cached_property
from weft.base.log import warn
from weft.gpu.common.constants import DeviceFunction, TensorMap, UnspelledError, calls, spelled
from weft.gpu.common.driver import MapForm, aside_of_capture, error_name, in_context, loaded_driver
from weft.machine.stamp import package_version
from weft.machine.store import Store, fields_of
from weft.planner.keys import of_files, of_kernel
from weft.planner.schedule import ResourceError, Target
from weft.spec import Layout

FORMAT = 2  # of the bytes
TENSOR_MEMORY = 512  # columns of tensor memory that an SM of Blackwell has
_SIZES = {"*": 8, "i64": 8, "i32": 4}


@dataclass(frozen=True)
class Cubin:
    """One kernel. `to_bytes` and `from_bytes` keep it on disk."""

    code: bytes
    name: str  # of the function in it
    threads: int  # of a program, those of all roles
    barriers: int  # that are named
    shared: int  # bytes of dynamic shared memory
    tensor_memory: int  # columns
    pdl: bool  # launched as dependent by program
    sizes: tuple[int, ...] | None  # bytes of each parameter; None where only Triton's launcher knows how to pass them
    maps: tuple[MapForm, ...]  # of the parameters that are tensor maps, in order
    triton: str  # the version that compiled it

    @cached_property
    def digest(self) -> str:
        """A digest of the machine code: by it verdicts say what was tested."""
        return hashlib.sha256(self.code).hexdigest()[:16]

    @classmethod
    def of(cls, compiled: Any) -> Cubin:
        """The cubin of a kernel that Triton has compiled."""
        from triton import __version__

        metadata, ptx = compiled.metadata, str(compiled.asm["ptx"])
        threads = metadata.num_warps * metadata.warp_size
        plain = metadata.num_ctas == 1 and not metadata.launch_cooperative_grid
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        maps = MapForm.all_of(compiled)
        sizes = parameter_sizes(compiled.src.signature, maps) if plain and not scratch and maps is not None else None
        return cls(
            bytes(compiled.asm["cubin"]), metadata.name, threads, block_barriers(ptx), metadata.shared,
            getattr(metadata, "tmem_size", None) or 0, bool(metadata.launch_pdl),
            None if sizes is None else tuple(sizes), maps or (), __version__,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """A line of JSON, then the machine code."""
        facts = {name: value for name, value in asdict(self).items() if name != "code"}
        return json.dumps({"format": FORMAT, **facts}).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, content: bytes) -> Cubin:
        """`ValueError` where this is no cubin of this format."""
        head, _, code = content.partition(b"\n")
        try:
            facts = json.loads(head)
            if facts.pop("format") != FORMAT or not code.startswith(b"\x7fELF"):
                raise ValueError
            return fields_of(cls, facts | {"code": code})
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise ValueError("it is no cubin of this version") from None


def excess(shared: int, tensor_memory: int, target: Target) -> str | None:
    """A sentence on what a kernel takes more of than the device has: bytes of shared memory, or columns of tensor
    memory; None where it fits."""
    if target.shared_memory and shared > target.shared_memory:
        return f"it needs {shared} of shared memory, the device has {target.shared_memory}"
    if tensor_memory > TENSOR_MEMORY:
        return f"it needs {tensor_memory} columns of tensor memory, the device has {TENSOR_MEMORY}"
    return None


def parameter_sizes(signature: dict[str, Any], maps: Sequence[MapForm] = ()) -> list[int] | None:
    """Bytes of each parameter that a kernel takes at run time, in order; None where one is no pointer, integer or
    tensor map of these."""
    found: list[int] = []
    forms = iter(maps)
    for kind in signature.values():
        for each in kind if isinstance(kind, tuple) else (kind,):
            if each == "constexpr":
                continue
            if str(each).startswith("tensordesc"):
                form = next(forms, None)
                if form is None:
                    return None
                found += form.sizes
                continue
            size = _SIZES.get("*" if str(each).startswith("*") else each)
            if size is None:
                return None
            found.append(size)
    return found


def block_barriers(ptx: str) -> int:
    """How many named barriers a kernel uses, as its PTX numbers them; one where it names none, as the driver counts."""
    named = re.findall(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)\S* +(\d+)", ptx)
    return max((int(each) + 1 for each in named), default=1)


ROOM = "cubins"  # of the store
MOST = 8192  # kernels that are kept
_FUNCTIONS = "fn/**/*.py"  # what functions of users become device code by
_COMPILERS = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "PTXAS_", "DISABLE_LLVM", "DISABLE_PTXAS")
_PLACES = ("_PATH", "_DIR", "_HOME", "_INTERPRET", "_MANAGER")


class CubinRecipe(Protocol):
    """All that a kernel is made of: a `KernelLaunch`."""

    function: DeviceFunction
    layouts: tuple[Any, ...]
    pointers: tuple[Layout, ...]
    constants: dict[str, Any]
    options: dict[str, Any]
    numbers: tuple[int, ...] | None
    capability: int
    carveout: int | None

    def compile(self) -> Any:
        """The kernel as Triton compiles it."""


def code_of(recipe: CubinRecipe) -> Cubin:
    """The machine code of a kernel: found, or compiled by Triton and kept for the next process."""
    key = key_of(recipe)
    kept = found(key, recipe.capability) if key is not None else None
    return kept or compiled(recipe, key)


def compiled(recipe: CubinRecipe, key: str | None) -> Cubin:
    """A kernel compiled by Triton, and kept under its key."""
    made = Cubin.of(recipe.compile())
    if key is not None and made.sizes is not None:
        keep(key, recipe.capability, made)
    return made


def found(key: str, capability: int) -> Cubin | None:
    """A kernel of the store; None where it is not there or damaged."""
    value = Store(ROOM).load(_place(key, capability))
    with suppress(ValueError, TypeError, KeyError, zlib.error):
        if value is not None:
            return Cubin.from_bytes(zlib.decompress(base64.b64decode(value["cubin"], validate=True)))
    return None


def is_kept(recipe: CubinRecipe) -> bool:
    """Whether nothing is gained by compiling a kernel ahead: it is there, or Triton alone keeps it."""
    key = key_of(recipe)
    return key is None or found(key, recipe.capability) is not None


def forget(key: str, capability: int) -> None:
    """Take a kernel that the driver did not take out of the store."""
    Store(ROOM).forget(_place(key, capability))


def keep(key: str, capability: int, cubin: Cubin) -> None:
    """Keep a kernel in the store. A store that cannot be written is a warning."""
    text = base64.b64encode(zlib.compress(cubin.to_bytes(), 1)).decode()
    if Store(ROOM).save(_place(key, capability), {"text": cubin.name, "cubin": text}):
        _bound()


def key_of(recipe: CubinRecipe) -> str | None:
    """A digest of all that a kernel is made of; None where that cannot be said, or only Triton can launch it."""
    layouts = [*recipe.layouts, *recipe.pointers]
    if any(layout is not None and not isinstance(layout, (Layout, TensorMap)) for layout in layouts):
        return None
    code = of_kernel(recipe.function.module)
    if code is None:
        return None
    try:
        constants = [f"{name}={spelled(value)}" for name, value in recipe.constants.items()]
    except UnspelledError:
        return None
    parts = [
        recipe.function.name, code, of_files(_FUNCTIONS) if any(map(calls, recipe.constants.values())) else "",
        f"sm_{recipe.capability}", *constants, *(f"{name}={value!r}" for name, value in sorted(recipe.options.items())),
        *map(_pointer, recipe.layouts), "pointers", *map(_pointer, recipe.pointers),
        f"numbers {None if recipe.numbers is None else len(recipe.numbers)}",
    ]  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _pointer(layout: Any) -> str:
    """A tensor as the compiler takes it."""
    if isinstance(layout, TensorMap):
        return f"map {layout.layout.dtype} {layout.block} {layout.shared}"
    return "none" if layout is None else f"{layout.dtype}{' aligned' * (layout.alignment % 16 == 0)}"


def _place(key: str, capability: int) -> dict[str, Any]:
    return {
        "what": "cubin", "key": key, "capability": capability, "triton": _triton(),
        "settings": _settings(),
    }  # fmt: skip


def _settings() -> dict[str, str]:
    """Settings of Triton's compiler in the environment."""
    return {
        name: value for name, value in sorted(os.environ.items())
        if name.startswith(_COMPILERS) and not name.endswith(_PLACES)
    }  # fmt: skip


@lru_cache(maxsize=1)
def _triton() -> str | None:
    return package_version("triton")


@lru_cache(maxsize=1)
def _bound() -> None:
    """Once in a process."""
    Store(ROOM).bound(MOST)


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


def on_device(recipe: CubinRecipe, target: Target) -> Loaded | None:
    """A kernel on the current device, loaded once for all that are the same; None where Triton loads it.

    What the driver does not take of the store is compiled anew.
    """
    key, device = key_of(recipe), torch.cuda.current_device()
    if key is None:
        return None
    known: Loaded | None = _LOADED.get((key, device, recipe.carveout))
    if known is None:
        known = loaded(key, target, device) or _tried(compiled(recipe, key), target, device)
        if known is not None:
            _LOADED.put((key, device, recipe.carveout), known)
    return known


def loaded(key: str, target: Target, device: int) -> Loaded | None:
    """The kernel of the store, loaded; one that the driver does not take leaves the store."""
    cubin = found(key, target.capability)
    if cubin is None:
        return None
    try:
        return _tried(cubin, target, device)
    except LoadError as error:
        _tell(str(error))
        forget(key, target.capability)
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
    driver = _driver()
    with aside_of_capture(), in_context(driver, device):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _done(driver, driver.cuModuleLoadData(ctypes.byref(module), cubin.code))
        _done(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, cubin.name.encode()))
        threads = _of_function(driver, function, _THREADS)
        if cubin.threads > threads:
            raise ResourceError(f"it needs {cubin.threads} of threads, the device has {threads}")
        _make_room(driver, function, cubin.shared, device)
        return described(cubin, function.value or 0, device)


def described(cubin: Cubin, function: int, device: int) -> Loaded:
    """A kernel that is loaded as `function`, with what the driver says of it; `LoadError` where there is no driver."""
    driver = _driver()
    registers, stack = (_of_function(driver, ctypes.c_void_p(function), each) for each in (_REGISTERS, _STACK))
    return Loaded(cubin, function, device, registers, stack)


def _driver() -> Any:
    driver = loaded_driver()
    if driver is None:
        raise LoadError("CUDA's driver is not there")
    return driver


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

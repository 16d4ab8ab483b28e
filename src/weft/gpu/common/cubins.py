"""Where compiled kernels come from: weft's own store on this machine, or else Triton.

A key says what a kernel is made of: the text of its code, its constants, types and alignments, options, and the
device's capability. It is computed without Triton, whose version belongs to it where Triton is installed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from weft.gpu.common.constants import DeviceFunction, UnspelledError, calls, spelled
from weft.gpu.common.cubin import Cubin
from weft.gpu.common.tensor_maps import TensorMap
from weft.machine.stamp import package_version
from weft.machine.store import Store
from weft.planner.keys import of_files, of_kernel
from weft.spec import Layout

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

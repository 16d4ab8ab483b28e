"""Machine code of compiled functions on disk: what this machine has compiled, and what was built ahead.

What was compiled is kept in a store, an object for the linker with each source; what is not as it was written is not
loaded. Nothing is unpickled.

The pack has weft's own kernels, built for the level of the host from the same source. The key of a kernel is the digest
of its source and of the code that the source names, so that a pack of another version is never used. An entry is a line
that names what the code takes from elsewhere, then the object.
"""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from weft.cpu.level import host_level
from weft.machine import pack
from weft.machine.folder import Folder
from weft.machine.store import Store, as_text, fields_of, from_text
from weft.planner.keys import of_files

MOST = 4096  # functions that are kept; what was longest unused goes first
_PATIENCE = 60.0  # seconds that another process may take to compile a function
_OFTEN = 64  # functions that are written before the number is looked at again
_written = 0


class MachineCode(NamedTuple):
    """An object, and the name of a C callback in it."""

    symbol: str
    needs: tuple[str, ...]  # names that it takes from elsewhere
    content: bytes


class CodeStore:
    """Code in one folder, each with the software that it was made by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = Store(folder.name, folder.parent)

    def load(self, source: str) -> MachineCode | None:
        """The code of a source, as this machine can run it; None where it is not there or is damaged."""
        key = _key(source)
        value: Any = self._store.load(key)
        try:
            code = fields_of(MachineCode, {**value, "content": from_text(value["content"])})
        except (KeyError, TypeError, ValueError):
            return None
        self._store.touch(key)
        return code

    def turn(self, source: str) -> AbstractContextManager[None]:
        """While other processes compile a source, wait for them; see `Folder.turn`."""
        return Folder(self._folder).turn(hashlib.sha256(source.encode()).hexdigest(), _PATIENCE)

    def save(self, source: str, code: MachineCode) -> None:
        """Keep the code of a source; a folder that cannot be written is a warning."""
        global _written
        self._store.save(_key(source), {**code._asdict(), "content": as_text(code.content)})
        _written += 1
        if _written % _OFTEN == 1:
            self._store.bound(MOST)


def _key(source: str) -> dict[str, Any]:
    return {"what": "machine code", "source": hashlib.sha256(source.encode()).hexdigest(), **_environment()}


@lru_cache
def _environment() -> dict[str, Any]:
    """The host's properties and the software that machine code depends on."""
    from llvmlite import binding

    chosen = [os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    features = [binding.get_process_triple(), binding.get_host_cpu_features().flatten(), *chosen]
    return {
        "processor": binding.get_host_cpu_name(),
        "features": hashlib.sha256("\n".join(features).encode()).hexdigest()[:16],
        "python": platform.python_version(),
        "compiler": [metadata.version(name) for name in ("numba", "llvmlite")],
        "code": sources_digest(),
    }


#: What a source compiles to depends on these files: all that sources import, and what those import of the CPU's code.
CODE = (
    "cpu/**/*kernel.py", "cpu/**/params.py", "cpu/gett/pack.py", "cpu/gett/vector.py", "cpu/row_call.py",
    "cpu/level.py", "fn/numba/math.py", "fn/numba/values.py",
)  # fmt: skip


def sources_digest() -> str:
    """The digest of the code that sources name."""
    return of_files(*CODE)


def pack_key(source: str) -> str:
    return hashlib.sha256(f"{sources_digest()}\n{source}".encode()).hexdigest()


def symbol_of(key: str) -> str:
    """The name of the C callback in an entry."""
    return f"weft_{key[:16]}"


@lru_cache(maxsize=4)
def is_packed() -> bool:
    """Whether the pack has kernels of this version for the host."""
    level = host_level()
    shelf = pack.shelf(level.name) if level is not None else None
    return shelf is not None and shelf.about.get("code") == sources_digest()


def pack_state() -> str:
    """Whether kernels are built ahead for the host, in a sentence."""
    place = pack.folder()
    if is_packed():
        return f"kernels are built ahead in {place}"
    if place is None:
        return "weft-tensor-kernels is not installed, or turned off: kernels are compiled when they are first needed"
    fault = "none of this version for this CPU" if any(place.glob("*.pack")) else "no kernels at all"
    return f"weft-tensor-kernels has {fault} in {place}: `make kernels` builds them"


def from_pack(source: str) -> MachineCode | None:
    """The code of a source; None where the pack has none for this host."""
    level = host_level()
    if level is None:
        return None
    key = pack_key(source)
    found = pack.find(level.name, key)
    if found is None:
        return None
    needs, _, content = found.partition(b"\n")
    return MachineCode(symbol_of(key), tuple(needs.decode("ascii", "replace").split()), content)


def pack_entry(code: MachineCode) -> bytes:
    return " ".join(code.needs).encode() + b"\n" + code.content

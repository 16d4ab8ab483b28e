"""Machine code of weft's own kernels from the pack: what was built for the level of the host from the same source.

The key of a kernel is the digest of its source and of the code that the source names, so that a pack of another version
is never used. An entry is a line that names what the code takes from elsewhere, then the object.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from weft.cpu.level import host_level
from weft.cpu.machine_code import MachineCode
from weft.machine import pack
from weft.planner.code_digest import of_files

#: What a source compiles to depends on these files: all that sources import, and what those import of the CPU's code.
CODE = (
    "cpu/**/*kernel.py", "cpu/**/params.py", "cpu/gett/operations.py", "cpu/gett/pack.py", "cpu/gett/vector.py",
    "cpu/stream/items.py", "cpu/level.py", "cpu/llvm.py", "fn/numba/inner.py", "fn/numba/math.py", "fn/numba/values.py",
)  # fmt: skip


def digest() -> str:
    """The digest of the code that sources name."""
    return of_files(*CODE)


def key_of(source: str) -> str:
    return hashlib.sha256(f"{digest()}\n{source}".encode()).hexdigest()


def symbol_of(key: str) -> str:
    """The name of the C callback in an entry."""
    return f"weft_{key[:16]}"


@lru_cache(maxsize=4)
def is_there() -> bool:
    """Whether the pack has kernels of this version for the host."""
    level = host_level()
    shelf = pack.shelf(level.name) if level is not None else None
    return shelf is not None and shelf.about.get("code") == digest()


def load(source: str) -> MachineCode | None:
    """The code of a source; None where the pack has none for this host."""
    level = host_level()
    if level is None:
        return None
    key = key_of(source)
    found = pack.find(level.name, key)
    if found is None:
        return None
    needs, _, content = found.partition(b"\n")
    return MachineCode(symbol_of(key), tuple(needs.decode("ascii", "replace").split()), content)


def entry_of(code: MachineCode) -> bytes:
    return " ".join(code.needs).encode() + b"\n" + code.content

"""LLVM in this process, levels of processors that kernels are built for ahead of time, and the vectors of the host.

LLVM ends the process where it lacks memory: it is not begun without room for its work.

A level fixes the width of vectors that kernels are written for, so that the code of a kernel depends on its source and
the level alone.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from weft.base.figures import si
from weft.base.memory import has_room
from weft.errors import WorkspaceError

ROOM = 192 << 20  # bytes that loading it takes, and compiling or linking a kernel


def need_room() -> None:
    """`WorkspaceError` where LLVM may lack memory: this process's limits count, not what others have taken."""
    if not has_room(ROOM):
        raise WorkspaceError(
            f"out of memory: compiling or loading a kernel for this CPU takes up to {si(ROOM, 'B')}, which this "
            "process may not have; backend='reference' does without"
        )


def binding() -> Any:
    """llvmlite's binding."""
    if "llvmlite.binding" not in sys.modules:
        need_room()
    return import_module("llvmlite.binding")


class Level(NamedTuple):
    """One shelf of the pack."""

    name: str
    triple: str
    processor: str  # as LLVM calls it
    vector: int  # bytes
    needs: tuple[str, ...] = ()  # features of the host, by LLVM's names
    tuning: str = ""  # features that are not those of the processor


_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2", "cx16")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = (
    Level("x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", 64, _V4, "-prefer-256-bit"),
    Level("x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", 32, _V3),
    Level("aarch64", "aarch64-unknown-linux-gnu", "generic", 32),
)
_assumed: Level | None = None


def assume(level: Level) -> None:
    """Write kernels for a level, whatever the host is; for a process that builds them ahead."""
    global _assumed
    _assumed = level
    vector_bytes.cache_clear()


@lru_cache
def vector_bytes() -> int:
    """64 where the host runs 512-bit vectors at full speed; else 32, which LLVM halves for narrower hosts.

    Zen 4 splits 512-bit operations in two, so that longer vectors only make for longer runs of D. On Linux the system
    says it, which costs no import of LLVM: predictions ask for it where nothing is compiled.
    """
    if _assumed is not None:
        return _assumed.vector
    if importlib.util.find_spec("llvmlite") is None:
        return 32
    if said := _processor():
        splits = "AuthenticAMD" in said and re.search(r"^cpu family\s*: 25$", said, re.MULTILINE) is not None
        return 64 if "avx512f" in said.split() and not splits else 32
    features, name = binding().get_host_cpu_features(), binding().get_host_cpu_name()
    return 64 if features.get("avx512f") and not name.startswith("znver4") else 32


def _processor() -> str:
    """The first processor, as Linux describes it; nothing elsewhere."""
    file = Path("/proc/cpuinfo")
    return file.read_text().partition("\n\n")[0] if file.exists() else ""


@lru_cache
def multiplies_by_mkl() -> bool:
    """Whether torch's products of matrices are MKL's on a processor that it is written for.

    There it takes 0.5 to 0.9 of the time of `gett`, on a Xeon with vectors of 64 bytes; on AMD's twice that of `gett`.
    """
    triple, name = binding().get_process_triple(), binding().get_host_cpu_name()
    return bool(triple.startswith("x86_64-") and not name.startswith("znver"))


@lru_cache
def host_level() -> Level | None:
    """The level whose code this host runs, with the vectors that it is best at; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    architecture, features = binding().get_process_triple().split("-")[0], binding().get_host_cpu_features()
    for level in LEVELS:
        fits = level.triple.startswith(f"{architecture}-") and level.vector == vector_bytes()
        if fits and all(features.get(need) for need in level.needs):
            return level
    return None

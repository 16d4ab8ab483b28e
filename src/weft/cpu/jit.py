"""numba at first use: functions compiled to an address, and kept on disk under weft's cache folder.

Each compiled function is a C callback in a small file of its own, written there from text: numba keeps machine code
beside the file of a function, and only of functions that are in one. The folder's name has the digest of weft's code
for the CPU and the version of numba, as numba itself looks at that one file alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import warnings
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from threading import RLock
from types import ModuleType

from weft.errors import WeftWarning
from weft.machine.store import cache_directory
from weft.planner.code_digest import of_files

_CODE = ("cpu/**/*.py", "fn/*.py", "fn/numba/*.py", "fn/triton/activations.py")
_HEAD = "# Written by weft; numba keeps its machine code beside it.\n"
_lock = RLock()
# A fork waits until nothing is compiled, neither here nor in numba: the child has no thread that would go on.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_modules: dict[str, ModuleType] = {}
_told = False


@lru_cache
def fault() -> str | None:
    """Why numba cannot be used here; None where it can. Looks whether it is there, and does not import it."""
    if turned_off():
        return "numba is turned off by WEFT_NUMBA"
    return "numba is not installed" if importlib.util.find_spec("numba") is None else None


def turned_off() -> bool:
    return os.environ.get("WEFT_NUMBA", "1").lower() in ("0", "off", "no", "false")


@lru_cache
def folder() -> Path:
    """Where compiled functions lie."""
    software = f"{metadata.version('numba')} {metadata.version('llvmlite')} {of_files(*_CODE)}"
    return cache_directory() / "cpu" / hashlib.sha256(software.encode()).hexdigest()[:16]


def compiled(source: str, *, kernel: bool = False) -> int:
    """The address of `entry`, a C callback that `source` defines. `kernel`: one of weft's, which takes seconds."""
    known = _modules.get(source)
    if known is None:
        with _lock:
            known = _modules.get(source)
            if known is None:
                known = _modules[source] = _imported(source, kernel)
    return int(known.entry.address)


def _imported(source: str, kernel: bool) -> ModuleType:
    name = f"weft_cpu_{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    file = folder() / f"{name}.py"
    fresh = not file.exists()
    if fresh:
        if kernel:
            _tell()
        try:
            _write(file, source)
        except OSError as error:
            warnings.warn(f"weft cannot keep compiled functions in {file.parent}: {error}", WeftWarning, stacklevel=2)
            file = Path(tempfile.mkdtemp(prefix="weft-")) / file.name
            _write(file, source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # numba finds the function's globals by it
    spec.loader.exec_module(module)
    return module


def _write(file: Path, source: str) -> None:
    """The whole file or none: other processes may read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=file.stem, suffix=".tmp", dir=file.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(_HEAD + source)
    os.replace(temporary, file)


def _tell() -> None:
    """One line of progress, where somebody sits and waits."""
    global _told
    if not _told and sys.stderr.isatty():
        _told = True
        print("weft: compiling kernels for this CPU, once; some seconds each", file=sys.stderr, flush=True)

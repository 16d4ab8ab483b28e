"""The handlers of `handler.c`, which launch what has been bound without Python.

A C compiler builds them when the first custom call is made; the library is kept in weft's folder on disk, under the
digest of its source, of XLA's header and of the machine. Without a compiler, or a folder that may be written, Python's
handler runs every call.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
from weft.base.log import log
from weft.machine.folder import Folder, cache_directory
from weft.tune.cache import HANDLERS

LAUNCHES_KERNELS = False  # on a GPU: not until that has been measured on one
_SOURCE = Path(__file__).with_name("handler.c")


class Site:
    """One custom call's handler; `address` is what XLA calls, and `keep` what it need not ask Python for."""

    def __init__(self, library: Any, number: int) -> None:
        self._library, self._number = library, number
        self.address = library.weft_handler(number)
        self._kept: dict[int, Any] = {}  # what the words of each place point to

    def keep(self, buffers: Sequence[int], stream: int, bound: Any) -> None:
        """Launch what a call of these buffers has bound, where that is one kernel, or one function on one thread."""
        held = getattr(bound, "held", None)
        call = None if held is None else held.launched()
        if call is None:
            return
        count = len(call.words)
        grid, stream_at = (ctypes.c_uint * 3)(*call.grid), ctypes.c_void_p(stream)
        place = self._library.weft_keep(
            self._number, (ctypes.c_void_p * len(buffers))(*buffers), stream_at, ctypes.c_void_p(call.function), grid,
            call.threads, call.shared, int(call.follows), (ctypes.c_void_p * count)(*call.words),
            (ctypes.c_int * count)(*call.sizes), count,
        )  # fmt: skip
        self._kept[place] = bound


def site_of(handler: int, gpu: bool, operands: int, results: int) -> Site | None:
    """A site for Python's handler at that address; None where there is none: see above."""
    library = _library() if LAUNCHES_KERNELS or not gpu else None
    if library is None:
        return None
    launch = None
    if gpu:
        from weft.gpu.common.driver import loaded_driver

        launch = ctypes.cast(loaded_driver().cuLaunchKernelEx, ctypes.c_void_p)
    number = library.weft_site(ctypes.c_void_p(handler), launch, operands, results)
    return Site(library, number) if number >= 0 else None


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("custom calls of JAX are run by Python: %s", error)
        return None
    library.weft_handler.restype = ctypes.c_void_p
    return library


def _built() -> Path:
    """The library's file; raises `OSError` or `SubprocessError` where it cannot be made."""
    source, include = _SOURCE.read_bytes(), Path(jax.ffi.include_dir())
    header = (include / "xla" / "ffi" / "api" / "c_api.h").read_bytes()
    name = f"{hashlib.sha256(source + header + platform.machine().encode()).hexdigest()[:32]}.so"
    folder = Folder(cache_directory() / HANDLERS)
    if folder.read(name) is None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise OSError("there is no C compiler")
        with tempfile.TemporaryDirectory() as made:
            file = Path(made, name)
            words = ["-O2", "-shared", "-fPIC", f"-I{include}", str(_SOURCE), "-o", str(file), "-lpthread"]
            subprocess.run([compiler, *words], check=True, capture_output=True, timeout=60)
            if not folder.write(name, file.read_bytes()):
                raise OSError(f"nothing can be written to {folder.path}")
    return folder.path / name

"""The handlers of `handler.c`, which launch what has been bound without Python.

A C compiler builds them when the first custom call is made; the store keeps the library by its source, XLA's header and
the machine, as it keeps kernels: what is not as it was written is built anew. Without a compiler Python's handler runs
every call.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
from weft.base.log import log
from weft.machine.store import Store, as_text, from_text

ROOM = "jax"  # of the store
_SOURCE = Path(__file__).with_name("handler.c")


class Site:
    """One custom call's handler; `address` is what XLA calls, and `keep` what it need not ask Python for."""

    def __init__(self, library: Any, number: int) -> None:
        self._library, self._number = library, number
        self.address = library.weft_handler(number)
        self._lock = threading.Lock()
        self._kept: dict[int, Any] = {}  # what the words of each kept call point to

    def keep(self, buffers: Sequence[int], stream: int, bound: Any) -> None:
        """Launch what a call of these buffers has bound, where that is one kernel, or one function on one thread."""
        held = getattr(bound, "held", None)
        call = None if held is None else held.launched()
        if call is None:
            return
        count = len(call.words)
        places, grid = (ctypes.c_void_p * len(buffers))(*buffers), (ctypes.c_uint * 3)(*call.grid)
        with self._lock:
            kept = self._library.weft_keep(
                self._number, places, ctypes.c_void_p(stream), ctypes.c_void_p(call.function), grid, call.threads,
                call.shared, int(call.follows), (ctypes.c_void_p * count)(*call.words),
                (ctypes.c_int * count)(*call.sizes), count,
            )  # fmt: skip
            if kept is not None:
                self._kept[kept] = bound
            while (gone := self._library.weft_gone(self._number)) is not None:
                del self._kept[gone]


def site_of(handler: int, gpu: bool, operands: int, results: int) -> Site | None:
    """A site for Python's handler at that address; None where there is none: see above."""
    library = _library()
    if library is None:
        return None
    launch = capturing = None
    if gpu:
        from weft.gpu.common.driver import loaded_driver

        driver = loaded_driver()
        launch = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p)
        capturing = ctypes.cast(driver.cuStreamIsCapturing, ctypes.c_void_p)
    interrupt = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p)
    number = library.weft_site(ctypes.c_void_p(handler), interrupt, launch, capturing, operands, results)
    return Site(library, number) if number >= 0 else None


@cache
def _library() -> Any:
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "handler.so")
            kept = _kept()
            if kept is None:
                _build(file)
            else:
                file.write_bytes(kept)
            library = ctypes.CDLL(str(file))
        for function in (library.weft_handler, library.weft_keep, library.weft_gone):
            function.restype = ctypes.c_void_p
        return library
    except (AttributeError, OSError, subprocess.SubprocessError) as error:
        log.info("custom calls of JAX are run by Python: %s", error)
        return None


def _kept() -> bytes | None:
    """The library as an earlier process built it."""
    with suppress(KeyError, TypeError, ValueError):
        value: Any = Store(ROOM).load(_key())
        return from_text(value["library"])
    return None


def _build(file: Path) -> None:
    """Write the library, and keep it; raises `OSError` or `SubprocessError` where it cannot be made."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler")
    words = ["-O2", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(file), "-lpthread"]
    subprocess.run([compiler, *words], check=True, capture_output=True, timeout=60)
    Store(ROOM).save(_key(), {"library": as_text(file.read_bytes())})


def _key() -> dict[str, str]:
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_bytes()
    source = hashlib.sha256(_SOURCE.read_bytes() + header).hexdigest()
    return {"source": source, "machine": platform.machine(), "system": platform.system()}

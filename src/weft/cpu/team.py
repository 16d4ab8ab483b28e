"""Threads: torch's own OpenMP team, so that no second pool waits on the cores that torch's threads spin on."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from weft.base.forks import is_forked


@lru_cache
def callback(address: int) -> Callable[[object], None]:
    """A compiled function of one address, called without the GIL."""
    found: Callable[[object], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    return found


def together(address: int, frame: object, threads: int) -> None:
    """Run the function at `address` on that block in so many threads at once; all of them draw from its tasks."""
    start = _parallel()
    if is_forked():  # by a plan of its parent, of more threads
        callback(address)(frame)
    elif start is not None:
        start(address, frame, threads, 0)
    else:
        run = callback(address)
        others = [threading.Thread(target=run, args=(frame,)) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        run(frame)
        for thread in others:
            thread.join()


@lru_cache
def _parallel() -> Callable[..., None] | None:
    """`GOMP_parallel` of the OpenMP library that torch uses; LLVM's and Intel's have it too."""
    for path in _libraries():
        try:
            found = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        found.restype = None
        start: Callable[..., None] = found
        return start
    return None


def _libraries() -> list[str]:
    """OpenMP libraries that this process has loaded."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted(set(re.findall(r"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*)", text)))

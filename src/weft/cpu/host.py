"""The processor: kernels run on blocks of words, threads at work together, memory in huge pages."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.base.forks import is_forked
from weft.cpu.level import vector_bytes
from weft.planner.coefficients import Fitted, fitted
from weft.planner.schedule import Launched, Scalar
from weft.spec import Layout


@lru_cache
def multiplies_bytes() -> bool:
    """Whether torch's product of int8 matrices is exact and quick here: without VNNI sums of two products saturate."""
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return has_vnni is not None and bool(has_vnni()) and hasattr(torch, "_int_mm")


def costs(section: str) -> Fitted:
    """The fitted constants of a family: `data/costs/cpu-32.json` or `cpu-64.json`."""
    return fitted(section, f"cpu-{vector_bytes()}.json")


LINE = 64  # bytes of one of the caches


def whole_lines(size: int) -> int:
    """So many bytes, rounded up to whole lines of the caches."""
    return -(-size // LINE) * LINE


HUGE = 4 << 20  # bytes from which it is worth a call of the system
_PAGE, _MADV_HUGEPAGE = 4096, 14


def reach(layout: Layout) -> int:
    """Bytes from the first element to past the last."""
    last = sum(stride * (extent - 1) for stride, extent in zip(layout.strides, layout.shape, strict=True))
    return (last + 1) * layout.dtype.itemsize


def advise(tensor: torch.Tensor, size: int) -> None:
    """Ask for huge pages for the memory that a tensor reaches over."""
    if _madvise is not None:
        address = tensor.data_ptr()
        start = -(-address // _PAGE) * _PAGE
        _madvise(start, (address + size - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)


def _find() -> Any:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


_madvise = _find()


@lru_cache
def callback(address: int) -> Callable[[object], None]:
    """A compiled function of one address, called without the GIL."""
    found: Callable[[object], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    return found


def together(address: int, frame: object, most: int) -> None:
    """Run the function at `address` on that block in torch's threads, at most so many; all draw from its tasks."""
    threads = min(most, torch.get_num_threads()) if most > 1 else 1
    if threads == 1 or is_forked():  # by a plan of its parent, of more threads
        callback(address)(frame)
    elif (start := _parallel()) is not None:
        start(address, frame, threads, 0)
    else:
        run = callback(address)
        others = [threading.Thread(target=run, args=(frame,)) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        run(frame)
        for thread in others:
            thread.join()


class HeldFrame:
    """A compiled function and its block of words, run again and again, in several threads at once if need be.

    Each run has a copy of the words, of whose tasks none is begun.
    """

    def __init__(self, address: int, frame: Any, threads: int) -> None:
        self.address, self.frame, self.threads = address, frame, threads
        self._run, self._copy = callback(address), type(frame).from_buffer_copy

    def launched(self) -> Launched | None:
        """The function and its words, which whoever launches them copies; None where there are several threads."""
        if self.threads != 1:
            return None
        return Launched(self.address, [ctypes.addressof(self.frame)], [ctypes.sizeof(self.frame)])

    def __call__(self) -> None:
        if self.threads == 1:
            self._run(self._copy(self.frame))
        else:
            together(self.address, self._copy(self.frame), self.threads)


class WordsLaunch:
    """A compiled function that runs on a block of words for each call: it may run in several threads at once.

    `start` runs it on the words that `frame` makes of a call.
    """

    def __init__(self, address: int, threads: int) -> None:
        self._address, self._threads = address, threads
        alone = threads == 1
        self.start: Callable[[Any], None] = callback(address) if alone else partial(together, address, most=threads)

    def frame(self, *call: Any) -> Any:
        """The words of a call."""
        raise NotImplementedError

    def bound(self, *call: Any) -> Callable[[], None]:
        """The run on these tensors, whose addresses are taken now."""
        return HeldFrame(self._address, self.frame(*call), self._threads)


class PlanWords:
    """A block of words, and the tables that they point to."""

    def __init__(self, count: int) -> None:
        self.words = np.zeros(count, np.int64)
        self.address = int(self.words.ctypes.data)
        self._kept: list[np.ndarray] = []

    def keep(self, table: Any) -> int:
        """The address of a table."""
        kept = np.ascontiguousarray(table, np.int64)
        self._kept.append(kept)
        return int(kept.ctypes.data)


_DOUBLES, _WORDS = struct.Struct("4d"), struct.Struct("4q")


def scalar_words(alpha: Scalar, beta: Scalar, dtype: torch.dtype) -> Sequence[int]:
    """alpha and beta as kernels of that type have them, two words for each."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return _wrapped(int(alpha.real)), 0, _wrapped(int(beta.real)), 0
    parts = (alpha.imag, beta.imag) if dtype.is_complex else (0.0, 0.0)
    return _WORDS.unpack(_DOUBLES.pack(alpha.real, parts[0], beta.real, parts[1]))


def _wrapped(value: int) -> int:
    """An integer modulo 2**64, as a signed word."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


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

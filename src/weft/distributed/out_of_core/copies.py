"""Blocks between a machine's memory and a device's, without waiting: what is contiguous at once, rows by their pitch.

A copy from or to pinned memory runs while kernels do; from other memory CUDA goes through buffers of its own and the
host waits. Memory that is not pinned is registered for the time of a call.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from weft.errors import WorkspaceError

_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


def copy_block(to: torch.Tensor, source: torch.Tensor) -> None:
    """`source` into `to`, of one shape and type; on a GPU in the current stream."""
    if not source.numel():
        return
    if to.device.type == source.device.type:
        to.copy_(source)
        return
    _copied(to, source)


def _copied(to: torch.Tensor, source: torch.Tensor) -> None:
    bits = source.is_conj() or source.is_neg()  # which torch's own copy reads
    if bits or (to.is_contiguous() and source.is_contiguous()):
        to.copy_(source, non_blocking=True)
        return
    rows = as_rows(to), as_rows(source)
    if rows[0] is not None and rows[1] is not None and _copy_rows(to, source, rows[0], rows[1]):
        return
    for part, other in zip(to.unbind(0), source.unbind(0), strict=True):
        _copied(part, other)


def as_rows(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """A tensor as rows of contiguous elements: how many, elements of each, elements from one to the next; None else."""
    dims = [(extent, stride) for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent != 1]
    length = 1
    while dims and dims[-1][1] == length:
        length *= dims.pop()[0]
    if not dims:
        return 1, length, length
    pitch = dims[-1][1]
    count = dims[-1][0]
    dims.pop()
    while dims and dims[-1][1] == pitch * count:
        count *= dims.pop()[0]
    return (count, length, pitch) if not dims and pitch >= length else None


def _copy_rows(
    to: torch.Tensor, source: torch.Tensor, into: tuple[int, int, int], rows: tuple[int, int, int]
) -> bool:
    """One call of CUDA for all rows, where both sides have rows of one length or one is contiguous."""
    if into[0] == 1 and rows[0] > 1 and into[1] == rows[0] * rows[1]:
        into = rows[0], rows[1], rows[1]
    elif rows[0] == 1 and into[0] > 1 and rows[1] == into[0] * into[1]:
        rows = into[0], into[1], into[1]
    copy = _memcpy_2d()
    if copy is None or into[:2] != rows[:2]:
        return False
    item = to.itemsize
    kind = _TO_DEVICE if to.device.type == "cuda" else _TO_HOST
    stream = torch.cuda.current_stream(to.device if to.device.type == "cuda" else source.device).cuda_stream
    status = copy(
        ctypes.c_void_p(to.data_ptr()), ctypes.c_size_t(into[2] * item), ctypes.c_void_p(source.data_ptr()),
        ctypes.c_size_t(rows[2] * item), ctypes.c_size_t(rows[1] * item), ctypes.c_size_t(rows[0]),
        ctypes.c_int(kind), ctypes.c_void_p(stream),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cudaMemcpy2DAsync of {rows[0]} rows of {rows[1] * item} bytes: error {status}")
    return True


@lru_cache(maxsize=1)
def _memcpy_2d() -> Any:
    """`cudaMemcpy2DAsync` of the runtime that torch has loaded, which torch does not call; None where there is none."""
    if not torch.cuda.is_available() or torch.version.cuda is None or not sys.platform.startswith("linux"):
        return None
    major = torch.version.cuda.partition(".")[0]
    for name in (None, f"libcudart.so.{major}"):
        try:
            found = ctypes.CDLL(name).cudaMemcpy2DAsync
        except (OSError, AttributeError):
            continue
        found.restype = ctypes.c_int
        return found
    return None


@contextmanager
def pinned(tensors: Sequence[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Within, copies of these tensors to and from a GPU run while kernels do: memory that is not pinned is registered.

    Registering costs about as long as reading the memory once; tensors that are used again are better made pinned.
    """
    if device.type != "cuda":
        yield
        return
    runtime = torch.cuda.cudart()
    registered: dict[int, int] = {}
    try:
        for tensor in tensors:
            memory = tensor.untyped_storage()
            if tensor.is_pinned() or not memory.nbytes() or memory.data_ptr() in registered:
                continue
            status = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes(), 0))
            if status:
                raise WorkspaceError(f"{memory.nbytes()} bytes of memory cannot be pinned: CUDA error {status}")
            registered[memory.data_ptr()] = memory.nbytes()
        yield
    finally:
        if registered:
            torch.cuda.synchronize(device)
            for address in registered:
                runtime.cudaHostUnregister(address)

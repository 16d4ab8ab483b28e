"""Huge pages for large results: the page faults of a fresh one may cost more than its product.

A fresh result of 200 MB takes 74 ms of page faults in pages of 4 KiB, and 19 ms in huge ones. It is advice: where the
system has none, or memory is in use already, nothing happens.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from weft.spec import Layout

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

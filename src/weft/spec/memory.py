"""Which elements of memory a strided tensor touches: overlap within one tensor and between two.

Answers are "surely disjoint" or "not shown to be", and cost microseconds: NumPy solves what no rule decides.
"""

from __future__ import annotations

import numpy as np
import torch

_MOST_WORK = 1 << 16  # steps of NumPy's search for an address that two tensors share


def reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element to past the last."""
    if not tensor.numel():
        return 0
    last = [stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)]
    return int(sum(last) + 1) * tensor.element_size()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices of `tensor` share an address (True also where it would take long to show that none do)."""
    span = 0
    for stride, extent in sorted((s, e) for s, e in zip(tensor.stride(), tensor.shape, strict=True) if e != 1):
        if stride <= span:
            return tensor.numel() > 0 and _steps_onto_itself(tensor)
        span += stride * (extent - 1)
    return False


def _steps_onto_itself(tensor: torch.Tensor) -> bool:
    """Whether steps along some dimension, and any along later ones, lead to an element that was there before."""
    while tensor.dim():
        if share_memory(tensor[1:], tensor[0]):
            return True
        tensor = tensor[0]
    return False


def same_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `x` and `y` are one tensor: the same elements in the same order."""
    if x.data_ptr() != y.data_ptr() or x.dtype != y.dtype or x.shape != y.shape:
        return False
    return all(s == t for s, t, extent in zip(x.stride(), y.stride(), x.shape, strict=True) if extent > 1)


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether some byte belongs to both (True also where it would take long to show large interleaved ones apart)."""
    if x.numel() == 0 or y.numel() == 0 or x.device != y.device:
        return False
    start_x, start_y = x.data_ptr(), y.data_ptr()
    if start_x + reach(x) <= start_y or start_y + reach(y) <= start_x:
        return False
    try:
        return np.shares_memory(_Bytes(x), _Bytes(y), max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Bytes:
    """A tensor of any device as NumPy asks for arrays: where its elements are, none of which is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3, "data": (tensor.data_ptr(), True), "typestr": f"|V{size}", "shape": tuple(tensor.shape),
            "strides": tuple([stride * size for stride in tensor.stride()]),
        }  # fmt: skip

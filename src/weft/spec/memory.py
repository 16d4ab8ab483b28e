"""Which elements of memory a strided tensor touches: overlap within one tensor and between two.

Answers are "surely disjoint" or "not shown to be". Everything here costs microseconds but the last resort, which
lists the addresses of small tensors.
"""

from __future__ import annotations

import numpy as np
import torch

_ENUMERATED = 1 << 20  # elements: up to here addresses are listed when no rule decides


def reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element to past the last."""
    if not tensor.numel():
        return 0
    last = [stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)]
    return int(sum(last) + 1) * tensor.element_size()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices of `tensor` share an address (True also where a large tensor cannot be shown not to)."""
    span = 0
    for stride, extent in sorted((s, e) for s, e in zip(tensor.stride(), tensor.shape, strict=True) if e != 1):
        if extent == 0:
            return False
        if stride <= span:
            return _listed_twice(tensor)
        span += stride * (extent - 1)
    return False


def same_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `x` and `y` are one tensor: the same elements in the same order."""
    if x.data_ptr() != y.data_ptr() or x.dtype != y.dtype or x.shape != y.shape:
        return False
    return all(s == t for s, t, extent in zip(x.stride(), y.stride(), x.shape, strict=True) if extent > 1)


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether some byte belongs to both (True also where large interleaved tensors cannot be shown apart)."""
    if x.numel() == 0 or y.numel() == 0 or x.device != y.device:
        return False
    first_x, last_x = _span(x)
    first_y, last_y = _span(y)
    if last_x < first_y or last_y < first_x:
        return False
    if _apart_within_period(x, y):
        return False
    if x.numel() + y.numel() <= _ENUMERATED:
        return bool(np.intersect1d(_addresses(x), _addresses(y)).size)
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte address."""
    return tensor.data_ptr(), tensor.data_ptr() + reach(tensor) - 1


def _apart_within_period(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Two slices of one buffer: the same long strides, and short spans that lie side by side within each period."""
    steps_x, steps_y = _byte_steps(x), _byte_steps(y)
    for period in sorted({s for s, _ in steps_x} & {s for s, _ in steps_y}, reverse=True):
        windows = []
        for tensor, steps in ((x, steps_x), (y, steps_y)):
            if any(step % period for step, _ in steps if step > period):
                break
            start = tensor.data_ptr() % period
            end = start + sum(step * (extent - 1) for step, extent in steps if step < period)
            windows.append((start, end + tensor.element_size()))
        if len(windows) == 2 and all(end <= period for _, end in windows):
            (start_x, end_x), (start_y, end_y) = windows
            if end_x <= start_y or end_y <= start_x:
                return True
    return False


def _byte_steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    size = tensor.element_size()
    return [(s * size, e) for s, e in zip(tensor.stride(), tensor.shape, strict=True) if e > 1 and s > 0]


def _addresses(tensor: torch.Tensor) -> np.ndarray:
    """Every byte address that `tensor` covers."""
    offsets = np.zeros(1, dtype=np.int64)
    for stride, extent in zip(tensor.stride(), tensor.shape, strict=True):
        offsets = (offsets[:, None] + stride * np.arange(extent)).reshape(-1)
    size = tensor.element_size()
    starts = tensor.data_ptr() + offsets * size
    return (starts[:, None] + np.arange(size)).reshape(-1)


def _listed_twice(tensor: torch.Tensor) -> bool:
    if tensor.numel() > _ENUMERATED:
        return True
    addresses = _addresses(tensor)
    return np.unique(addresses).size != addresses.size

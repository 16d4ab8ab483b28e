"""The peak of D (`Contraction.peak`) where a family's kernels do not find it: a pass of reading after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor


def finds_peak(description: Any) -> bool:
    """Whether launches of a description find the peak: those of a permutation do not."""
    return getattr(description, "peak", False)


def without_peak(description: Any) -> Any:
    """A description whose launches do not find the peak."""
    return replace(description, peak=False) if finds_peak(description) else description


class Measured:
    """The launch of a family that finds no peaks, and a pass of reading D after it."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch
        self.kernels = getattr(launch, "kernels", ())

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Any, beta: Any, aux: Any = ()
    ) -> None:
        *others, peak = aux
        self._launch(a, b, c, d, alpha, beta, tuple(others))
        measure(d, peak)


def measure(tensor: Tensor, peak: Tensor) -> None:
    """The peak of a tensor, which has elements, by one pass of reading and without a copy."""
    if tensor.dtype in _SHORT:
        low, high = torch.aminmax(tensor)
        _place(peak).copy_(torch.maximum(-low, high))
    else:
        torch.linalg.vector_norm(tensor, math.inf, out=_place(peak))


def measure_each(tensors: Sequence[Tensor], peaks: Sequence[Tensor]) -> None:
    """The peaks of several tensors, on a GPU in one launch for many; of a tensor without elements nothing is done."""
    together: list[tuple[Tensor, Tensor]] = []
    for tensor, peak in zip(tensors, peaks, strict=True):
        if tensor.numel() and tensor.dtype in _SHORT:
            measure(tensor, peak)
        elif tensor.numel():
            together.append((_place(peak), tensor))
    if together:
        places, read = zip(*together, strict=True)
        torch._foreach_copy_(places, torch._foreach_norm(read, math.inf))


_SHORT = (torch.float16, torch.bfloat16)  # of which torch knows no such norm on every device


def _place(peak: Tensor) -> Tensor:
    """The number whose bits those are."""
    return peak.view(torch.float64 if peak.dtype is torch.int64 else torch.float32)

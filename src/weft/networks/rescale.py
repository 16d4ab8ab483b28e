"""`strip_exponent`: every tensor is scaled by a power of two as it is read, and the powers are added up.

The largest magnitude of each node, its *peak*, is found by a pass of reading: of an operand once where a slice sees all
of it, of a step's result as soon as it is made. The next step's prologue makes the power of two of it and multiplies by
that: the peak is an auxiliary operand of one element. The powers of all nodes are added up from their peaks at the end
of a slice. Nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import DTypeError
from weft.spec.dtypes import dtype_name

_APART = 16  # bytes between peaks: each is aligned as a tensor of its own is
_SHORT = (torch.float16, torch.bfloat16)  # of which torch knows no norm on every device


def check_floating(what: str, dtype: torch.dtype) -> None:
    """`DTypeError` for whole numbers."""
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"strip_exponent is for floating types, {what} is {dtype_name(dtype)}")


def new_peaks(types: Sequence[torch.dtype], device: torch.device) -> list[torch.Tensor]:
    """Places for the peaks of nodes of these types: bits of a float64 where a node is of such, else of a float32."""
    kinds = [torch.int64 if dtype in (torch.float64, torch.complex128) else torch.int32 for dtype in types]
    held = {
        kind: torch.zeros(len(kinds), _APART // kind.itemsize, dtype=kind, device=device)[:, 0].unbind()
        for kind in dict.fromkeys(kinds)
    }
    return [held[kind][node] for node, kind in enumerate(kinds)]


def find_peaks(values: Sequence[Any], nodes: Sequence[int], first: int) -> None:
    """The peaks of some nodes, into their places, which stand among the values from `first` on; on a GPU several are
    found in one launch. Of a tensor without elements nothing is done."""
    together: list[tuple[torch.Tensor, torch.Tensor]] = []
    for node in nodes:
        tensor, bits = values[node], values[first + node]
        peak = bits.view(torch.float64 if bits.dtype is torch.int64 else torch.float32)
        if tensor.numel() and tensor.dtype in _SHORT:
            low, high = torch.aminmax(tensor)
            peak.copy_(torch.maximum(-low, high))
        elif tensor.numel():
            together.append((peak, tensor))
    if len(together) == 1:
        ((peak, tensor),) = together
        torch.linalg.vector_norm(tensor, math.inf, out=peak)  # without a copy
    elif together:
        places, read = zip(*together, strict=True)
        torch._foreach_copy_(places, torch._foreach_norm(read, math.inf))


def scale_and_exponent(peaks: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale of the last node, the result, and the sum of the exponents (to the base of two) of all."""
    kinds = dict.fromkeys(peak.dtype for peak in peaks)
    scales = [scale_of(torch.stack([peak for peak in peaks if peak.dtype is kind])) for kind in kinds]
    exponents = [(1 - torch.frexp(each).exponent).sum(dtype=torch.float64) for each in scales]
    (result,) = [scale[-1] for scale, kind in zip(scales, kinds, strict=True) if kind is peaks[-1].dtype]
    return result, sum(exponents[1:], exponents[0])


def scale_of(peak: Any) -> Any:
    """The power of two that brings a peak, given by its bits, under one and at least to a half; pointwise.

    It is one for zero, infinity and NaN, which nothing brings there. It stays a normal number, whose product with a
    value is exact: peaks beyond 2**126 (2**1022 of float64) come under four, subnormal ones come under one.
    """
    if peak.dtype == torch.int32:
        digits, bias, real = 23, 127, torch.float32
    else:
        digits, bias, real = 52, 1023, torch.float64
    exponent = peak >> digits  # biased
    power = torch.clamp(2 * bias - 1 - exponent, min=1)
    scales = (peak > 0) & (exponent <= 2 * bias)
    return (torch.where(scales, power, bias) << digits).view(real)


def by_left(value: Any, left: Any) -> Any:
    return value * scale_of(left)


def by_right(value: Any, right: Any) -> Any:
    return value * scale_of(right)


def scaled(operand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operand over 10**exponent, its largest magnitude at most one, and the exponent: float64, of no dimension.

    `DTypeError` for whole numbers.
    """
    dtype = operand.dtype
    check_floating("the operand", dtype)
    largest = operand.abs().amax().double() if operand.numel() else torch.zeros((), dtype=torch.float64, device="cpu")
    real = dtype.to_real()
    most = int(math.log2(torch.finfo(real).max))  # of a power of two that the type holds, and the inverse too
    exponent = torch.frexp(largest)[1].clamp(-most, most - 1).to(operand.device)
    factor = torch.exp2(-exponent.double()).to(real)
    return operand * factor, exponent.double() * math.log10(2.0)

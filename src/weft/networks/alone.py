"""A network of one operand with its exponent apart: there is no step to scale in, so the operand is scaled before."""

from __future__ import annotations

import math

import torch

from weft.errors import DTypeError
from weft.spec.dtypes import REAL_OF, dtype_name


def scaled(operand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operand over 10**exponent, its largest magnitude at most one, and the exponent: float64, of no dimension.

    `DTypeError` for whole numbers.
    """
    dtype = operand.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"strip_exponent is for floating types, the operand is {dtype_name(dtype)}")
    largest = operand.abs().amax().double() if operand.numel() else torch.zeros((), dtype=torch.float64)
    real = REAL_OF.get(dtype, dtype)
    most = int(math.log2(torch.finfo(real).max))  # of a power of two that the type holds, and the inverse too
    exponent = torch.frexp(largest)[1].clamp(-most, most - 1).to(operand.device)
    factor = torch.exp2(-exponent.double()).to(real)
    return operand * factor, exponent.double() * math.log10(2.0)

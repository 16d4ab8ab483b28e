"""Functions on the zeros past the end of a sum."""

from __future__ import annotations

import torch

from weft.fn.pointwise import Pointwise

_LARGEST = torch.finfo(torch.float8_e4m3fn).max  # of the narrowest type of products


def padding_adds_nothing(a_fn: Pointwise | None, b_fn: Pointwise | None) -> bool:
    """Whether products of what the functions make of zeros are zero, so that nothing has to be masked.

    Operands that are read past the end of a sum are zeros there. If one of them still is behind its function, and the
    other is finite, their product is zero.
    """
    return not any(masked_operands(a_fn, b_fn))


def masked_operands(a_fn: Pointwise | None, b_fn: Pointwise | None) -> tuple[bool, bool]:
    """Which operands, A and B, must be masked behind their functions. Zeros of one suffice where the other is finite:
    those of B, which takes the shorter way to the matrix units."""
    a = 0.0 if a_fn is None else a_fn.at_zero
    b = 0.0 if b_fn is None else b_fn.at_zero
    mask_a, mask_b = not _is_finite(a), not _is_finite(b)
    return mask_a, mask_b or (not mask_a and a != 0 and b != 0)


def _is_finite(value: float | None) -> bool:
    """Whether the value is known, and stays finite in any type that products are made in."""
    return value is not None and abs(value) <= _LARGEST

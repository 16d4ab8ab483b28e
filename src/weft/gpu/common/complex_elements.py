"""How kernels see complex elements: as words of 64 bits, or as pairs of real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.spec import Arithmetic, Layout, Mode, Strides
from weft.spec.dtypes import REAL_OF

KINDS = ("reals", "words", "pairs")  # elements of one part, of two in one word, and of two


def kind_of(layout: Layout | None) -> str:
    """Which of `KINDS` a tensor's elements are."""
    if layout is None or not layout.dtype.is_complex:
        return "reals"
    return "words" if layout.dtype is torch.complex64 and layout.alignment >= 8 else "pairs"


def as_elements(layout: Layout) -> Layout:
    """The layout as a kernel is told of it: of words, or of single parts. Only type and alignment matter there."""
    return layout._replace(dtype=torch.int64 if kind_of(layout) == "words" else real(layout.dtype))


def seen_as(tensor: Tensor, kind: str) -> Tensor:
    """The same memory as the kernel sees it; only its address and type matter."""
    if not tensor.dtype.is_complex:
        return tensor
    return tensor.view(torch.int64) if kind == "words" else torch.view_as_real(tensor)


def real(dtype: torch.dtype) -> torch.dtype:
    """The type of a number's parts."""
    return REAL_OF.get(dtype, dtype)


def strides_of_parts(modes: Sequence[Mode]) -> list[Mode]:
    """Modes whose strides count parts, two to an element: how far offsets reach."""
    return [mode._replace(strides=Strides(*(2 * stride for stride in mode.strides))) for mode in modes]


def real_arithmetic(arithmetic: Arithmetic) -> Arithmetic:
    """That of the real products that complex ones are made of."""
    return Arithmetic(real(arithmetic.product), real(arithmetic.accumulate), arithmetic.precision)

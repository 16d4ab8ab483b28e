"""Elements as a kernel sees them: Triton has no complex types and no words of 16 bytes.

What is only moved goes as integers, so that every bit arrives as it was. An element of 16 bytes is two words, an
innermost mode of extent 2. So are complex numbers that are computed with: two real numbers each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from weft.gpu.common.complex_elements import real
from weft.spec import Layout, Mode, Role, Strides
from weft.spec.permutation import Permutation

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def in_words(permutation: Permutation) -> Permutation:
    """The same permutation of elements that Triton has a type for."""
    dtype = permutation.x.dtype
    if permutation.is_move:
        word, parts = WORDS[min(dtype.itemsize, 8)], max(dtype.itemsize // 8, 1)
    elif dtype.is_complex:
        word, parts = real(dtype), 2
    else:
        return permutation
    modes = permutation.modes
    if parts > 1:
        wider = [mode._replace(strides=Strides(*(parts * stride for stride in mode.strides))) for mode in modes]
        added = int(permutation.c is not None)
        modes = (*wider, Mode(("re·im",), parts, Role.M, Strides(1, 0, added, 1)))

    def typed(layout: Layout) -> Layout:
        return layout._replace(dtype=word)

    c = typed(permutation.c) if permutation.c is not None else None
    return replace(permutation, modes=modes, compute=word, x=typed(permutation.x), c=c, d=typed(permutation.d))


def view_as(tensor: torch.Tensor | None, dtype: torch.dtype | None) -> Any:
    """The same memory as elements of another type; only its address and type matter to a kernel."""
    if tensor is None or dtype is None or tensor.dtype == dtype:
        return tensor
    if tensor.dtype.is_complex and dtype.itemsize < tensor.dtype.itemsize:
        tensor = torch.view_as_real(tensor)
    return tensor.view(dtype)

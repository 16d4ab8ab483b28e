"""Results that lie in one tensor, each made a view when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch


class Results(Sequence[torch.Tensor]):
    """Tensors of given shapes in one `buffer`, the i-th of which begins at element ``starts[i]``, without gaps."""

    def __init__(self, buffer: torch.Tensor, shapes: np.ndarray, starts: np.ndarray) -> None:
        self.buffer = buffer
        self._shapes, self._starts = shapes, starts

    def __len__(self) -> int:
        return len(self._shapes)

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, at: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(f"result {at} of {len(self)}")
        shape = self._shapes[at].tolist()
        start, size = int(self._starts[at]), 1
        for extent in shape:
            size *= extent
        return self.buffer[start : start + size].view(shape)

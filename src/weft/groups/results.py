"""Results stored in one tensor: views of it, made when the first is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import torch

from weft.spec.group import contiguous_strides


class Places:
    """Layout of results of given shapes, (results, rank), in one buffer: one after the other, without gaps."""

    def __init__(self, shapes: np.ndarray) -> None:
        self.shapes = shapes
        ends = np.cumsum(shapes.prod(1))
        self.starts = np.concatenate([[0], ends[:-1]])
        self.size = int(ends[-1])
        self._views: tuple[list[list[int]], list[list[int]], list[int]] | None = None

    def __len__(self) -> int:
        return len(self.shapes)

    def all(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """All results as views; their shapes and strides are kept for the next buffer."""
        if self._views is None:
            self._views = (self.shapes.tolist(), contiguous_strides(self.shapes).tolist(), self.starts.tolist())
        return list(map(buffer.as_strided, *self._views))


class GroupResults(Sequence[torch.Tensor]):
    """Tensors in one `buffer`, at their `places`: views, made when the first is read."""

    def __init__(self, buffer: torch.Tensor, places: Places) -> None:
        self.buffer, self._places = buffer, places
        self._views: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._views = self._views or self._places.all(self.buffer)
        return iter(self._views)

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, at: int | slice) -> torch.Tensor | list[torch.Tensor]:
        return (self._views or [*self])[at]

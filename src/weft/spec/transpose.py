"""A transposition in place: the matrices of a tensor, and the layout of their transposes in the same memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from weft.base.figures import counted
from weft.errors import ShapeError


@dataclass(frozen=True, slots=True)
class InPlace:
    """The matrices along two dimensions of a tensor, one for each index of the others.

    A square matrix may have any strides and keeps them. Any other lies dense, its rows or its columns contiguous up to
    a common step, and so does its transpose: what was row-major stays row-major.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dims: tuple[int, int]  # of the rows' and the columns' index

    @classmethod
    def of(cls, tensor: torch.Tensor, dims: Sequence[int]) -> InPlace:
        """Raises `ShapeError` for dims that are no two dimensions of `tensor` and for matrices that cannot stay."""
        try:
            first, second = (operator.index(dim) for dim in dims)
        except Exception:  # whatever an object of somebody else raises
            raise ShapeError(f"dims are two dimensions, not {dims!r}") from None
        rank = tensor.dim()
        for dim in (first, second):
            if not -rank <= dim < rank:
                raise ShapeError(f"dimension {dim} of dims is none of a tensor of {counted(rank, 'dimension')}")
        if first % rank == second % rank:
            raise ShapeError(f"dims {first} and {second} are the same dimension")
        found = cls(tuple(tensor.shape), tensor.stride(), (first % rank, second % rank))
        if not (found.square or found.trivial or found.row_major or found.column_major):
            rows, columns = found.extents
            steps = tuple(found.strides[dim] for dim in found.dims)
            raise ShapeError(
                f"matrices of {rows} x {columns} with strides {steps} are not dense: only square ones are transposed "
                "within gaps"
            )
        return found

    @property
    def extents(self) -> tuple[int, int]:
        """(rows, columns)"""
        rows, columns = self.dims
        return self.shape[rows], self.shape[columns]

    @property
    def square(self) -> bool:
        rows, columns = self.extents
        return rows == columns

    @property
    def trivial(self) -> bool:
        """Whether no element has to move."""
        return 1 in self.extents or 0 in self.shape

    @property
    def row_major(self) -> bool:
        rows, columns = self.dims
        return self.strides[rows] == self.strides[columns] * self.shape[columns]

    @property
    def column_major(self) -> bool:
        rows, columns = self.dims
        return self.strides[columns] == self.strides[rows] * self.shape[rows]

    def result_strides(self) -> tuple[int, ...]:
        """Strides of the transposes, in the tensor's order of dimensions."""
        strides = list(self.strides)
        first, second = self.dims
        if self.trivial:
            strides[first], strides[second] = strides[second], strides[first]
        elif not self.square:
            rows, columns = self.extents
            step = min(strides[first], strides[second])
            inner, outer = (second, first) if self.row_major else (first, second)
            strides[inner], strides[outer] = step, step * (rows if self.row_major else columns)
        return tuple(strides)

    def result_shape(self) -> tuple[int, ...]:
        shape = list(self.shape)
        first, second = self.dims
        shape[first], shape[second] = shape[second], shape[first]
        return tuple(shape)

    def stacks(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """The matrices as views (batch, rows, columns), those of one stride together.

        Row-major where they are not square: a column-major matrix is the row-major one of its transpose.
        """
        size, strides, offsets = self.places()
        base = int(tensor.storage_offset())
        for offset in offsets:
            yield tensor.as_strided(size, strides, base + offset)

    def places(self) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
        """The shape and strides of the views of `stacks`, and where each begins, from the tensor's first element."""
        first, second = self.dims
        if not self.square and not self.row_major:
            first, second = second, first
        others = [at for at in range(len(self.shape)) if at not in self.dims and self.shape[at] != 1]
        others.sort(key=lambda at: self.strides[at])
        count, step, left = _together([(self.shape[at], self.strides[at]) for at in others])
        size = (count, self.shape[first], self.shape[second])
        strides = (step, self.strides[first], self.strides[second])
        corners = itertools.product(*(range(extent) for extent, _ in left))
        return size, strides, [
            sum(index * stride for index, (_, stride) in zip(corner, left, strict=True)) for corner in corners
        ]  # fmt: skip


def _together(dims: Sequence[tuple[int, int]]) -> tuple[int, int, list[tuple[int, int]]]:
    """The longest run of (extent, stride), smallest stride first, that is one dimension: (extent, stride, the rest)."""
    best: list[int] = []
    for start in range(len(dims)):
        run = [start]
        for at in range(start + 1, len(dims)):
            if dims[at][1] == dims[run[-1]][0] * dims[run[-1]][1]:
                run.append(at)
        if math.prod(dims[at][0] for at in run) > math.prod(dims[at][0] for at in best):
            best = run
    if not best:
        return 1, 0, list(dims)
    rest = [dim for at, dim in enumerate(dims) if at not in best]
    return math.prod(dims[at][0] for at in best), dims[best[0]][1], rest

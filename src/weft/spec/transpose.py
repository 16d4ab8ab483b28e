"""A transposition in place: the matrices of a tensor, and the layout of their transposes in the same memory."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from weft.base.figures import counted
from weft.errors import ShapeError
from weft.spec.canonical import merged
from weft.spec.contraction import Mode, Role, Strides


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
        others = [
            Mode((at,), extent, Role.BATCH, Strides(stride, 0, 0, 0))
            for at, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True))
            if at not in self.dims and extent != 1
        ]
        runs = merged(sorted(others, key=lambda mode: -mode.strides.a))[::-1]
        longest, *left = sorted(runs, key=lambda mode: -mode.extent) or [Mode((), 1, Role.BATCH, Strides(0, 0, 0, 0))]
        size = (longest.extent, self.shape[first], self.shape[second])
        strides = (longest.strides.a, self.strides[first], self.strides[second])
        corners = itertools.product(*([index * mode.strides.a for index in range(mode.extent)] for mode in left))
        return size, strides, [sum(corner) for corner in corners]

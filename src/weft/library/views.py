"""A part of a contraction, and how torch sees its tensors: one dimension for each mode, or for all modes of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from weft.spec import Contraction, Layout, Mode

A, B, C, D = range(4)  # places among a mode's strides
FIRST = 4  # and that of the first auxiliary operand
LONGEST = 2**31  # extents and strides that BLAS libraries do not count
DIMS = {"cuda": 25, "hip": 25}  # dimensions that torch's elementwise operations take on a device; no limit elsewhere

Group = tuple[int, ...]  # modes of one role by their numbers, outermost first


class View(NamedTuple):
    """Shape, strides and first element of a tensor as it is seen; `whole`: the tensor has that layout already."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0
    whole: bool = False

    def of(self, tensor: Tensor, aux: Sequence[Tensor | None] = ()) -> Tensor:
        """The tensor as it is seen, which takes nothing beside it."""
        if self.whole:
            return tensor
        if self.start:
            return tensor.as_strided(self.shape, self.strides, int(tensor.storage_offset()) + self.start)
        return tensor.as_strided(self.shape, self.strides)

    def in_layout(self, layout: Layout) -> View:
        """The view of tensors of a layout, which may be views as they are."""
        same = not self.start and self.shape == layout.shape and self.strides == layout.strides
        return self._replace(whole=True) if same else self

    def layout(self, of: Layout) -> Layout:
        """That of the view of a tensor with this layout."""
        return of._replace(shape=self.shape, strides=self.strides)


class MergedModes(NamedTuple):
    """Modes that are contiguous together, as one dimension."""

    extent: int
    stride: int


class Frame(NamedTuple):
    """A part of a contraction: where it begins along each mode, and how much of it it has."""

    modes: tuple[Mode, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]

    @classmethod
    def whole(cls, contraction: Contraction) -> Frame:
        modes = contraction.modes
        return cls(modes, (0,) * len(modes), tuple([mode.extent for mode in modes]))

    def size(self, modes: Sequence[int]) -> int:
        return math.prod([self.extents[at] for at in modes])

    def shape(self, modes: Sequence[int]) -> tuple[int, ...]:
        """One dimension for each mode; one of extent 1 where there are none, as 0-d tensors are promoted otherwise."""
        return tuple([self.extents[at] for at in modes]) or (1,)

    def view(self, modes: Sequence[int], place: int, shared: bool = False) -> View:
        """One dimension for each mode. `shared`: of extent 1 where the tensor does not move along it."""
        strides = [self.modes[at].strides[place] for at in modes]
        shape = [self.extents[at] for at in modes]
        if shared:
            shape = [extent if stride else 1 for extent, stride in zip(shape, strides, strict=True)]
        return View(tuple(shape) or (1,), tuple(strides) or (1,), self.start(place))

    def start(self, place: int) -> int:
        """The place of the part's first element."""
        return sum([start * mode.strides[place] for start, mode in zip(self.starts, self.modes, strict=True) if start])

    def run(self, group: Group, place: int) -> MergedModes | None:
        """The modes of a group as one dimension of a tensor; None where its layout does not allow that."""
        if not group:
            return MergedModes(1, 1)
        stride = self.modes[group[-1]].strides[place]
        extent = 1
        for at in reversed(group):
            if self.modes[at].strides[place] != stride * extent:
                return None
            extent *= self.extents[at]
        return MergedModes(extent, stride)

    def matrix(self, groups: tuple[Group, Group, Group], place: int, *, copied: bool = False) -> View | None:
        """[batch, rows, columns] of a tensor, [rows, columns] without a batch; None where BLAS does not take it so.

        `copied`: any strides will do.
        """
        found: list[MergedModes] = []
        for group in groups:
            if (run := self.run(group, place)) is None or max(run) >= LONGEST:
                return None
            found.append(run)
        batch, rows, columns = found
        if not copied and not _is_matrix(rows, columns):
            return None
        if rows.extent == 1 and columns.stride == 1:  # as torch lays a row out: a smaller step is not for fast kernels
            rows = MergedModes(1, columns.extent)
        kept = (batch, rows, columns) if groups[0] else (rows, columns)
        return View(tuple([run.extent for run in kept]), tuple([run.stride for run in kept]), self.start(place))


def _is_matrix(rows: MergedModes, columns: MergedModes) -> bool:
    by_rows = (columns.stride == 1 or columns.extent == 1) and (rows.stride >= columns.extent or rows.extent == 1)
    by_columns = (rows.stride == 1 or rows.extent == 1) and (columns.stride >= rows.extent or columns.extent == 1)
    return by_rows or by_columns

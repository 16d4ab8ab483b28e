"""Blocks moved by a table of offsets, one for each element: for shapes at which torch's strided copies crawl.

A strided copy steps once for every pair of innermost dimensions. Where these are short, as they are where a tensor has
many small modes in another order, gathering by a table that was written once is many times faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from weft.cpu.index_groups import Group

Extents = tuple[int, ...]

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class Table(NamedTuple):
    """Where the elements of a block lie, counted from its first, in the order of the modes in a buffer."""

    offsets: torch.Tensor  # int64, one for each element
    reach: int  # elements from the first to one past the last

    def gather(self, source: torch.Tensor, start: int, to: torch.Tensor) -> None:
        """Copy the block that starts at element `start` of the memory of `source`; both have one type."""
        memory = _words(source).as_strided((self.reach,), (1,), start)
        torch.index_select(memory, 0, self.offsets, out=_words(to))

    def scatter(self, values: torch.Tensor, to: torch.Tensor, start: int) -> None:
        """Copy such a block back; what lies between its elements is not touched."""
        _words(to).as_strided((self.reach,), (1,), start).scatter_(0, self.offsets, _words(values))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: of half-precision types torch's scatter would rewrite all that it spans."""
    return tensor.view(_WORDS[tensor.dtype.itemsize])


def block_shapes(order: Group, tile: Sequence[int], extents: Sequence[int]) -> Iterable[Extents]:
    """The shapes that blocks have: whole along each mode, or what is left at its end."""
    choices = [{tile[at], extents[at] % tile[at] or tile[at]} for at in order]
    return itertools.product(*choices)


def table_elements(order: Group, tile: Sequence[int], extents: Sequence[int]) -> int:
    """Elements of the tables for all these shapes."""
    return math.prod(tile[at] + extents[at] % tile[at] for at in order)


def tables(
    order: Group, tile: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> Mapping[Extents, Table]:
    """A table for each shape of a block whose modes lie in `order`, outermost first; `strides` are its tensor's."""
    steps = [strides[at] for at in order]
    return {shape: _table(shape, steps) for shape in block_shapes(order, tile, extents)}


def _table(shape: Extents, steps: Sequence[int]) -> Table:
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for extent, step in zip(shape, steps, strict=True):
        inner = torch.arange(extent, dtype=torch.int64, device="cpu") * step
        offsets = (offsets[:, None] + inner).reshape(-1)
    return Table(offsets, 1 + sum(step * (extent - 1) for extent, step in zip(shape, steps, strict=True)))

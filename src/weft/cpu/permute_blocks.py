"""How a permutation is cut into blocks on the CPU: what is moved as one word, and which modes a block runs along.

A block holds a run of the source and a run of D, so that whole cache lines are read and whole cache lines are written,
and is small enough to stay in cache in between. Its modes fall into groups, here by the letters that the code uses:

    group      a block's modes ...
    run        along which both X and D are contiguous: words that stay together
    columns    of X's run: innermost in the block as it is read
    rows       of D's run: innermost in the block as it is written
    others     all further ones
    repeated   along which X repeats itself: not part of the block, D's copies of it are written from one
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.cpu.shuffle import WORDS
from weft.spec import Mode, Strides
from weft.spec.permutation import Permutation

Group = tuple[int, ...]  # positions among the modes


class Units(NamedTuple):
    """What a permutation moves: its modes, counted in units of one type, which may hold several elements."""

    modes: tuple[Mode, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Blocks:
    """One way to cut a permutation: extent of a block along every mode, and the groups of modes within it."""

    tile: tuple[int, ...]
    run: Group
    columns: Group
    rows: Group
    others: Group
    repeated: Group

    def __str__(self) -> str:
        named = (("others", self.others), ("rows", self.rows), ("columns", self.columns), ("run", self.run))
        return " x ".join(f"{name} {self.size(group)}" for name, group in named if group) or "one element"

    @property
    def read_order(self) -> Group:
        """Modes of a block as it is read, outermost first."""
        return (*self.others, *self.rows, *self.columns, *self.run)

    @property
    def written_order(self) -> Group:
        return (*self.others, *self.columns, *self.rows, *self.run)

    def size(self, group: Sequence[int]) -> int:
        return math.prod(self.tile[at] for at in group)


def units(permutation: Permutation) -> Units:
    """The widest words, up to 16 bytes, that a plain move can be made in; otherwise the elements themselves."""
    modes, dtype = permutation.modes, permutation.x.dtype
    if not permutation.is_move:
        return Units(modes, dtype)
    size = dtype.itemsize
    for width in sorted(WORDS, reverse=True):
        if width > size and _folds(permutation, width // size, width):
            return Units(_folded(modes, width // size), WORDS[width])
    return Units(modes, WORDS[size])


def stored_type(permutation: Permutation, moved: Units) -> torch.dtype:
    """The type in which blocks are transposed and written."""
    if permutation.is_move:
        return moved.dtype
    return permutation.scale if permutation.scaled else permutation.d.dtype


def read_type(permutation: Permutation, moved: Units) -> torch.dtype:
    """The type of the buffer that blocks are read into: the function's argument, where there is one."""
    return permutation.compute if permutation.fn is not None else stored_type(permutation, moved)


def cut(modes: Sequence[Mode], size: int, run_bytes: tuple[int, int], block_bytes: int, *, repeats: bool) -> Blocks:
    """Blocks of about `block_bytes` whose runs reach `run_bytes` in X and in D; units have `size` bytes.

    With `repeats` the modes that X lacks are kept out of the blocks.
    """
    every = range(len(modes))
    repeated = tuple(at for at in every if repeats and modes[at].strides.a == 0)
    run = tuple(at for at in every if modes[at].strides.a == modes[at].strides.d == 1)
    free = [at for at in every if at not in repeated and at not in run]
    in_x = sorted((at for at in free if modes[at].strides.a), key=lambda at: modes[at].strides.a)
    in_d = sorted(free, key=lambda at: modes[at].strides.d)

    tile = [1] * len(modes)
    room = max(block_bytes // size, 1)
    for at in run:
        tile[at] = even_part(modes[at].extent, room)
    together = math.prod(tile[at] for at in run)
    reach_x, reach_d = (max(wanted // (size * together), 1) for wanted in run_bytes)
    along_x = _grow(tile, modes, in_x, reach_x)
    along_d = _grow(tile, modes, in_d, reach_d)
    for at in in_d:  # fill the block up, nearest in D first
        elsewhere = math.prod(tile) // tile[at]
        tile[at] = max(tile[at], even_part(modes[at].extent, max(room // elsewhere, 1)))

    columns = [at for at in along_x if at not in along_d or along_x.index(at) < along_d.index(at)]
    rows = [at for at in along_d if at not in columns]
    others = [at for at in in_d if at not in columns and at not in rows]
    for at in repeated:
        tile[at] = max(modes[at].extent, 1)
    return Blocks(tuple(tile), run, tuple(columns[::-1]), tuple(rows[::-1]), tuple(others[::-1]), repeated)


def _grow(tile: list[int], modes: Sequence[Mode], order: Sequence[int], reach: int) -> list[int]:
    """Lengthen a block along the first modes of an order until their run is `reach` long; returns those modes."""
    taken: list[int] = []
    length = 1
    for at in order:
        if length >= reach:
            break
        wanted = min(modes[at].extent, math.ceil(reach / length))
        tile[at] = max(tile[at], even_part(modes[at].extent, wanted))
        length *= tile[at]
        taken.append(at)
    return taken


def _folds(permutation: Permutation, fold: int, width: int) -> bool:
    """Whether `fold` neighbours stay together on the way and start at multiples of `width` bytes."""
    if not permutation.modes or width > min(permutation.x.alignment, permutation.d.alignment):
        return False
    *outer, inner = permutation.modes
    if inner.strides.a != 1 or inner.strides.d != 1 or inner.extent % fold:
        return False
    return all(mode.strides.a % fold == 0 and mode.strides.d % fold == 0 for mode in outer)


def _folded(modes: tuple[Mode, ...], fold: int) -> tuple[Mode, ...]:
    *outer, inner = modes
    folded = [
        Mode(mode.labels, mode.extent, mode.role, Strides(mode.strides.a // fold, 0, 0, mode.strides.d // fold))
        for mode in outer
    ]
    if inner.extent > fold:
        folded.append(Mode(inner.labels, inner.extent // fold, inner.role, Strides(1, 0, 0, 1)))
    return tuple(folded)


def even_part(extent: int, reach: int) -> int:
    """The least part of `extent` that needs no more parts than `reach` does."""
    if extent <= 1 or reach >= extent:
        return max(extent, 1)
    return math.ceil(extent / math.ceil(extent / reach))

"""What the permutation kernel takes of a schedule."""

from __future__ import annotations

from typing import NamedTuple

from weft.gpu.common.tiling import TiledDim


class PermuteParams(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    r: TiledDim  # in the order of the source, its fastest axis first
    w: TiledDim  # the same axes in the order of D
    tile: tuple[int, ...]  # of `w`
    turn: tuple[int, ...]  # dimensions of the tile of `r` in the order of `w`
    wide: tuple[bool, ...]
    wide_index: bool

"""How a contraction is cut into tiles, as plain numbers that a kernel takes as compile-time constants.

A *side* of the contraction (batch, m, n or k) is an ordered list of *axes*. An axis is one mode, or several flattened
into one index, innermost first; a block covers `tile` consecutive indices of it. One flattened axis wastes no lanes on
extents that are no power of two; two axes on one side let a tile hold a run of two different modes, as it must where an
operand is contiguous along one of them and D along the other (the per-mode tiles of the GETT scheme).

Within a tile the axes of a side are flattened again, the last one fastest: that is the order in which operands are
loaded. The result is stored with every axis as a dimension of its own, so that D's contiguous mode is found wherever
it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from weft.spec import Mode

A, B, C, D = range(4)  # positions in `Mode.strides` and `Axis.strides`; auxiliary operands of the contraction follow
TENSORS = 4  # of a description without auxiliary operands

MAX_DIVISOR = 16  # elements: beyond 16 bytes no access gets wider


class Run(NamedTuple):
    """What the compiler is told of a vector of offsets: aligned groups of `length` are consecutive, and each group
    starts at a multiple of `divisor` (both powers of two, in elements)."""

    length: int
    divisor: int


class Axis(NamedTuple):
    """One axis of a side, as a kernel sees it. Tuples go over the flattened modes, innermost first."""

    tile: int
    inner: int  # product of the tiles of the axes after this one on its side
    blocks: int  # tiles along this axis, at least 1
    pitch: int  # blocks of the side per step along this axis
    place: int  # dimension of the stored tile, -1 where the tile is one index
    exact: bool  # the tiles end where the axis ends: nothing to mask
    extent: int
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # [A, B, C, D, *aux][mode]
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]: whether the tensor moves along this axis
    runs: tuple[Run, ...]  # [A, B, C, D, *aux]: of this axis alone
    stretches: tuple[int, ...]  # [A, B, C, D, *aux]: elements of a tile that lie together, aligned or not
    step: int  # indices from one block to the next: the tile, or more where this is a part of the block
    first: int  # index within the block that the tile starts at: 0, or where this part begins


class TiledDim(NamedTuple):
    """All axes of one role, and the whole side's offsets in each tensor."""

    axes: tuple[Axis, ...]
    tile: int
    blocks: int
    exact: bool
    runs: tuple[Run, ...]  # [A, B, C, D, *aux]
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]: whether the tensor moves along this side


@dataclass(frozen=True, slots=True)
class TiledAxis:
    """The choice behind one axis: which modes, innermost first, and how many indices of them a block takes.

    A block may consist of several parts; then each of them is a cut, with a tile, a first index and the block's step.
    """

    modes: tuple[Mode, ...]
    tile: int
    placed: bool = False  # a dimension of the stored tile even where the tile is one index
    parts_step: int = 0  # indices from one block to the next where the tile is but a part of it, else 0
    first: int = 0  # index within the block that the part starts at

    @property
    def extent(self) -> int:
        return math.prod(mode.extent for mode in self.modes)

    @property
    def step(self) -> int:
        return self.parts_step or self.tile

    @property
    def blocks(self) -> int:
        return -(-self.extent // self.step)

    def __str__(self) -> str:
        return f"{'·'.join(mode.name for mode in self.modes)}:{self.tile}"


def tiled_dim(cuts: Sequence[TiledAxis], first_place: int = 0, tensors: int = TENSORS) -> TiledDim:
    """The side that `cuts` describe, the fastest axis of the tile last; `tensors` counts auxiliary operands.

    Blocks are numbered so that neighbours in time are neighbours in memory, see `_pitches`. Remembered: a plan looks at
    hundreds of schedules, and they share their sides.
    """
    return _tiled_dim(tuple(cuts), first_place, tensors)


@lru_cache(maxsize=8192)
def _tiled_dim(cuts: tuple[TiledAxis, ...], first_place: int, tensors: int) -> TiledDim:
    tile = math.prod(cut.tile for cut in cuts)
    pitches = _pitches(cuts)
    axes, inner, place = [], tile, first_place
    for cut, pitch in zip(cuts, pitches, strict=True):
        inner //= cut.tile
        placed = cut.placed or cut.tile > 1
        axes.append(_axis(cut, inner, pitch, place if placed else -1, tensors))
        place += placed
    return TiledDim(
        axes=tuple(axes),
        tile=tile,
        blocks=math.prod(cut.blocks for cut in cuts),
        exact=all(axis.exact for axis in axes),
        runs=tuple(_dim_run(cuts, tensor) for tensor in range(tensors)),
        present=(*(any(axis.present[tensor] for axis in axes) for tensor in range(tensors)), True),
    )


def rest(modes: Sequence[Mode], cuts: Sequence[TiledAxis]) -> list[TiledAxis]:
    """The modes that no cut names, each as an axis of single indices."""
    named = {mode for cut in cuts for mode in cut.modes}
    return [TiledAxis((mode,), 1) for mode in modes if mode not in named]


def axes_text(cuts: Sequence[TiledAxis]) -> str:
    """The cuts that span more than one index, for messages."""
    return " ".join(str(cut) for cut in cuts if cut.tile > 1)


def by_stride(modes: Sequence[Mode], tensor: int) -> tuple[Mode, ...]:
    """Modes as one tensor lies, innermost first; those it does not have come last."""
    return tuple(sorted(modes, key=lambda mode: mode.strides[tensor] or math.inf))


def nearest(modes: Sequence[Mode], tensor: int) -> Mode | None:
    """The mode along which a tensor is contiguous, if it is among these."""
    return next((mode for mode in modes if mode.strides[tensor] == 1), None)


def run_orders(modes: Sequence[Mode], *tensors: int) -> list[tuple[Mode, ...]]:
    """The orders, innermost first, in which some of the tensors is contiguous; the first tensor's where none is."""
    runs = [by_stride(modes, tensor) for tensor in tensors if nearest(modes, tensor) is not None]
    return list(dict.fromkeys(runs or [by_stride(modes, tensors[0])]))


def _pitches(cuts: Sequence[TiledAxis]) -> list[int]:
    """Blocks of the side per step along each cut.

    Cuts that divide a run come first, those of the fewest blocks before the others: memory lines that two blocks share
    are then touched at about the same time. Whatever order the cuts stand in, the pitches are the same for the same
    cuts: A and B take the axes of k in different orders and must meet in every block.
    """

    def step(at: int) -> tuple[bool, int, int, str]:
        cut = cuts[at]
        stride = min((mode.strides.d or mode.strides.a for mode in cut.modes), default=0)
        return cut.tile == 1, cut.blocks if cut.tile > 1 else 0, stride, str(cut)

    pitches, pitch = [0] * len(cuts), 1
    for at in sorted(range(len(cuts)), key=step):
        pitches[at] = pitch
        pitch *= max(cuts[at].blocks, 1)
    return pitches


def _axis(cut: TiledAxis, inner: int, pitch: int, place: int, tensors: int) -> Axis:
    return Axis(
        tile=cut.tile,
        inner=inner,
        blocks=max(cut.blocks, 1),
        pitch=pitch,
        place=place,
        exact=(cut.blocks - 1) * cut.step + cut.first + cut.tile <= cut.extent,
        extent=cut.extent,
        extents=tuple(mode.extent for mode in cut.modes),
        strides=tuple(tuple(mode.strides[tensor] for mode in cut.modes) for tensor in range(tensors)),
        present=(*(any(mode.strides[tensor] for mode in cut.modes) for tensor in range(tensors)), True),
        runs=tuple(_dim_run([cut], tensor) for tensor in range(tensors)),
        stretches=tuple(max(1, min(cut.tile, _stretch(cut, tensor))) for tensor in range(tensors)),
        step=cut.step,
        first=cut.first,
    )


def _dim_run(cuts: Sequence[TiledAxis], tensor: int) -> Run:
    """The longest aligned run that the offsets of these cuts surely have, and the divisor of its starts."""
    last = cuts[-1] if cuts else TiledAxis((), 1)
    stretch = _stretch(last, tensor)
    # Largest power of two that divides the tile, where it starts, and the stretch of memory before the first jump.
    aligned = math.gcd(last.tile, last.step, last.first)
    length = last.tile if stretch == last.extent else math.gcd(aligned, stretch)
    divisor, lies = MAX_DIVISOR, 1
    for cut in cuts:
        for mode in cut.modes:
            stride = mode.strides[tensor]
            within = cut is last and stride == lies and length > 1
            lies *= mode.extent if within else 1
            divisor = math.gcd(divisor, math.gcd(length, aligned) if within else stride)
    return Run(length, divisor)


def _stretch(cut: TiledAxis, tensor: int) -> int:
    """Elements along a cut from one jump in memory to the next."""
    stretch = 1
    for mode in cut.modes:
        if mode.strides[tensor] != stretch:
            break
        stretch *= mode.extent
    return stretch

"""How a contraction is divided into tiles, as plain numbers that a kernel takes as compile-time constants.

A *dim* of the contraction (batch, m, n or k) is an ordered list of *tiled axes*. An axis is one mode, or several modes
flattened into one index, innermost first; an output tile covers `tile` consecutive indices of it. One flattened axis
wastes no lanes on extents that are no power of two. Two axes in one dim let a tile hold runs of two different modes, as
it must where an operand is contiguous along one of them and D along the other (the per-mode tiles of GETT: P. Springer
and P. Bientinesi, "Design of a High-Performance GEMM-like Tensor-Tensor Multiplication", 2018).

Within a tile the axes of a dim are flattened again, the last one fastest: operands are loaded in that order. The result
is stored with every axis as a dimension of its own, so that D's contiguous mode is found wherever it is.

A planner asks for the same axes hundreds of times, so what one axis is to one tensor is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from weft.gpu.common.constraints import VECTOR
from weft.spec import Contraction, Layout, Mode, Role, Strides
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation

A, B, C, D = range(4)  # positions in the strides of modes and axes; auxiliary operands of the contraction follow
TENSORS = 4  # of a description without auxiliary operands

LONGEST_TILE = 4096  # no tile is longer along one axis
MAX_DIVISOR = VECTOR  # elements, of one byte at least: no access gets wider

_EXTENT = attrgetter("extent")  # read by C code: planning asks for extents and strides some hundred thousand times
_STRIDES = attrgetter("strides")
_TILE = attrgetter("tile")


class AlignedRun(NamedTuple):
    """A statement to the compiler on a vector of offsets: aligned groups of `length` are consecutive, and each group
    starts at a multiple of `divisor` (both powers of two, in elements)."""

    length: int
    divisor: int


class KernelAxis(NamedTuple):
    """One axis of a dim, as a kernel sees it. Tuples go over the flattened modes, innermost first."""

    tile: int
    inner: int  # product of the tiles of the axes after this one in its dim
    blocks: int  # tiles along this axis, at least 1
    pitch: int  # tiles of the dim per step along this axis
    place: int  # dimension of the stored tile, -1 where the tile is one index
    exact: bool  # the tiles end where the axis ends: nothing to mask
    extent: int
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # [A, B, C, D, *aux][mode]
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]: whether the tensor moves along this axis
    runs: tuple[AlignedRun, ...]  # [A, B, C, D, *aux]: of this axis alone
    stretches: tuple[int, ...]  # [A, B, C, D, *aux]: elements of a tile that are contiguous, aligned or not
    step: int  # indices from one output tile to the next: `tile`, or more where this is a part of the output tile
    first: int  # index within the output tile that this part begins at, else 0


class TiledDim(NamedTuple):
    """All axes of one dim, and the whole dim's offsets in each tensor."""

    axes: tuple[KernelAxis, ...]
    tile: int
    blocks: int  # tiles along the dim
    exact: bool
    runs: tuple[AlignedRun, ...]  # [A, B, C, D, *aux]
    present: tuple[bool, ...]  # [A, B, C, D, *aux, any]: whether the tensor moves along this dim


class TiledAxis(NamedTuple):
    """The choice behind one axis: which modes, innermost first, and how many indices of them an output tile takes.

    An output tile may consist of several parts (320 columns are 256 and 64). Then each part is an axis with a tile and
    a first index of its own and with the step of the whole output tile.
    """

    modes: tuple[Mode, ...]
    tile: int
    placed: bool = False  # a dimension of the stored tile even where the tile is one index
    whole_step: int = 0  # indices from one output tile to the next where `tile` is but a part of it, else 0
    first: int = 0  # index within the output tile that the part begins at

    @property
    def extent(self) -> int:
        return math.prod(map(_EXTENT, self.modes))

    @property
    def step(self) -> int:
        return self.whole_step or self.tile

    @property
    def blocks(self) -> int:
        """Tiles along the axis."""
        return -(-math.prod(map(_EXTENT, self.modes)) // (self.whole_step or self.tile))

    def __str__(self) -> str:
        return f"{'·'.join([mode.name for mode in self.modes])}:{self.tile}"


@dataclass(frozen=True, slots=True)
class TiledSchedule:
    """Tiles along the modes of m, n and k; the axes of a dim are ordered, the last one fastest within the tile."""

    m: tuple[TiledAxis, ...]
    n: tuple[TiledAxis, ...]
    k: tuple[TiledAxis, ...]
    warps: int
    stages: int

    @property
    def tile(self) -> tuple[int, int, int]:  # (M, N, K)
        return math.prod(map(_TILE, self.m)), math.prod(map(_TILE, self.n)), math.prod(map(_TILE, self.k))


class OutputTiles(NamedTuple):
    """The tiles of D: what kernels take for storing them, or for adding up their split-K partials."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, ...]  # extents of the stored tile: every axis longer than one index
    group: int
    blocks: int  # output tiles
    splits: int  # programs that share the sum of each output tile
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


class _InTensor(NamedTuple):
    """One axis in one tensor."""

    strides: tuple[int, ...]
    present: bool
    run: AlignedRun
    stretch: int
    divisor: int  # of the offsets of all indices, at most `MAX_DIVISOR`: what counts where another axis is faster


def tiled_dim(axes: Sequence[TiledAxis], first_place: int = 0, tensors: int = TENSORS) -> TiledDim:
    """The dim that these axes make, the fastest axis of the tile last; `tensors` counts auxiliary operands.

    Tiles are numbered so that neighbours in time are neighbours in memory, see `_pitches`.
    """
    return _tiled_dim(tuple(axes), first_place, tensors)


@lru_cache(maxsize=8192)
def _tiled_dim(axes: tuple[TiledAxis, ...], first_place: int, tensors: int) -> TiledDim:
    tile = inner = math.prod([axis.tile for axis in axes])
    made, place, blocks, exact = [], first_place, 1, True
    present = [False] * tensors
    for axis, pitch in zip(axes, _pitches(axes), strict=True):
        inner //= axis.tile
        placed = axis.placed or axis.tile > 1
        made.append(_axis(axis, tensors)._replace(inner=inner, pitch=pitch, place=place if placed else -1))
        place += placed
        blocks *= axis.blocks
        exact &= made[-1].exact
        present = [one or other for one, other in zip(present, made[-1].present, strict=False)]
    return TiledDim(tuple(made), tile, blocks, exact, _dim_runs(axes, tensors), (*present, True))


def rest(modes: Sequence[Mode], axes: Sequence[TiledAxis]) -> list[TiledAxis]:
    """The modes that no axis names, each as an axis of single indices."""
    named = [mode for axis in axes for mode in axis.modes]
    if len(named) == len(modes):
        return []
    return [TiledAxis((mode,), 1) for mode in modes if mode not in named]


def tiled_output(
    contraction: Contraction, m_axes: Sequence[TiledAxis], n_axes: Sequence[TiledAxis], k_axes: Sequence[TiledAxis],
    splits: int, group: int,
) -> OutputTiles:  # fmt: skip
    """The tiles of D along these axes; other modes of m and n are taken one index at a time, and so is the batch."""
    tensors = TENSORS + len(contraction.aux)
    batch = tiled_dim(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors)
    m = tiled_dim([*rest(contraction.of_role(Role.M), m_axes), *m_axes], tensors=tensors)
    stored_of_m = [axis.tile for axis in m.axes if axis.place >= 0]
    n = tiled_dim([*rest(contraction.of_role(Role.N), n_axes), *n_axes], len(stored_of_m), tensors)
    stored = (*stored_of_m, *[axis.tile for axis in n.axes if axis.place >= 0])
    blocks, far = contraction.batch * m.blocks * n.blocks, wide_index((*m_axes, *n_axes, *k_axes))
    return OutputTiles(batch, m, n, stored, group, blocks, splits, wide(contraction.modes, tensors), far)


def axes_text(axes: Sequence[TiledAxis]) -> str:
    """The axes that span more than one index, for messages."""
    return " ".join([str(axis) for axis in axes if axis.tile > 1])


def by_stride(modes: Sequence[Mode], tensor: int) -> tuple[Mode, ...]:
    """Modes in the order of one tensor's layout, innermost first; those it does not have come last."""
    strides = [mode.strides[tensor] or math.inf for mode in modes]
    return tuple([modes[at] for at in sorted(range(len(modes)), key=strides.__getitem__)])


def placed(row: Sequence[Mode], others: Sequence[Mode], pitch: int) -> dict[Mode, int]:
    """Strides of a workspace of rows so many elements apart; both groups stand innermost first."""
    steps: dict[Mode, int] = {}
    for group, step in ((row, 1), (others, pitch)):
        for mode in group:
            steps[mode] = step
            step *= mode.extent
    return steps


def workspace_of(steps: dict[Mode, int], dtype: torch.dtype) -> Layout:
    """A workspace of these strides, its outermost mode first."""
    outer_first = sorted(steps, key=lambda mode: -steps[mode])
    return Layout(tuple(mode.extent for mode in outer_first), tuple(steps[mode] for mode in outer_first), dtype)


def moving(
    strides: Iterable[tuple[Mode, Strides]], x: Layout, d: Layout, compute: torch.dtype, **others: Any
) -> Permutation:
    """The permutation of a contraction's modes that have these strides in it."""
    modes = [Mode(mode.labels, mode.extent, Role.M, own) for mode, own in strides]
    modes.sort(key=lambda mode: -mode.strides.d)
    return Permutation(tuple(merged(modes)), x=x, d=d, compute=compute, **{"c": None, **others})


def index_count(modes: Sequence[Mode]) -> int:
    """Indices of some modes together."""
    return math.prod(map(_EXTENT, modes))


def nearest(modes: Sequence[Mode], tensor: int) -> Mode | None:
    """The mode along which a tensor is contiguous, if it is among these."""
    for mode in modes:
        if mode.strides[tensor] == 1:
            return mode
    return None


def outer_axes(
    modes: Sequence[Mode], operand: int, tile: int, runs: Sequence[int], least: int
) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of m or n: in D's order, in the operand's, or along both runs, of so many
    indices of the operand's own and at least as many others."""
    by_d = by_stride(modes, D)
    for order in dict.fromkeys((by_d, by_stride(modes, operand))):
        yield (TiledAxis(order, tile),)
    near = nearest(modes, operand)
    if near is not None and near is not by_d[0]:
        others = tuple(mode for mode in by_d if mode is not near)
        for run in runs:
            if tile // run >= least and run < 2 * near.extent:
                yield (TiledAxis(others, tile // run), TiledAxis((near,), run))


def run_orders(modes: Sequence[Mode], *tensors: int) -> list[tuple[Mode, ...]]:
    """The orders, innermost first, in which some of the tensors is contiguous; the first tensor's where none is."""
    runs = [by_stride(modes, tensor) for tensor in tensors if nearest(modes, tensor) is not None]
    return list(dict.fromkeys(runs or [by_stride(modes, tensors[0])]))


def _pitches(axes: Sequence[TiledAxis]) -> list[int]:
    """Tiles of the dim per step along each axis.

    Axes that divide a run come first, those of the fewest tiles before the others: memory lines that two tiles share
    are then touched at about the same time. The order in which the axes are given does not matter: A and B take the
    axes of k in different orders and must meet in every tile.
    """
    keys: list[tuple[object, ...]] = []
    for axis in axes:
        stride = min([strides[D] or strides[A] for strides in map(_STRIDES, axis.modes)], default=0)
        keys.append((axis.tile == 1, axis.blocks if axis.tile > 1 else 0, stride))
    if len(set(keys)) < len(keys):
        keys = [(*key, str(axis)) for key, axis in zip(keys, axes, strict=True)]
    pitches, pitch = [0] * len(axes), 1
    for at in sorted(range(len(axes)), key=keys.__getitem__):
        pitches[at] = pitch
        pitch *= max(axes[at].blocks, 1)
    return pitches


@lru_cache(maxsize=8192)
def _axis(axis: TiledAxis, tensors: int) -> KernelAxis:
    """An axis alone in its dim; `inner`, `pitch` and `place` are the dim's to say."""
    extent, step, tile = axis.extent, axis.whole_step or axis.tile, axis.tile
    blocks = -(-extent // step)
    placed = [_in_tensor(axis, tensor) for tensor in range(tensors)]
    strides, present, runs, stretches, _ = zip(*placed, strict=True)
    return KernelAxis(
        tile=tile,
        inner=1,
        blocks=max(blocks, 1),
        pitch=1,
        place=-1,
        exact=(blocks - 1) * step + axis.first + tile <= extent,
        extent=extent,
        extents=tuple(map(_EXTENT, axis.modes)),
        strides=strides,
        present=(*present, True),
        runs=runs,
        stretches=stretches,
        step=step,
        first=axis.first,
    )


def _dim_runs(axes: Sequence[TiledAxis], tensors: int) -> tuple[AlignedRun, ...]:
    """The longest aligned run that the offsets of a dim surely have in each tensor, and the divisor of its starts.

    The last axis, which is the fastest, has the run; the offsets of the others say where runs start.
    """
    if not axes:
        return (AlignedRun(1, MAX_DIVISOR),) * tensors
    runs = []
    for tensor in range(tensors):
        length, divisor = _in_tensor(axes[-1], tensor).run
        runs.append(AlignedRun(length, math.gcd(divisor, *[_in_tensor(axis, tensor).divisor for axis in axes[:-1]])))
    return tuple(runs)


@lru_cache(maxsize=16384)
def _in_tensor(axis: TiledAxis, tensor: int) -> _InTensor:
    strides = tuple([mode.strides[tensor] for mode in axis.modes])
    stretch = 1  # elements along the axis before the first jump in memory
    for mode, stride in zip(axis.modes, strides, strict=True):
        if stride != stretch:
            break
        stretch *= mode.extent
    # The largest power of two that divides the tile, where it starts, and the stretch before the first jump.
    aligned = math.gcd(axis.tile, axis.whole_step or axis.tile, axis.first)
    length = axis.tile if stretch == axis.extent else math.gcd(aligned, stretch)
    divisor, together = MAX_DIVISOR, 1
    for mode, stride in zip(axis.modes, strides, strict=True):
        within = stride == together and length > 1
        divisor = math.gcd(divisor, math.gcd(length, aligned) if within else stride)
        together *= mode.extent if within else 1
    return _InTensor(
        strides,
        any(strides),
        AlignedRun(length, divisor),
        max(1, min(axis.tile, stretch)),
        math.gcd(MAX_DIVISOR, *strides),
    )


def tile_count(modes: Sequence[Mode], axes: Sequence[TiledAxis]) -> int:
    """Tiles of a dim whose other modes are taken one index at a time."""
    return math.prod([axis.blocks for axis in (*rest(modes, axes), *axes)])


def wide(modes: Sequence[Mode], tensors: int = TENSORS) -> tuple[bool, ...]:
    """Which of A, B, C, D and the auxiliary operands have offsets that need 64 bits.

    Lanes of a tile may overhang the extents and are computed before they are masked, so each mode has room for one
    more tile.
    """
    reaches = [0] * tensors
    for mode in modes:
        for tensor, stride in enumerate(mode.strides[:tensors]):
            reaches[tensor] += stride * (mode.extent + LONGEST_TILE)
    return tuple([reach >= 2**31 for reach in reaches])


def wide_index(axes: Iterable[TiledAxis]) -> bool:
    """Whether an index along some axis needs 64 bits."""
    return any([axis.extent + LONGEST_TILE >= 2**31 for axis in axes])  # noqa: C419  a list: planning asks this often

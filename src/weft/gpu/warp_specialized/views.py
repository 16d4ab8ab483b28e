"""Operands as the tensor memory accelerator sees them, and the part of a schedule that rests on those views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import NamedTuple

from weft.fn.pointwise import padding_adds_nothing
from weft.gpu.common.constants import GluonLayout, TensorMap, matrix_layout
from weft.gpu.common.constraints import LEAST_DOT, LEAST_SPLIT_STEPS, VECTOR
from weft.gpu.common.tiling import TENSORS, A, D, TiledAxis, TiledDim, by_stride, rest, tiled_dim, wide, wide_index
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.contraction import with_operands_swapped

MOST_DIMENSIONS = 5  # of a tensor map
_EXTENT = attrgetter("extent")
_ACROSS = 2  # bytes of an element that matrix instructions also read across k from shared memory


@dataclass(frozen=True, slots=True)
class TmaView:
    """One way to read an operand: the dimensions of its tensor map, each of modes that lie together (innermost first).

    Dimensions that a tile spans a run of come last, the contiguous one at the very end: two of them, or three where
    there is a `second` one. Dimensions of single indices stand before them, wherever they lie in memory. So a tile in
    shared memory is a matrix as it is, and matrix instructions read it there. Its rows are the indices of `outer`, and
    slower ones those of `second`.
    """

    dimensions: tuple[tuple[Mode, ...], ...]
    outer: tuple[Mode, ...]  # the dimension on the operand's own side that a tile spans a run of
    along_k: bool  # the innermost dimension is k
    second: tuple[Mode, ...] = ()  # another such dimension, right before the last two
    count: int = 1  # indices of `second` in a tile

    @property
    def own(self) -> tuple[tuple[Mode, ...], ...]:
        """The dimensions of the operand's own side."""
        return tuple([group for group in self.dimensions if group[0].role is self.outer[0].role])

    def lengths(self, tile: int) -> dict[tuple[Mode, ...], int]:
        """Indices of each of those dimensions in a tile of so many rows, the runs last."""
        runs = {self.second: self.count} if self.second else {}
        runs[self.outer] = tile // self.count
        return dict.fromkeys([group for group in self.own if group not in runs], 1) | runs

    def spans(self, tile: int, k: Mode, depth: int) -> dict[tuple[Mode, ...], int]:
        """Indices of each dimension in a tile of so many rows, `depth` long along k."""
        return self.lengths(tile) | {(k,): depth}


def tma_views(contraction: Contraction, operand: int, k: Mode) -> Iterator[TmaView]:
    """Ways to read A or B in tiles that span a run of the mode `k`."""
    own = contraction.of_role(Role.M if operand == A else Role.N)
    sums, batch = contraction.of_role(Role.K), contraction.of_role(Role.BATCH)
    size = contraction.arithmetic.product.itemsize
    for outer in _outer_runs(own, operand):
        others = [mode for mode in own if mode not in outer]
        groups = [outer, *_chains(others, operand), *((mode,) for mode in (*sums, *batch))]
        groups.sort(key=lambda group: (group in (outer, (k,)), -group[0].strides[operand]))
        inner = groups[-1]
        steps = [group[0].strides[operand] for group in groups]
        if inner not in (outer, (k,)) or steps[-1] != 1 or len(groups) > MOST_DIMENSIONS:
            continue
        if any([step <= 0 or step * size % VECTOR for step in steps[:-1]]):  # noqa: C419
            continue
        if size != _ACROSS and inner == outer:
            continue  # other matrix instructions read both operands along k from shared memory only
        yield TmaView(tuple(groups), outer, along_k=inner == (k,))


def with_second_run(view: TmaView, tile: int, least: int) -> TmaView:
    """The schedule in tiles of runs of two dimensions, if tiles then cover fewer indices past the ends of modes.

    The run of `outer` is no shorter than `least`. Only views that are contiguous along k get a second run: in others a
    line of memory runs along `outer`, and TMA is slow for short lines.
    """
    if not view.along_k:
        return view
    ways = [view]
    for second in reversed([group for group in view.own if group != view.outer]):
        others = [group for group in view.dimensions[:-2] if group != second]
        dimensions = (*others, second, *view.dimensions[-2:])
        counts = [1 << bit for bit in range(1, (tile // least).bit_length())]
        ways += [TmaView(dimensions, view.outer, True, second, count) for count in counts]

    def taken(way: TmaView) -> int:
        return math.prod(covered(extent(group), length) for group, length in way.lengths(tile).items())

    return min(ways, key=taken)


def covered(length: int, tile: int) -> int:
    """Indices that whole tiles cover, of so many that exist."""
    return -(-length // tile) * tile


def _outer_runs(own: Sequence[Mode], operand: int) -> list[tuple[Mode, ...]]:
    """The modes that a tile may span a run of on an operand's own side: modes that lie together, or D's innermost
    alone."""
    runs = _chains(own, operand)
    return list(dict.fromkeys([*runs, by_stride(own, D)[:1]]))


def _chains(modes: Sequence[Mode], tensor: int) -> list[tuple[Mode, ...]]:
    """Modes grouped as they lie together in a tensor, innermost first."""
    found: list[list[Mode]] = []
    for mode in by_stride(modes, tensor):
        if found and mode.strides[tensor] == found[-1][-1].strides[tensor] * found[-1][-1].extent:
            found[-1].append(mode)
        else:
            found.append([mode])
    return [tuple(group) for group in found]


def tensor_map(layout: Layout, operand: int, view: TmaView, spans: dict[tuple[Mode, ...], int]) -> TensorMap:
    """The tensor map of A or B, in tiles of so many indices of each dimension, one of those that are not named."""
    shape = tuple(extent(group) for group in view.dimensions)
    strides = tuple(group[0].strides[operand] for group in view.dimensions)
    tile = tuple(spans.get(group, 1) for group in view.dimensions)
    return TensorMap(Layout(shape, strides, layout.dtype, layout.alignment), tile)


@lru_cache(maxsize=8192)
def extent(group: tuple[Mode, ...]) -> int:
    """Indices of modes that lie together."""
    return math.prod(map(_EXTENT, group))


GROUP = 8  # rows of output tiles that CTAs take before they go on along n (GROUP_M); columns where it is negative


@dataclass(frozen=True, slots=True)
class TmaSchedule:
    """How both operands are read, the mode of k that tiles run along, and the tile."""

    a: TmaView
    b: TmaView
    k: Mode
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stages: int
    splits: int = 1  # split-K partials of each output tile
    group: int = GROUP
    swap_ab: bool = False  # B gives the rows of output tiles and A the columns: `a` is the view of B
    workspace_bytes: int = 0

    def covered(self, contraction: Contraction) -> tuple[int, int, int]:
        """M, N and K of all tiles together: at least the contraction's. With `swap_ab` M is that of A all the same."""
        m, n, k = self.tile
        across = (dim_tiles(self.a, m) * m, dim_tiles(self.b, n) * n)
        rows, columns = reversed(across) if self.swap_ab else across
        return rows, columns, -(-self.k.extent // k) * k * (contraction.k // max(self.k.extent, 1))

    @property
    def order(self) -> str:
        """The order of output tiles, where it is not the usual one."""
        return "" if self.group == GROUP else f" group={self.group}"


def in_kernel_order(contraction: Contraction, schedule: TmaSchedule) -> Contraction:
    """The contraction as a schedule's kernel sees it."""
    return swap_ab(contraction) if schedule.swap_ab else contraction


@lru_cache(maxsize=256)
def swap_ab(contraction: Contraction) -> Contraction:
    """A in the place of B and B in that of A, with their functions; D stays. Products of real numbers do not mind.

    Output tiles are made of two parts along n alone: where it is m that no power of two covers well, B gives the rows.
    """
    return replace(
        contraction, modes=tuple(map(with_operands_swapped, contraction.modes)), a=contraction.b, b=contraction.a,
        a_fn=contraction.b_fn, b_fn=contraction.a_fn, a_args=contraction.b_args, b_args=contraction.a_args,
        conjugate_a=contraction.conjugate_b, conjugate_b=contraction.conjugate_a,
    )  # fmt: skip


def steps_along(contraction: Contraction, k: Mode, depth: int) -> int:
    """Tiles so long along a mode of k that a whole sum takes."""
    return -(-k.extent // depth) * (contraction.k // k.extent)


@cache
def n_parts(columns: int) -> tuple[int, ...]:
    """The powers of two that a tile's columns are the sum of, the widest first."""
    return tuple(1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1)


def placed_parts(columns: int) -> list[tuple[int, int]]:
    """The column that each part of a tile begins at, and its width."""
    widths = n_parts(columns)
    return [(sum(widths[:at]), width) for at, width in enumerate(widths)]


def missing_views(k: Mode, views_a: Sequence[TmaView], views_b: Sequence[TmaView]) -> Iterator[str]:
    """Which operands TMA cannot read along a mode, one sentence for each."""
    for name, views in (("A", views_a), ("B", views_b)):
        if not views:
            yield f"{name} has no tiles that TMA can load along {k.name}"


@lru_cache(maxsize=8192)
def dim_axes(view: TmaView, tile: int) -> tuple[TiledAxis, ...]:
    """The axes of an operand's own side in a tile of so many rows: single indices first, runs last."""
    runs = (view.second, view.outer)
    return tuple([TiledAxis(group, length, placed=group in runs) for group, length in view.lengths(tile).items()])


def misfit(a: TmaView, b: TmaView, tile: Sequence[int]) -> str | None:
    """Why a tile should not be used, in one sentence."""
    widest = n_parts(tile[1])[0]
    for name, group, length in (("m", a.outer, tile[0]), ("n", b.outer, widest)):
        length_there = extent(group)
        if length > LEAST_DOT * 2 and length >= 2 * length_there:
            return f"a tile of {length} along {name} is at least twice the {length_there} that lie together"
    across = extent(b.outer)
    if tile[1] != widest and covered(across, tile[1]) >= covered(across, widest):
        return f"tiles of {tile[1]} along n cover no less than those of {widest} do for the {across} that lie together"
    return None


def split_counts(steps: int, tiles: int, sms: int) -> list[int]:
    """Numbers of split-K partials that are worth a try, where there are no more output tiles than SMs (or consumers).

    They about fill the device once, or twice, or are the most of which each has an SM (or consumer) of its own. No
    partial is empty.
    """
    found = set()
    for fill in (1, 2):
        of_each = max(LEAST_SPLIT_STEPS, -(-steps * tiles // (fill * sms)))
        found.add(-(-steps // of_each))
    of_each = max(LEAST_SPLIT_STEPS, -(-steps // (sms // tiles)))
    found.add(-(-steps // of_each))
    return sorted(found - {1})


@lru_cache(maxsize=8192)
def dim_tiles(view: TmaView, tile: int) -> int:
    """Output tiles along an operand's own side."""
    return math.prod([axis.blocks for axis in dim_axes(view, tile)])


class TmaDim(NamedTuple):
    """Which axis of which side gives a tile's first index along one dimension of a tensor map."""

    role: int  # of an operand: 0 batch, 1 its own side, 2 k. Of D: 0 batch, 1 m, 2 n
    axis: int  # of that side


class TmaParams(NamedTuple):
    """All that the kernels take of a schedule that loads by TMA."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    a_dims: tuple[TmaDim, ...]
    b_dims: tuple[TmaDim, ...]
    a_along_k: bool
    b_along_k: bool
    n_parts: tuple[TiledDim, ...]  # one or two: the columns of one accumulator, and of one tile of B
    blocks: int  # output tiles
    splits: int  # split-K partials of each output tile, or the most that one has
    steps: int  # along k in each partial; with stream-K, in a whole sum
    programs: int  # CTAs, which stay and take one work tile after the other
    group: int  # GROUP_M, see `common.tiles.tile_coords`
    masked: bool  # a function is not zero at zero: values past the end of k must be masked
    wide: tuple[bool, ...]
    wide_index: bool
    product_bits: int  # of an element
    a_layout: GluonLayout  # of tiles of A in shared memory, as matrices
    b_layouts: tuple[GluonLayout, ...]  # of B, for each part along n


def _k_axes(contraction: Contraction, schedule: TmaSchedule) -> list[TiledAxis]:
    """Every other mode of k one index at a time, and the run that TMA tiles take."""
    run = TiledAxis((schedule.k,), schedule.tile[2])
    return [*rest(contraction.of_role(Role.K), [run]), run]


def tma_params(contraction: Contraction, schedule: TmaSchedule, programs: int) -> TmaParams:
    """The constants of a schedule for so many CTAs."""
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    batch = [TiledAxis((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    m, n, k = dim_axes(schedule.a, tile_m), dim_axes(schedule.b, tile_n), _k_axes(contraction, schedule)
    tensors = TENSORS + len(contraction.aux)
    m_dim, n_dim, k_dim = tiled_dim(m, 0, tensors), tiled_dim(n, 1, tensors), tiled_dim(k, 0, tensors)
    steps = -(-k_dim.blocks // schedule.splits)
    k_dim = _padded(k_dim, steps * schedule.splits)
    return TmaParams(
        batch=tiled_dim(batch, 0, tensors),
        m=m_dim,
        n=n_dim,
        k=k_dim,
        a_dims=_tma_dims(schedule.a, batch, m, k),
        b_dims=_tma_dims(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        n_parts=tuple(part_of(n, first, width, tensors) for first, width in placed_parts(tile_n)),
        blocks=contraction.batch * m_dim.blocks * n_dim.blocks,
        splits=schedule.splits,
        steps=steps,
        programs=programs,
        group=schedule.group,
        masked=not k_dim.exact and not padding_adds_nothing(contraction.a_fn, contraction.b_fn),
        wide=wide(contraction.modes, tensors),
        wide_index=wide_index((*m, *n, *k)),
        product_bits=8 * size,
        a_layout=matrix_layout((tile_m, tile_k), schedule.a.along_k, size),
        b_layouts=tuple(matrix_layout((width, tile_k), schedule.b.along_k, size) for width in n_parts(tile_n)),
    )


def part_of(axes: Sequence[TiledAxis], first: int, width: int, tensors: int) -> TiledDim:
    """The part of a side of an output tile that begins at index `first` of its run, and is `width` long."""
    *others, run = axes
    return tiled_dim([*others, TiledAxis(run.modes, width, True, run.tile, first)], 1, tensors)


def _padded(k: TiledDim, tiles: int) -> TiledDim:
    """The side of k with room for so many tiles: those past its end read zeros, rather than its start again."""
    slowest = max(k.axes, key=lambda axis: (axis.pitch, axis.blocks))
    wanted = -(-tiles // slowest.pitch)
    if wanted == slowest.blocks:
        return k
    padded = slowest._replace(blocks=wanted, exact=False)
    return k._replace(axes=tuple(padded if axis is slowest else axis for axis in k.axes), exact=False)


def _tma_dims(view: TmaView, *sides: Sequence[TiledAxis]) -> tuple[TmaDim, ...]:
    """Where a tile starts along each dimension of a view; `sides` are batch, the operand's own one, and k."""
    dims = {cut.modes: TmaDim(role, axis) for role, cuts in enumerate(sides) for axis, cut in enumerate(cuts)}
    return tuple(dims[group] for group in view.dimensions)

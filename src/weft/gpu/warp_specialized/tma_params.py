"""Constants that kernels take of a schedule whose tiles come by TMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.fn.triton.padding import padding_adds_nothing
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, rest, tiled_dim, wide, wide_index
from weft.gpu.warp_specialized.views import TmaSchedule, TmaView, dim_axes, placed_parts
from weft.spec import Contraction, Role


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


def _k_axes(contraction: Contraction, schedule: TmaSchedule) -> list[TiledAxis]:
    """Every other mode of k one index at a time, and the run that TMA tiles take."""
    run = TiledAxis((schedule.k,), schedule.tile[2])
    return [*rest(contraction.of_role(Role.K), [run]), run]


def tma_params(contraction: Contraction, schedule: TmaSchedule, programs: int) -> TmaParams:
    """The constants of a schedule for so many CTAs."""
    tile_m, tile_n, _ = schedule.tile
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

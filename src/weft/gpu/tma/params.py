"""What the kernel takes of a schedule, as compile-time constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.fn.triton.padding import padding_adds_nothing
from weft.gpu.common.constraints import widened
from weft.gpu.common.hardware import REGISTERS, SHARED_MEMORY, sm_count
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, rest, tiled_dim
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, n_parts, shared_bytes, stores_rows, subtiles_of
from weft.gpu.tma.views import TmaView
from weft.planner.schedule import Target
from weft.spec import Contraction, Role

OTHER_REGISTERS = 64  # of a thread, besides those of its accumulators
RESERVED = 1024  # bytes of shared memory that the device keeps for itself in each CTA


class TmaDim(NamedTuple):
    """Which axis of which side gives a tile's first index along one dimension of a tensor map."""

    role: int  # of an operand: 0 batch, 1 its own side, 2 k. Of D: 0 batch, 1 m, 2 n
    axis: int  # of that side


class SubtileParams(NamedTuple):
    """Columns of an output tile that are stored at once."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, int]
    wide: tuple[bool, ...]
    first: int  # column of the output tile


class NPartParams(NamedTuple):
    """A part of an output tile along n: the columns of one accumulator, and of one tile of B."""

    batch: TiledDim
    n: TiledDim
    k: TiledDim
    wide: tuple[bool, ...]
    subtiles: tuple[SubtileParams, ...]  # one, two or four


class TmaParams(NamedTuple):
    """All that the kernels take of a schedule that loads by TMA."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same as `k`: tiles of A and B span the same run of it
    a_dims: tuple[TmaDim, ...]
    b_dims: tuple[TmaDim, ...]
    a_along_k: bool
    b_along_k: bool
    n_parts: tuple[NPartParams, ...]  # one or two
    blocks: int  # output tiles
    splits: int  # split-K partials of each output tile, or the most that one has
    steps: int  # along k in each partial; with stream-K, in a whole sum
    programs: int  # CTAs, which stay and take one work tile after the other
    group: int  # GROUP_M, see `rasterization.tile_coords`
    flatten: bool  # loads run ahead into the next work tile, see `tma_params`
    widen: bool  # products are made in the accumulator's type
    masked: bool  # a function is not zero at zero: values past the end of k must be masked
    wide: tuple[bool, ...]
    wide_index: bool


class WorkDivision(NamedTuple):
    """How the work of a schedule is divided, which is all that its predicted time depends on."""

    m: TiledDim
    n: TiledDim
    k: TiledDim
    blocks: int  # output tiles
    steps: int  # along k in each partial
    programs: int  # CTAs


def work_division(contraction: Contraction, schedule: TmaSchedule, target: Target) -> WorkDivision:
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    m, n = tiled_dim(dim_axes(schedule.a, tile_m), 0, tensors), tiled_dim(dim_axes(schedule.b, tile_n), 1, tensors)
    k = tiled_dim(_k_axes(contraction, schedule), 0, tensors)
    blocks = contraction.batch * m.blocks * n.blocks
    resident = _resident(schedule, contraction.arithmetic.product.itemsize)
    programs = min(blocks * schedule.splits, resident * sm_count(target))
    return WorkDivision(m, n, k, blocks, -(-k.blocks // schedule.splits), programs)


def _k_axes(contraction: Contraction, schedule: TmaSchedule) -> list[TiledAxis]:
    """Every other mode of k one index at a time, and the run that TMA tiles take."""
    run = TiledAxis((schedule.k,), schedule.tile[2])
    return [*rest(contraction.of_role(Role.K), [run]), run]


def tma_params(contraction: Contraction, schedule: TmaSchedule, target: Target, room: int = 0) -> TmaParams:
    """The constants of a schedule. There is `room` for so many steps along k, where some partials are longer than
    others.

    With two parts along n, `flatten` makes the assembler run one product at a time: it is set only where CTAs take
    several work tiles, as it then also hides loads.
    """
    tile_m, tile_n, _ = schedule.tile
    batch = [TiledAxis((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    m, n, k = dim_axes(schedule.a, tile_m), dim_axes(schedule.b, tile_n), _k_axes(contraction, schedule)
    tensors = TENSORS + len(contraction.aux)
    m_dim, n_dim, k_dim, blocks, steps, programs = work_division(contraction, schedule, target)
    offsets, batch_dim = wide(contraction.modes, tensors), tiled_dim(batch, 0, tensors)
    k_dim = _padded(k_dim, max(steps * schedule.splits, room))
    work_tiles = blocks * schedule.splits
    return TmaParams(
        batch=batch_dim,
        m=m_dim,
        n=n_dim,
        k=k_dim,
        k_of_a=k_dim,
        a_dims=_tma_dims(schedule.a, batch, m, k),
        b_dims=_tma_dims(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        n_parts=_n_parts(batch_dim, m_dim, n, k_dim, offsets, stores_rows(schedule)),
        blocks=blocks,
        splits=schedule.splits,
        steps=steps,
        programs=programs,
        group=schedule.group,
        flatten=target.kind != "interpreter" and (len(n_parts(tile_n)) == 1 or programs < work_tiles),
        widen=widened(contraction, target),
        masked=not k_dim.exact and not padding_adds_nothing(contraction.a_fn, contraction.b_fn),
        wide=offsets,
        wide_index=wide_index((*m, *n, *k)),
    )


def _n_parts(
    batch: TiledDim, m: TiledDim, n: Sequence[TiledAxis], k: TiledDim, offsets: tuple[bool, ...], rows: bool
) -> tuple[NPartParams, ...]:
    """The parts of an output tile, side by side along the run of n, each with the subtiles that it is stored in."""
    *others, run = n

    def columns(first: int, width: int) -> TiledDim:
        return tiled_dim([*others, TiledAxis(run.modes, width, True, run.tile, first)], 1, len(offsets))

    found, first = [], 0
    for width in n_parts(run.tile):
        count = subtiles_of(width, rows)
        starts = range(first, first + width, width // count)
        subtiles = tuple(
            SubtileParams(batch, m, columns(start, width // count), (m.tile, width // count), offsets, start)
            for start in starts
        )
        found.append(NPartParams(batch, columns(first, width), k, offsets, subtiles))
        first += width
    return tuple(found)


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


def _resident(schedule: TmaSchedule, size: int) -> int:
    """CTAs that fit on one SM at a time."""
    tile_m, tile_n, _ = schedule.tile
    registers = (tile_m * tile_n // (32 * schedule.warps) + OTHER_REGISTERS) * 32 * schedule.warps
    shared = shared_bytes(schedule, size) + RESERVED
    return max(1, min((SHARED_MEMORY + RESERVED) // shared, REGISTERS // registers))

"""What the kernel that reads boxes takes of a schedule, as compile-time constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.fn.triton.padding import padding_adds_nothing
from weft.gpu.common.constraints import widened
from weft.gpu.common.hardware import REGISTERS, SHARED_MEMORY, sm_count
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, rest, tiled_dim
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, parts, shared_bytes, stores_rows, subtiles_of
from weft.gpu.tma.views import TmaView
from weft.planner.schedule import Target
from weft.spec import Contraction, Role

OTHER_REGISTERS = 64  # of a thread, besides those of its accumulators
RESERVED = 1024  # bytes of shared memory that the device keeps for itself in each program


class Dimension(NamedTuple):
    """Where a box stands along one dimension of an operand."""

    role: int  # 0 batch, 1 the operand's own side, 2 k
    axis: int  # of that side


class SubtileParams(NamedTuple):
    """Columns of a block of D that are stored at once."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, int]
    wide: tuple[bool, ...]
    first: int  # column of the block


class NPartParams(NamedTuple):
    """Columns of a block of D that one accumulator holds, and one box of B brings."""

    batch: TiledDim
    n: TiledDim
    k: TiledDim
    wide: tuple[bool, ...]
    pieces: tuple[SubtileParams, ...]  # one, two or four


class TmaParams(NamedTuple):
    """All that the kernels take of a schedule."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same: boxes of A and B hold the same run of k
    a_box: tuple[Dimension, ...]
    b_box: tuple[Dimension, ...]
    a_along_k: bool
    b_along_k: bool
    parts: tuple[NPartParams, ...]  # one, or two, of each block along n
    blocks: int  # of D
    splits: int  # tasks that share the sum of each block, or the most that do
    steps: int  # along k, in each of them; of whole sums where these are cut end to end
    programs: int
    group: int
    flatten: bool  # loads run ahead from task to task; with two parts the assembler then runs one product at a time
    widen: bool  # products are made in the accumulator's type
    masked: bool  # functions make of the zeros past the end of k what must be masked
    wide: tuple[bool, ...]
    wide_index: bool


class WorkTiles(NamedTuple):
    """How the work of a schedule is divided, which is all that its predicted time depends on."""

    m: TiledDim
    n: TiledDim
    k: TiledDim
    blocks: int  # of D
    steps: int  # along k, of each of the programs that share the sum of a block
    programs: int


def work_tiles(contraction: Contraction, schedule: TmaSchedule, target: Target) -> WorkTiles:
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    m, n = tiled_dim(dim_axes(schedule.a, tile_m), 0, tensors), tiled_dim(dim_axes(schedule.b, tile_n), 1, tensors)
    k = tiled_dim(_k_axes(contraction, schedule), 0, tensors)
    blocks = contraction.batch * m.blocks * n.blocks
    resident = _resident(schedule, contraction.arithmetic.product.itemsize)
    processors = sm_count(target)
    programs = min(blocks * schedule.splits, resident * processors)
    return WorkTiles(m, n, k, blocks, -(-k.blocks // schedule.splits), programs)


def _k_axes(contraction: Contraction, schedule: TmaSchedule) -> list[TiledAxis]:
    """Every other mode of k one index at a time, and the run that boxes take."""
    run = TiledAxis((schedule.k,), schedule.tile[2])
    return [*rest(contraction.of_role(Role.K), [run]), run]


def tma_params(contraction: Contraction, schedule: TmaSchedule, target: Target, room: int = 0) -> TmaParams:
    """`room` is for so many steps along k, where some shares of split sums are longer than others."""
    tile_m, tile_n, _ = schedule.tile
    batch = [TiledAxis((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    m, n, k = dim_axes(schedule.a, tile_m), dim_axes(schedule.b, tile_n), _k_axes(contraction, schedule)
    tensors = TENSORS + len(contraction.aux)
    m_dim, n_dim, k_dim, blocks, steps, programs = work_tiles(contraction, schedule, target)
    offsets, batch_dim = wide(contraction.modes, tensors), tiled_dim(batch, 0, tensors)
    k_dim = _padded(k_dim, max(steps * schedule.splits, room))
    tasks = blocks * schedule.splits
    return TmaParams(
        batch=batch_dim,
        m=m_dim,
        n=n_dim,
        k=k_dim,
        k_of_a=k_dim,
        a_box=_dimensions(schedule.a, batch, m, k),
        b_box=_dimensions(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        parts=_parts(batch_dim, m_dim, n, k_dim, offsets, stores_rows(schedule)),
        blocks=blocks,
        splits=schedule.splits,
        steps=steps,
        programs=programs,
        group=schedule.group,
        flatten=target.kind != "interpreter" and (len(parts(tile_n)) == 1 or programs < tasks),
        widen=widened(contraction, target),
        masked=not k_dim.exact and not padding_adds_nothing(contraction.a_fn, contraction.b_fn),
        wide=offsets,
        wide_index=wide_index((*m, *n, *k)),
    )


def _parts(
    batch: TiledDim, m: TiledDim, n: Sequence[TiledAxis], k: TiledDim, offsets: tuple[bool, ...], rows: bool
) -> tuple[NPartParams, ...]:
    """A block's accumulators side by side along the run of n, each with the pieces that it is stored in."""
    *others, run = n

    def columns(first: int, width: int) -> TiledDim:
        return tiled_dim([*others, TiledAxis(run.modes, width, True, run.tile, first)], 1, len(offsets))

    found, first = [], 0
    for width in parts(run.tile):
        count = subtiles_of(width, rows)
        starts = range(first, first + width, width // count)
        pieces = tuple(
            SubtileParams(batch, m, columns(start, width // count), (m.tile, width // count), offsets, start)
            for start in starts
        )
        found.append(NPartParams(batch, columns(first, width), k, offsets, pieces))
        first += width
    return tuple(found)


def _padded(k: TiledDim, blocks: int) -> TiledDim:
    """The side of k with room for so many blocks: those past its end read zeros, rather than its start again."""
    slowest = max(k.axes, key=lambda axis: (axis.pitch, axis.blocks))
    wanted = -(-blocks // slowest.pitch)
    if wanted == slowest.blocks:
        return k
    padded = slowest._replace(blocks=wanted, exact=False)
    return k._replace(axes=tuple(padded if axis is slowest else axis for axis in k.axes), exact=False)


def _dimensions(view: TmaView, batch: Sequence[TiledAxis], own: Sequence[TiledAxis], k: Sequence[TiledAxis]) -> tuple[Dimension, ...]:
    places = {
        cut.modes: Dimension(role, axis) for role, cuts in enumerate((batch, own, k)) for axis, cut in enumerate(cuts)
    }
    return tuple(places[group] for group in view.dimensions)


def _resident(schedule: TmaSchedule, size: int) -> int:
    """Programs that fit on one processor at a time."""
    tile_m, tile_n, _ = schedule.tile
    registers = (tile_m * tile_n // (32 * schedule.warps) + OTHER_REGISTERS) * 32 * schedule.warps
    shared = shared_bytes(schedule, size) + RESERVED
    return max(1, min((SHARED_MEMORY + RESERVED) // shared, REGISTERS // registers))

"""What the kernel takes of a schedule, as compile-time constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, A, B, TiledAxis, TiledDim, rest, tiled_dim
from weft.gpu.semiring.schedule import SemiringSchedule, output_tiles, subtile_axes
from weft.spec import Contraction, Role


class ThreadTile(NamedTuple):
    """How the threads of a program divide one dim of its output tile.

    Element `i` of run `r` of thread `t` in subtile `p` stands at ((p * held / run + r) * threads + t) * run + i. So
    neighbouring threads read neighbouring words of shared memory, and each as much at once as lies together there.
    """

    subtiles: int  # of the tile that are computed
    slots: int  # subtiles in the tile, a power of two
    log_slots: int
    held: int  # elements of each subtile in each thread
    threads: int
    run: int  # of these, neighbours in memory


class SubtileParams(NamedTuple):
    """What storing the subtiles of an output tile, or adding up their split-K partials, takes of a schedule."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, ...]
    group: int
    blocks: int  # subtiles of D
    splits: int
    wide: tuple[bool, ...]
    wide_index: bool


class SemiringParams(NamedTuple):
    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same
    stored: tuple[int, ...]  # extents of the tile as D lies: every axis longer than one index
    threads_m: ThreadTile
    threads_n: ThreadTile
    subtile: SubtileParams
    log_depth: int  # of the tile along k
    group: int
    blocks: int  # output tiles
    splits: int  # programs that share the reduction of each output tile
    steps: int  # along k, in each of them
    zeros: bool  # past the end of k tiles are zero and change nothing: products are summed
    alike_steps: int  # steps along k without the one that overhangs its end and is not like the others
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do
    guard: tuple[int, int] = (0, 0)  # tensor and pointer of marks: only output tiles with one are computed; 0 for none


def semiring_params(contraction: Contraction, schedule: SemiringSchedule) -> SemiringParams:
    tensors = TENSORS + len(contraction.aux)
    batch = tiled_dim(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors)
    m, n, stored = _outer_dims(contraction, schedule.m, schedule.n)
    k = tiled_dim(schedule.k, tensors=tensors)
    zeros = contraction.algebra is None
    offsets_wide = wide(contraction.modes, tensors)
    index_wide = wide_index((*schedule.m, *schedule.n, *schedule.k))
    m_subtile, n_subtile, stored_subtile = _outer_dims(
        contraction, subtile_axes(schedule.m, schedule.subtiles[0]), subtile_axes(schedule.n, schedule.subtiles[1])
    )
    return SemiringParams(
        batch=batch,
        m=m,
        n=n,
        k=k,
        k_of_a=k,
        stored=stored,
        threads_m=_threads_along(contraction, schedule, A),
        threads_n=_threads_along(contraction, schedule, B),
        subtile=SubtileParams(
            batch=batch,
            m=m_subtile,
            n=n_subtile,
            stored=stored_subtile,
            group=1,
            blocks=contraction.batch * m_subtile.blocks * n_subtile.blocks,
            splits=schedule.splits,
            wide=offsets_wide,
            wide_index=index_wide,
        ),
        log_depth=k.tile.bit_length() - 1,
        group=schedule.group,
        blocks=output_tiles(contraction, schedule),
        splits=schedule.splits,
        steps=-(-k.blocks // schedule.splits),
        zeros=zeros,
        alike_steps=k.blocks if zeros else contraction.k // k.tile,
        wide=offsets_wide,
        wide_index=index_wide,
    )


def _outer_dims(
    contraction: Contraction, m_axes: Sequence[TiledAxis], n_axes: Sequence[TiledAxis]
) -> tuple[TiledDim, TiledDim, tuple[int, ...]]:
    """m and n, and the extents of the stored tile."""
    tensors = TENSORS + len(contraction.aux)
    m = tiled_dim([*rest(contraction.of_role(Role.M), m_axes), *m_axes], tensors=tensors)
    stored_of_m = [axis.tile for axis in m.axes if axis.place >= 0]
    n = tiled_dim([*rest(contraction.of_role(Role.N), n_axes), *n_axes], len(stored_of_m), tensors)
    return m, n, (*stored_of_m, *[axis.tile for axis in n.axes if axis.place >= 0])


def _threads_along(contraction: Contraction, schedule: SemiringSchedule, operand: int) -> ThreadTile:
    """How threads divide m (of A) or n (of B)."""
    axes, layout = ((schedule.m, contraction.a), (schedule.n, contraction.b))[operand]
    held, subtiles = schedule.registers[operand], schedule.subtiles[operand]
    return thread_tile(axes, held, subtiles, layout.dtype.itemsize, schedule.k[0], operand)


def thread_tile(
    axes: tuple[TiledAxis, ...], held: int, subtiles: int, itemsize: int, depth: TiledAxis, operand: int
) -> ThreadTile:
    """How threads divide one dim, whose operand's elements take `itemsize` bytes.

    The operand lies in shared memory along its own run: neighbours of this dim lie together where that is its run, and
    else steps along k do.
    """
    slots = power_of_two(subtiles)
    tile = math.prod(axis.tile for axis in axes)
    contiguous = _is_run(axes[-1], operand) and not _is_run(depth, operand)
    run = min(held, max(VECTOR // itemsize, 1)) if contiguous else 1
    return ThreadTile(subtiles, slots, slots.bit_length() - 1, held, tile // slots // held, run)


def _is_run(axis: TiledAxis, operand: int) -> bool:
    """Whether neighbours along an axis are neighbours in an operand."""
    return bool(axis.modes) and axis.modes[0].strides[operand] == 1

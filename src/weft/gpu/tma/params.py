"""What the kernel that reads boxes takes of a schedule, as compile-time constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.fn.triton.padding import padding_adds_nothing
from weft.gpu.common.constraints import widened
from weft.gpu.common.cost import PROCESSORS, REGISTERS, SHARED_MEMORY
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, Cut, Side, rest, side
from weft.gpu.tma.schedule import BoxesSchedule, parts, pieces_of, rows_staged, shared_bytes, side_cuts
from weft.gpu.tma.views import Reading
from weft.planner.schedule import Target
from weft.spec import Contraction, Role

OTHER_REGISTERS = 64  # of a thread, besides those of its accumulators
RESERVED = 1024  # bytes of shared memory that the device keeps for itself in each program


class Dimension(NamedTuple):
    """Where a box stands along one dimension of an operand."""

    role: int  # 0 batch, 1 the operand's own side, 2 k
    axis: int  # of that side


class PieceCut(NamedTuple):
    """Columns of a block of D that are stored at once."""

    batch: Side
    m: Side
    n: Side
    stored: tuple[int, int]
    wide: tuple[bool, ...]
    first: int  # column of the block


class PartCut(NamedTuple):
    """Columns of a block of D that one accumulator holds, and one box of B brings."""

    batch: Side
    n: Side
    k: Side
    wide: tuple[bool, ...]
    pieces: tuple[PieceCut, ...]  # one, two or four


class BoxesCut(NamedTuple):
    """All that the kernels take of a schedule."""

    batch: Side
    m: Side
    n: Side
    k: Side
    k_of_a: Side  # the same: boxes of A and B hold the same run of k
    a_box: tuple[Dimension, ...]
    b_box: tuple[Dimension, ...]
    a_along_k: bool
    b_along_k: bool
    parts: tuple[PartCut, ...]  # one, or two, of each block along n
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


def boxes_cut(contraction: Contraction, schedule: BoxesSchedule, target: Target, room: int = 0) -> BoxesCut:
    """`room` is for so many steps along k, where some shares of split sums are longer than others."""
    tile_m, tile_n, tile_k = schedule.tile
    batch = [Cut((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    k = [*rest(contraction.of_role(Role.K), [Cut((schedule.k,), tile_k)]), Cut((schedule.k,), tile_k)]
    m, n = side_cuts(schedule.a, tile_m), side_cuts(schedule.b, tile_n)
    tensors = TENSORS + len(contraction.aux)
    offsets, size = wide(contraction.modes, tensors), contraction.arithmetic.product.itemsize
    batch_side, m_side = side(batch, 0, tensors), side(m, 0, tensors)
    n_side, k_side = side(n, 1, tensors), side(k, 0, tensors)
    steps = -(-k_side.blocks // schedule.splits)
    k_side = _padded(k_side, max(steps * schedule.splits, room))
    blocks = contraction.batch * m_side.blocks * n_side.blocks
    processors = target.processors if target.processors > 1 else PROCESSORS
    tasks = blocks * schedule.splits
    programs = min(tasks, _resident(schedule, size) * processors)
    return BoxesCut(
        batch=batch_side,
        m=m_side,
        n=n_side,
        k=k_side,
        k_of_a=k_side,
        a_box=_dimensions(schedule.a, batch, m, k),
        b_box=_dimensions(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        parts=_parts(batch_side, m_side, n, k_side, offsets, rows_staged(schedule)),
        blocks=blocks,
        splits=schedule.splits,
        steps=steps,
        programs=programs,
        group=schedule.group,
        flatten=target.kind != "interpreter" and (len(parts(tile_n)) == 1 or programs < tasks),
        widen=widened(contraction, target),
        masked=not k_side.exact and not padding_adds_nothing(contraction.a_fn, contraction.b_fn),
        wide=offsets,
        wide_index=wide_index((*m, *n, *k)),
    )


def _parts(
    batch: Side, m: Side, n: Sequence[Cut], k: Side, offsets: tuple[bool, ...], rows: bool
) -> tuple[PartCut, ...]:
    """A block's accumulators side by side along the run of n, each with the pieces that it is stored in."""
    *others, run = n

    def columns(first: int, width: int) -> Side:
        return side([*others, Cut(run.modes, width, True, run.tile, first)], 1, len(offsets))

    found, first = [], 0
    for width in parts(run.tile):
        count = pieces_of(width, rows)
        starts = range(first, first + width, width // count)
        pieces = tuple(
            PieceCut(batch, m, columns(start, width // count), (m.tile, width // count), offsets, start)
            for start in starts
        )
        found.append(PartCut(batch, columns(first, width), k, offsets, pieces))
        first += width
    return tuple(found)


def _padded(k: Side, blocks: int) -> Side:
    """The side of k with room for so many blocks: those past its end read zeros, rather than its start again."""
    slowest = max(k.axes, key=lambda axis: (axis.pitch, axis.blocks))
    wanted = -(-blocks // slowest.pitch)
    if wanted == slowest.blocks:
        return k
    padded = slowest._replace(blocks=wanted, exact=False)
    return k._replace(axes=tuple(padded if axis is slowest else axis for axis in k.axes), exact=False)


def _dimensions(reading: Reading, batch: Sequence[Cut], own: Sequence[Cut], k: Sequence[Cut]) -> tuple[Dimension, ...]:
    places = {
        cut.modes: Dimension(role, axis) for role, cuts in enumerate((batch, own, k)) for axis, cut in enumerate(cuts)
    }
    return tuple(places[group] for group in reading.dimensions)


def _resident(schedule: BoxesSchedule, size: int) -> int:
    """Programs that fit on one processor at a time."""
    tile_m, tile_n, _ = schedule.tile
    registers = (tile_m * tile_n // (32 * schedule.warps) + OTHER_REGISTERS) * 32 * schedule.warps
    shared = shared_bytes(schedule, size) + RESERVED
    return max(1, min((SHARED_MEMORY + RESERVED) // shared, REGISTERS // registers))

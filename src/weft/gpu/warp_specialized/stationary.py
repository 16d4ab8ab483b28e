"""Schedules that keep all of B in shared memory while rows of A pass by: for a small operand beside a large one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from weft.gpu.common.hardware import SHARED_MEMORY, sm_count
from weft.gpu.common.tiling import TENSORS, A, B, D, TiledAxis, TiledDim, nearest, tiled_dim
from weft.gpu.tma.params import TmaParams, tma_params
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, parts
from weft.gpu.tma.views import TmaView, extent, tma_views, with_second_run
from weft.gpu.warp_specialized.params import matrix_layout
from weft.gpu.warp_specialized.schedule import BARRIERS, NAME
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

if TYPE_CHECKING:
    from triton.experimental.gluon.language import DistributedLinearLayout, NVMMASharedLayout

ROWS = 16  # of a block for each warp of a worker
LEAST_RUN = 16  # rows next to each other: results are stored in lines of as many elements
LINE = 128  # bytes along k of a box
LEAST_STAGES, MOST_STAGES = 2, 8
LEAST_COLUMNS, MOST_COLUMNS = 16, 320  # that matrix instructions take, and that a worker has accumulators for
# Of each thread of a worker of so many warps: two workers share what loaders leave, as in `specialised_roles`.
REGISTERS = {4: 240, 8: 112}
OTHER_REGISTERS = 40  # besides those of accumulators and rows; more than there, as results leave from registers too
LEAST_PIECE, MOST_PIECE = 8, 32  # columns that are finished at once
LEAST_TAIL = 16  # indices of k that matrix instructions take


@dataclass(frozen=True, slots=True)
class StationarySchedule(TmaSchedule):
    """The boxes, of which those of B are brought once, and the rings that the others come in; `warps` are those of
    each worker and `stages` of each ring."""

    pipelines: int = 1
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        rows = " ".join(map(str, dim_axes(self.a, m)[-2 if self.a.second else -1 :]))
        names_n = "·".join(mode.name for mode in self.b.outer)
        across = "+".join(map(str, parts(n)))
        pipelines = "pingpong" if self.pipelines == 1 else f"pipelines={self.pipelines}"
        return (
            f"ws.stationary {m}x{n}x{k} m[{rows}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" warps={self.warps} {pipelines} stages={self.stages}{' swap_ab' if self.swap_ab else ''}"
        )


class StationaryParams(NamedTuple):
    """All that the kernel takes of a schedule."""

    boxes: TmaParams
    pieces: tuple[tuple[TiledDim, ...], ...]  # [part]: columns that are finished at once
    halvings: tuple[int, ...]  # of each part, that lead to them
    tail: int  # indices of k that the last step takes
    warps: int  # of each worker
    registers: int  # of each of its threads
    product_bits: int  # of an element
    pipelines: int  # of boxes of A
    stages: int  # of each
    x_layout: NVMMASharedLayout  # of boxes of A in shared memory, as matrices
    y_layouts: tuple[NVMMASharedLayout, ...]  # of B, for each part
    stored: tuple[DistributedLinearLayout, ...]  # of pieces of each part, in registers


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are no others; `exchanged` tells that the operands already are."""
    if contraction.batch > 1 or contraction.n > MOST_COLUMNS:
        return Candidates((), (f"only an operand of at most {MOST_COLUMNS} columns is kept in shared memory",))
    found = []
    size = contraction.arithmetic.product.itemsize
    columns, depth = _columns(contraction.n), LINE // size
    tiles = {warps: (ROWS * warps, columns, depth) for warps in REGISTERS if _held(contraction, columns, depth, warps)}
    for k in contraction.of_role(Role.K):
        views_a, views_b = (tma_views(contraction, operand, k) for operand in (A, B))
        for a, b, (warps, tile) in product(views_a, views_b, tiles.items()):
            if extent(b.outer) < contraction.n or not _stored_in_runs(a, b):
                continue
            slots = _slots(contraction, k, tile, target)
            found += [
                StationarySchedule(way, b, k, tile, warps, min(MOST_STAGES, slots) // pipelines, swap_ab=swap_ab, pipelines=pipelines)
                for way in dict.fromkeys((a, with_second_run(a, tile[0], LEAST_RUN)))
                if 2 * extent(way.outer) > tile[0] // way.count
                for pipelines in (1, 2)
                if slots >= LEAST_STAGES * pipelines
            ]
    return Candidates(tuple(found))


def _held(contraction: Contraction, columns: int, depth: int, warps: int) -> bool:
    """Whether a worker's threads have registers for accumulators, and for rows on their way through a function."""
    held = columns // 2 + (depth // 2 if contraction.a_fn is not None else 0)  # of 16 rows, by each thread of a warp
    return held + OTHER_REGISTERS <= REGISTERS[warps]


def _columns(count: int) -> int:
    """The least sum of at most two powers of two that is no less."""
    powers = [1 << bit for bit in range(LEAST_COLUMNS.bit_length() - 1, MOST_COLUMNS.bit_length())]
    sums = {*powers, *(x + y for x in powers for y in powers if x != y)}
    return min(each for each in sums if each >= count)


def _stored_in_runs(a: TmaView, b: TmaView) -> bool:
    """Whether D's contiguous mode is one that rows or columns run along."""
    return nearest((a.outer[0], b.outer[0]), D) is not None


def _slots(contraction: Contraction, k: Mode, tile: tuple[int, int, int], target: Target) -> int:
    """Slots of rings that the device has shared memory for beside B."""
    tile_m, tile_n, tile_k = tile
    size = contraction.arithmetic.product.itemsize
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS - _steps(contraction, k, tile_k) * tile_n * tile_k * size
    return room // (tile_m * tile_k * size)


def _steps(contraction: Contraction, k: Mode, tile_k: int) -> int:
    """Boxes along k."""
    return -(-k.extent // tile_k) * (contraction.k // k.extent)


def steps(contraction: Contraction, schedule: StationarySchedule) -> int:
    """Boxes along k of a schedule."""
    return _steps(contraction, schedule.k, schedule.tile[2])


def tail(contraction: Contraction, schedule: StationarySchedule) -> int:
    """Indices of k that the last step takes: no more of its boxes than there is, where k is one mode."""
    tile_k = schedule.tile[2]
    left = schedule.k.extent % tile_k or tile_k
    return max(LEAST_TAIL, 1 << (left - 1).bit_length()) if schedule.k.extent == contraction.k else tile_k


def stationary_params(contraction: Contraction, schedule: StationarySchedule, target: Target) -> StationaryParams:
    boxes = tma_params(contraction, schedule, target)
    processors = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    size = contraction.arithmetic.product.itemsize
    widths, pieces = parts(tile_n), tuple(_pieces(schedule))
    along_n = nearest(schedule.b.outer, D) is not None
    return StationaryParams(
        boxes=boxes._replace(programs=min(boxes.blocks, processors)),
        pieces=pieces,
        halvings=tuple((width // own[0].tile).bit_length() - 1 for width, own in zip(widths, pieces, strict=True)),
        tail=tail(contraction, schedule),
        warps=schedule.warps,
        registers=REGISTERS[schedule.warps],
        product_bits=8 * size,
        pipelines=schedule.pipelines,
        stages=schedule.stages,
        x_layout=matrix_layout((tile_m, tile_k), schedule.a.along_k, size),
        y_layouts=tuple(matrix_layout((width, tile_k), schedule.b.along_k, size) for width in widths),
        stored=tuple(_stored(own[0].tile, along_n, schedule.warps) for own in pieces),
    )


def _pieces(schedule: StationarySchedule) -> Iterator[tuple[TiledDim, ...]]:
    """Of each part, the pieces with columns of D in them."""
    tile_n = schedule.tile[1]
    (columns,) = dim_axes(schedule.b, tile_n)
    first = 0
    for width in parts(tile_n):
        there = min(width, columns.extent - first)
        narrow = max(LEAST_PIECE, math.gcd(there, width, MOST_PIECE))
        yield tuple(
            tiled_dim([TiledAxis(columns.modes, narrow, True, tile_n, start)], 1, TENSORS)
            for start in range(first, first + there, narrow)
        )
        first += width


def _stored(width: int, along_n: bool, warps: int) -> DistributedLinearLayout:
    """How a piece of so many columns lies in registers when it is stored.

    Matrix instructions leave two neighbours of a row to each lane, and 8 x 8 elements to a warp's lanes: of float32, 32
    bytes of a line of D are stored at once. Lanes exchange half of what they hold, and it is twice as much.
    """
    from triton.experimental.gluon.language import DistributedLinearLayout

    registers = [[0, 1], [8, 0], *([0, 1 << bit] for bit in range(3, width.bit_length() - 1))]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    farther = [0, 8] if along_n else [8, 0]
    if farther in registers:
        registers.remove(farther)
        registers.insert(1, lanes[0])
        lanes[0] = farther
    apart = [[ROWS << bit, 0] for bit in range(warps.bit_length() - 1)]
    return DistributedLinearLayout(registers, lanes, apart, [], [ROWS * warps, width])

"""Schedules with a stationary operand: all of B stays in shared memory while tiles of A pass by.

For a small operand beside a large one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.hardware import SHARED_MEMORY
from weft.gpu.common.tiling import A, B, D, nearest
from weft.gpu.tma.schedule import TmaSchedule, dim_axes, n_parts
from weft.gpu.tma.views import TmaView, extent, tma_views, with_second_run
from weft.gpu.warp_specialized.schedule import BARRIERS, NAME
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

ROWS = 16  # of an output tile, for each warp of a consumer
LEAST_RUN = 16  # rows that lie together: results are stored in lines of as many elements
LINE = 128  # bytes along k of a tile
LEAST_STAGES, MOST_STAGES = 2, 8
LEAST_COLUMNS, MOST_COLUMNS = 16, 320  # that matrix instructions take, and that a consumer has accumulators for
# Registers of a thread of a consumer of so many warps: two consumers share what producers leave, as in `roles`.
REGISTERS = {4: 240, 8: 112}
OTHER_REGISTERS = 40  # besides accumulators and rows; more than in `roles`, as results are stored from registers too


@dataclass(frozen=True, slots=True)
class StationarySchedule(TmaSchedule):
    """Tiles and their views; `warps` are those of each consumer, `stages` those of each pipeline of A."""

    pipelines: int = 1  # one that both consumers take turns at, or one for each
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        rows = " ".join(map(str, dim_axes(self.a, m)[-2 if self.a.second else -1 :]))
        names_n = "·".join(mode.name for mode in self.b.outer)
        across = "+".join(map(str, n_parts(n)))
        pipelines = "pingpong" if self.pipelines == 1 else f"pipelines={self.pipelines}"
        return (
            f"ws.stationary {m}x{n}x{k} m[{rows}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" warps={self.warps} {pipelines} stages={self.stages}{' swap_ab' if self.swap_ab else ''}"
        )


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are none; `swap_ab` says that A and B are swapped already."""
    if contraction.batch > 1 or contraction.n > MOST_COLUMNS:
        return Candidates((), (f"only an operand of at most {MOST_COLUMNS} columns is stationary in shared memory",))
    found: list[StationarySchedule] = []
    size = contraction.arithmetic.product.itemsize
    columns, depth = _columns(contraction.n), LINE // size
    tiles = {warps: (ROWS * warps, columns, depth) for warps in REGISTERS if _fits(contraction, columns, depth, warps)}
    for k in contraction.of_role(Role.K):
        views_a, views_b = (tma_views(contraction, operand, k) for operand in (A, B))
        for a, b, (warps, tile) in product(views_a, views_b, tiles.items()):
            if extent(b.outer) >= contraction.n and _stored_in_runs(a, b):
                stages = _stages(contraction, k, tile, target)
                found += _of_views(a, b, StationarySchedule(a, b, k, tile, warps, stages, swap_ab=swap_ab))
    return Candidates(tuple(found))


def _of_views(a: TmaView, b: TmaView, shape: StationarySchedule) -> Iterator[StationarySchedule]:
    """Schedules of a tile and two views, of which `shape` says all but how its stages are divided."""
    for view in dict.fromkeys((a, with_second_run(a, shape.tile[0], LEAST_RUN))):
        if 2 * extent(view.outer) <= shape.tile[0] // view.count:
            continue
        for pipelines in (1, 2):
            if shape.stages >= LEAST_STAGES * pipelines:
                stages = min(MOST_STAGES, shape.stages) // pipelines
                yield replace(shape, a=view, b=b, stages=stages, pipelines=pipelines)


def _fits(contraction: Contraction, columns: int, depth: int, warps: int) -> bool:
    """Whether a consumer's threads have registers for accumulators, and for rows that A's function is applied to."""
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


def _stages(contraction: Contraction, k: Mode, tile: tuple[int, int, int], target: Target) -> int:
    """Stages of all pipelines that the device has shared memory for beside B."""
    tile_m, tile_n, tile_k = tile
    size = contraction.arithmetic.product.itemsize
    b_bytes = _steps(contraction, k, tile_k) * tile_n * tile_k * size
    return ((target.shared_memory or SHARED_MEMORY) - BARRIERS - b_bytes) // (tile_m * tile_k * size)


def _steps(contraction: Contraction, k: Mode, tile_k: int) -> int:
    return -(-k.extent // tile_k) * (contraction.k // k.extent)


def steps(contraction: Contraction, schedule: StationarySchedule) -> int:
    """Steps along k of a sum: as many tiles of B stay in shared memory."""
    return _steps(contraction, schedule.k, schedule.tile[2])


def last_depth(contraction: Contraction, schedule: StationarySchedule) -> int:
    """Indices of k that the last step multiplies: no more of its tiles than there is, where k is one mode."""
    tile_k = schedule.tile[2]
    left = schedule.k.extent % tile_k or tile_k
    if schedule.k.extent != contraction.k:
        return tile_k
    return max(LEAST_DOT, 1 << (left - 1).bit_length())

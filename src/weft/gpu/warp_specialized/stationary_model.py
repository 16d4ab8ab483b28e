"""Schedules with a stationary operand, what they tell the kernel, and their cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from weft.gpu.common.constants import GluonLayout
from weft.gpu.common.constraints import LEAST_DOT, SHARED_MEMORY, sm_count
from weft.gpu.common.cost import compulsory_bytes, function_seconds, launched
from weft.gpu.common.tiling import TENSORS, A, B, D, TiledAxis, TiledDim, nearest, tiled_dim
from weft.gpu.warp_specialized import views
from weft.gpu.warp_specialized.schedule import (
    BARRIERS,
    LEAST_STAGES,
    MOST_STAGES,
    NAME,
    PRODUCER,
    WarpRoles,
    output_tiles,
    stored_in_runs,
)
from weft.gpu.warp_specialized.views import TmaParams, TmaSchedule, TmaView
from weft.planner.coefficients import fitted
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

ROWS = 16  # of an output tile, for each warp of a consumer
LEAST_RUN = 16  # rows that lie together: results are stored in lines of as many elements
LINE = 128  # bytes along k of a tile
LEAST_COLUMNS, MOST_COLUMNS = 16, 320  # that matrix instructions take, and that a consumer has accumulators for
# Registers of a thread of a consumer of so many warps: two consumers share what producers leave, as in `roles`.
REGISTERS = {4: 240, 8: 112}
ELEMENTS = 32  # of B that a lane of a consumer computes at once
OTHER_REGISTERS = 40  # besides accumulators and rows; more than in `roles`, as results are stored from registers too


@dataclass(frozen=True, slots=True)
class StationarySchedule(TmaSchedule):
    """Tiles and their views; `warps` are those of each consumer, `stages` those of each pipeline of A."""

    pipelines: int = 1  # one that both consumers take turns at, or one for each
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        rows = " ".join(map(str, views.dim_axes(self.a, m)[-2 if self.a.second else -1 :]))
        names_n = "·".join(mode.name for mode in self.b.outer)
        across = "+".join(map(str, views.n_parts(n)))
        pipelines = "pingpong" if self.pipelines == 1 else f"pipelines={self.pipelines}"
        return (
            f"ws.stationary {m}x{n}x{k} m[{rows}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" warps={self.warps} {pipelines} stages={self.stages}{' swap_ab' if self.swap_ab else ''}"
        )


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are none; `swap_ab` says that A and B are swapped already."""
    if contraction.batch > 1 or contraction.n > MOST_COLUMNS:
        return Candidates((), (f"only an operand of at most {MOST_COLUMNS} columns is stationary in shared memory",))
    if contraction.c is not None or contraction.aux or contraction.arithmetic.product.itemsize != 2:
        return Candidates((), ("a stationary operand is of 16 bits, and what is added or given beside is not read",))
    found: list[StationarySchedule] = []
    size = contraction.arithmetic.product.itemsize
    columns, depth = _columns(contraction.n), LINE // size
    tiles = {warps: (ROWS * warps, columns, depth) for warps in REGISTERS if _fits(contraction, columns, depth, warps)}
    for k in contraction.of_role(Role.K):
        views_a, views_b = (views.tma_views(contraction, operand, k) for operand in (A, B))
        for a, b, (warps, tile) in product(views_a, views_b, tiles.items()):
            if views.extent(b.outer) >= contraction.n and stored_in_runs(a, b):
                stages = _stages(contraction, k, tile, target)
                found += _of_views(a, b, StationarySchedule(a, b, k, tile, warps, stages, group=1, swap_ab=swap_ab))
    return Candidates(tuple(found))


def _of_views(a: TmaView, b: TmaView, shape: StationarySchedule) -> Iterator[StationarySchedule]:
    """Variants of the schedule `shape` for these two views: its stages as one pipeline or as two."""
    for view in dict.fromkeys((a, views.with_second_run(a, shape.tile[0], LEAST_RUN))):
        if 2 * views.extent(view.outer) <= shape.tile[0] // view.count:
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


def _stages(contraction: Contraction, k: Mode, tile: tuple[int, int, int], target: Target) -> int:
    """Stages of all pipelines that the device has shared memory for beside B."""
    tile_m, tile_n, tile_k = tile
    size = contraction.arithmetic.product.itemsize
    b_bytes = views.steps_along(contraction, k, tile_k) * tile_n * tile_k * size
    return ((target.shared_memory or SHARED_MEMORY) - BARRIERS - b_bytes) // (tile_m * tile_k * size)


def last_depth(contraction: Contraction, schedule: StationarySchedule) -> int:
    """Indices of k that the last step multiplies: no more of its tiles than there is, where k is one mode."""
    tile_k = schedule.tile[2]
    left = schedule.k.extent % tile_k or tile_k
    if schedule.k.extent != contraction.k:
        return tile_k
    return max(LEAST_DOT, 1 << (left - 1).bit_length())


LEAST_SUBTILE, MOST_SUBTILE = 8, 32  # columns that are finished at once


class StationaryParams(NamedTuple):
    """All that the kernel takes of a schedule."""

    tma: TmaParams
    subtiles: tuple[tuple[TiledDim, ...], ...]  # [part along n] columns that are finished at once
    halvings: tuple[int, ...]  # [part along n] that give them
    last_depth: int  # indices of k that the last step multiplies
    roles: WarpRoles
    pipelines: int  # of tiles of A
    stages: int  # of each
    store_layouts: tuple[GluonLayout, ...]  # of subtiles of each part, in registers


def stationary_params(contraction: Contraction, schedule: StationarySchedule, target: Target) -> StationaryParams:
    widths, subtiles = views.n_parts(schedule.tile[1]), tuple(_subtiles(schedule))
    along_n = nearest(schedule.b.outer, D) is not None
    return StationaryParams(
        tma=views.tma_params(contraction, schedule, min(output_tiles(contraction, schedule), sm_count(target))),
        subtiles=subtiles,
        halvings=tuple((width // own[0].tile).bit_length() - 1 for width, own in zip(widths, subtiles, strict=True)),
        last_depth=last_depth(contraction, schedule),
        roles=_roles(schedule),
        pipelines=schedule.pipelines,
        stages=schedule.stages,
        store_layouts=tuple(_store_layout(own[0].tile, along_n, schedule.warps) for own in subtiles),
    )


def _roles(schedule: StationarySchedule) -> WarpRoles:
    """The second consumer, and a producer for each pipeline of A."""
    registers = (REGISTERS[schedule.warps], *[PRODUCER] * schedule.pipelines)
    return WarpRoles(0, (schedule.warps, *[1] * schedule.pipelines), registers, ELEMENTS)


def _subtiles(schedule: StationarySchedule) -> Iterator[tuple[TiledDim, ...]]:
    """The subtiles of each part along n with columns of D in them."""
    tile_n = schedule.tile[1]
    (columns,) = views.dim_axes(schedule.b, tile_n)
    first = 0
    for width in views.n_parts(tile_n):
        there = min(width, columns.extent - first)
        narrow = max(LEAST_SUBTILE, math.gcd(there, width, MOST_SUBTILE))
        yield tuple(
            tiled_dim([TiledAxis(columns.modes, narrow, True, tile_n, start)], 1, TENSORS)
            for start in range(first, first + there, narrow)
        )
        first += width


def _store_layout(width: int, along_n: bool, warps: int) -> GluonLayout:
    """How a subtile of so many columns lies in registers when it is stored.

    Matrix instructions leave two neighbours of a row to each lane, and 8 x 8 elements to a warp's lanes: of float32, 32
    bytes of a line of D would be stored at once. Lanes exchange half of what they hold, and it is twice as much.
    """
    registers = [(0, 1), (8, 0), *((0, 1 << bit) for bit in range(3, width.bit_length() - 1))]
    lanes = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    farther = (0, 8) if along_n else (8, 0)
    if farther in registers:
        registers.remove(farther)
        registers.insert(1, lanes[0])
        lanes[0] = farther
    apart = tuple((ROWS << bit, 0) for bit in range(warps.bit_length() - 1))
    return GluonLayout("DistributedLinearLayout", (tuple(registers), tuple(lanes), apart, (), (ROWS * warps, width)))


_fit = fitted("stationary")

# Fitted on an H200 to 48 timed schedules of TCCG cases 2, 5, 9 and 10, with functions and without, when the rate of
# products was 8 % less than now: predictions were off by 3 % on average. The rate of loading B is that of TCCG cases 9
# and 18.
# launch: seconds
# rate: flops per second
# memory_rate: bytes per second
# b_rate: bytes per second of all SMs' copies of B, from L2
# tile_seconds: from the request of a tile of A to its arrival
# output_seconds: without products, for each output tile of an SM; by warps
# functions: times what they issue, by warps and pipelines
# overlap: exponent of the norm that joins what overlaps


def predict_stationary(contraction: Contraction, schedule: StationarySchedule, target: Target) -> float:
    """Seconds: first B is loaded and its function applied; then tiles of A, products, functions and stores overlap.

    A stage is empty when its tile is in registers, where A has a function, else when its products are done.
    """
    contraction = views.in_kernel_order(contraction, schedule)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    turns = -(-output_tiles(contraction, schedule) // sms)
    count = views.steps_along(contraction, schedule.k, tile_k)  # of a sum: as many tiles of B stay in shared memory
    depth = (count - 1) * tile_k + last_depth(contraction, schedule)
    rows = turns * sms * tile_m  # of all SMs, were they as busy as the busiest
    b_elements = sms * count * tile_k * tile_n
    beginning = b_elements * contraction.arithmetic.product.itemsize / _fit("b_rate")
    beginning += function_seconds(contraction, 0, b_elements, 0)
    requested = schedule.pipelines * (schedule.stages - (contraction.a_fn is None))  # tiles at any time
    functions = function_seconds(contraction, rows * depth, 0, rows * contraction.n)
    pipes = (
        2.0 * rows * tile_n * depth / _fit("rate") + turns * _fit.table("output_seconds")[str(schedule.warps)],
        turns * count * _fit("tile_seconds") / requested,
        functions * _fit.table("functions")[f"{schedule.warps} {schedule.pipelines}"],
        compulsory_bytes(contraction) / _fit("memory_rate"),
    )
    return launched(beginning + sum(pipe**_fit("overlap") for pipe in pipes) ** (1 / _fit("overlap")), _fit("launch"))

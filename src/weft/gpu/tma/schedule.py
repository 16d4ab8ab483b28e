"""Schedules of the family that reads boxes: tiles, the readings of both operands, and shares of long sums.

Matrix instructions and boxes come in powers of two, extents do not. A tile may therefore be the sum of two powers of
two along n, 320 = 256 + 64: its block has two accumulators, which share every box of A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product

from weft.gpu.common.constraints import LEAST_DOT, LEAST_SPLIT_STEPS
from weft.gpu.common.hardware import sm_count
from weft.gpu.common.tiling import A, B, D, TiledAxis
from weft.gpu.tma.views import TmaView, covered, extent, tma_views
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

NAME = "tma"
GROUP = 8  # rows of blocks that programs take before they go on along n
LEAST_STAGES = 3  # also of shorter sums: boxes of the next block come while one is stored
LEAST_HALVED = 32  # columns: fewer are stored at once
LEAST_QUARTERED = 256  # columns where rows are staged

# Tiles (M, N, K), warps and stages, by bytes of an element.
_TILES = {
    1: (
        (128, 256, 128, 8, 4), (256, 128, 128, 8, 4), (128, 256, 128, 8, 3), (128, 128, 128, 8, 4),
        (128, 128, 128, 4, 4), (256, 64, 128, 8, 4), (64, 256, 128, 8, 4), (128, 64, 128, 4, 4), (64, 128, 128, 4, 4),
        (256, 32, 128, 8, 4), (128, 32, 128, 4, 5), (64, 64, 128, 4, 4), (128, 128, 64, 4, 4),
    ),
    2: (
        (128, 256, 64, 8, 4), (256, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4),
        (128, 128, 64, 4, 3), (256, 64, 64, 8, 4), (64, 256, 64, 8, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
        (256, 32, 64, 8, 4), (128, 32, 64, 4, 5), (64, 64, 64, 4, 4), (128, 256, 32, 8, 4), (256, 128, 32, 8, 4),
        (128, 128, 32, 4, 4),
    ),
    4: (
        (128, 256, 32, 8, 4), (256, 128, 32, 8, 4), (128, 256, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 32, 4, 4),
        (256, 64, 32, 8, 4), (64, 256, 32, 8, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4),
        (256, 32, 32, 8, 4), (128, 32, 32, 4, 4),
    ),
}  # fmt: skip
# The same with two parts along n, K in bytes.
_COMPOSITE_TILES = (
    (128, 320, 128, 8, 3), (64, 320, 64, 4, 3), (128, 192, 128, 8, 4), (128, 160, 128, 8, 4), (256, 160, 128, 8, 3),
    (128, 80, 128, 4, 3), (128, 80, 64, 4, 4), (256, 80, 128, 8, 3),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TmaSchedule:
    """How both operands are read, the mode of k that boxes run along, and the tile."""

    a: TmaView
    b: TmaView
    k: Mode
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stages: int
    splits: int = 1
    group: int = GROUP
    swap_ab: bool = False  # B gives the rows of blocks and A the columns: `a` is the reading of B
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        names_m, names_n = ("·".join(mode.name for mode in view.outer) for view in (self.a, self.b))
        across = "+".join(map(str, parts(n)))
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        return (
            f"tma {m}x{n}x{k} m[{names_m}:{m}] n[{names_n}:{across}] k[{self.k.name}:{k}]"
            f" warps={self.warps} stages={self.stages}{split}{' swap_ab' if self.swap_ab else ''}"
        )


@cache
def parts(columns: int) -> tuple[int, ...]:
    """The powers of two that a tile is the sum of, the widest first."""
    return tuple(1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1)


def stores_rows(schedule: TmaSchedule) -> bool:
    """Whether blocks go to D row by row: shares of split sums, and where D is not contiguous along m."""
    return schedule.splits > 1 or 1 not in [mode.strides[D] for mode in schedule.a.outer]


def subtiles_of(width: int, rows: bool) -> int:
    """Pieces that an accumulator of so many columns is stored in; more where whole rows are staged."""
    if width < LEAST_HALVED:
        return 1
    return 4 if rows and width >= LEAST_QUARTERED else 2


def shared_bytes(schedule: TmaSchedule, size: int) -> int:
    """Shared memory of a program: its boxes, and a piece on its way to D.

    What a piece takes was read from what Triton 3.6 compiles for compute capability 9.0: its rows where those are
    staged, else at most 128 bytes for each of them.
    """
    tile_m, tile_n, tile_k = schedule.tile
    widest, rows = parts(tile_n)[0], stores_rows(schedule)
    row = 4 * widest // subtiles_of(widest, rows) if rows else 128
    return schedule.stages * (tile_m + tile_n) * tile_k * size + tile_m * row


def candidates(contraction: Contraction, target: Target, swap_ab: bool = False) -> Candidates:
    """Schedules, and why there are no others; `exchanged` tells that the operands already are, and then only what
    consists of two parts is of use: whole tiles there are for both sides."""
    found: dict[TmaSchedule, None] = {}
    excluded: dict[str, None] = {}
    size = contraction.arithmetic.product.itemsize
    composite = tuple((m, n, depth // size, warps, stages) for m, n, depth, warps, stages in _COMPOSITE_TILES)
    tiles = composite if swap_ab else (*_TILES[size], *composite)
    for k in contraction.of_role(Role.K):
        views_a, views_b = (list(tma_views(contraction, operand, k)) for operand in (A, B))
        for name, ways in (("A", views_a), ("B", views_b)):
            if not ways:
                excluded[f"{name} does not lie in boxes along {k.name}"] = None
        for a, b, tile in product(views_a, views_b, tiles):
            reason = misfit(a, b, tile)
            if reason is not None:
                excluded[reason] = None
                continue
            tile_m, tile_n, tile_k, warps, stages = tile
            whole = TmaSchedule(a, b, k, (tile_m, tile_n, tile_k), warps, stages, swap_ab=swap_ab)
            found.update(dict.fromkeys(_schedules(contraction, whole, target)))
    return Candidates(tuple(found), tuple(excluded))


@lru_cache(maxsize=8192)
def dim_axes(view: TmaView, tile: int) -> tuple[TiledAxis, ...]:
    """The operand's own side: every other dimension one index at a time, runs last."""
    runs = (view.second, view.outer)
    return tuple([TiledAxis(group, length, placed=group in runs) for group, length in view.lengths(tile).items()])


def misfit(a: TmaView, b: TmaView, tile: Sequence[int]) -> str | None:
    """Why a tile should not be used, in one sentence."""
    widest = parts(tile[1])[0]
    for name, group, length in (("m", a.outer, tile[0]), ("n", b.outer, widest)):
        length_there = extent(group)
        if length > LEAST_DOT * 2 and length >= 2 * length_there:
            return f"a tile of {length} along {name} is at least twice the {length_there} that lie together"
    across = extent(b.outer)
    if tile[1] != widest and covered(across, tile[1]) >= covered(across, widest):
        return f"tiles of {tile[1]} along n cover no less than those of {widest} do for the {across} that lie together"
    return None


def _schedules(contraction: Contraction, whole: TmaSchedule, target: Target) -> Iterator[TmaSchedule]:
    """A tile with whole sums, and with split ones where D alone cannot fill the device."""
    tile_m, tile_n, tile_k = whole.tile
    steps = -(-whole.k.extent // tile_k) * (contraction.k // whole.k.extent)
    if whole.stages > max(LEAST_STAGES, steps):
        whole = replace(whole, stages=max(LEAST_STAGES, steps))
    yield _fitting(whole, contraction.arithmetic.product.itemsize, target)
    processors = sm_count(target)
    blocks = contraction.batch * dim_blocks(whole.a, tile_m) * dim_blocks(whole.b, tile_n)
    if blocks >= processors:
        return
    share_bytes = tile_m * tile_n * contraction.arithmetic.accumulate.itemsize
    for splits in splittings(steps, blocks, processors):
        split = replace(whole, splits=splits, workspace_bytes=splits * blocks * share_bytes)
        yield _fitting(split, contraction.arithmetic.product.itemsize, target)


def _fitting(schedule: TmaSchedule, size: int, target: Target) -> TmaSchedule:
    """With one stage less where the device has not the shared memory."""
    if target.shared_memory and shared_bytes(schedule, size) > target.shared_memory and schedule.stages > 2:
        return replace(schedule, stages=schedule.stages - 1)
    return schedule


def splittings(steps: int, blocks: int, processors: int) -> list[int]:
    """Numbers of shares of a sum that about fill the device once, or twice, and the most of which each has a processor
    (or a worker) of its own; none of them is empty. There are no more blocks than processors."""
    found = set()
    for fill in (1, 2):
        share = max(LEAST_SPLIT_STEPS, -(-steps * blocks // (fill * processors)))
        found.add(-(-steps // share))
    share = max(LEAST_SPLIT_STEPS, -(-steps // (processors // blocks)))
    found.add(-(-steps // share))
    return sorted(found - {1})


@lru_cache(maxsize=8192)
def dim_blocks(view: TmaView, tile: int) -> int:
    return math.prod([axis.blocks for axis in dim_axes(view, tile)])

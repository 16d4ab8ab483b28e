"""Which tiles are legal off the matrix units, and why others are not: of D's modes, whatever their role, and of k."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.gpu.common.launch import MOST_PROGRAMS
from weft.gpu.common.tiling import A, B, D, TiledAxis, axes_text, by_stride, nearest, run_orders, tile_count
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role

NAME = "simt"

# Indices of D and of k in a tile.
_TILES = (
    (1024, 1), (512, 4), (256, 8), (64, 32), (64, 64), (16, 128), (4, 512), (1, 2048), (1, 256), (256, 1), (128, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimtSchedule:
    """Tiles along the modes of D, whatever their role, and of k."""

    r: tuple[TiledAxis, ...]
    k: tuple[TiledAxis, ...]
    warps: int
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"simt d[{axes_text(self.r)}] k[{axes_text(self.k)}] warps={self.warps}"


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[SimtSchedule] = []
    excluded: dict[str, None] = {}
    d_modes = contraction.of_role(Role.BATCH, Role.M, Role.N)
    k_modes = contraction.of_role(Role.K)
    size = math.prod(mode.extent for mode in d_modes)
    for r_tile, k_tile in _TILES:
        reason = _misfit(r_tile, k_tile, size, contraction.k)
        if reason is not None:
            excluded[reason] = None
            continue
        for r in d_axes(d_modes, r_tile):
            for k in k_axes(k_modes, k_tile):
                schedule = SimtSchedule(r, k, warps=4)
                if programs(contraction, schedule) > MOST_PROGRAMS:
                    excluded["a grid holds at most 2^31 - 1 blocks"] = None
                else:
                    found.append(schedule)
    return Candidates(tuple(found), tuple(excluded))


def d_axes(modes: Sequence[Mode], tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over D's modes: flattened along D's run, and with a second axis along A's or B's run."""
    by_d = by_stride(modes, D)
    yield (TiledAxis(by_d, tile),)
    if tile < 64:
        return
    for near in {nearest(modes, A): None, nearest(modes, B): None}:
        if near is not None and near is not by_d[0]:
            run = min(32, tile // 4)
            yield (TiledAxis((near,), run), TiledAxis(tuple(mode for mode in by_d if mode is not near), tile // run))


def k_axes(modes: Sequence[Mode], tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of k: flattened in A's order, or in B's."""
    for order in run_orders(modes, A, B):
        yield (TiledAxis(order, tile),)


def _misfit(r_tile: int, k_tile: int, size: int, k: int) -> str | None:
    for name, tile, extent in (("D", r_tile, size), ("k", k_tile, k)):
        if tile > 128 and tile >= 4 * max(extent, 1):
            return f"a tile of {tile} along {name} is at least four times its extent {extent}"
    return None


def programs(contraction: Contraction, schedule: SimtSchedule) -> int:
    """Output tiles, one for each program."""
    return tile_count(contraction.of_role(Role.BATCH, Role.M, Role.N), schedule.r)

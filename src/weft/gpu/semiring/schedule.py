"""Schedules of the semiring kernel, and the shapes of their tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from weft.gpu.common import tiling
from weft.gpu.common.constraints import VECTOR, overhang, power_of_two
from weft.gpu.common.contraction_launch import split_over
from weft.gpu.common.launch import too_many
from weft.gpu.common.operation import sums_exponentials
from weft.gpu.common.tiling import A, B, TiledAxis, TiledSchedule
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import dtype_name

MOST_HELD = {4: 80, 8: 40}  # elements of D in each thread, by bytes of the accumulator: more would spill
LEAST_HELD = {4: 12, 8: 6}  # where a dim is in subtiles: the others have that choice already
LONGEST_DIM = 96  # that is computed in subtiles: a longer one wastes little of the usual tiles
MOST_SUBTILES = 12
USUAL_DEPTH = 8  # of a step along k; deeper ones take more registers


class Shape(NamedTuple):
    """An output tile in subtiles, a step along k, and a thread's part: the threads of all warps cover each subtile."""

    m: int  # of one subtile
    n: int
    k: int
    rows: int  # of one subtile, in each thread
    columns: int
    warps: int
    stages: int = 3
    subtiles: tuple[int, int] = (1, 1)  # along m and n


# By bytes of the accumulator: 64 registers of it in each thread, fewer in small tiles.
_SHAPES = {
    4: (
        Shape(128, 128, 8, 8, 8, 8), Shape(128, 128, 4, 8, 8, 8), Shape(256, 64, 8, 8, 8, 8),
        Shape(64, 256, 8, 8, 8, 8), Shape(128, 64, 8, 8, 8, 4), Shape(64, 128, 8, 8, 8, 4),
        Shape(64, 64, 8, 8, 4, 4), Shape(64, 64, 8, 8, 8, 2), Shape(32, 128, 8, 4, 8, 4),
        Shape(128, 32, 8, 8, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(64, 32, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4),
        Shape(256, 16, 8, 8, 4, 4), Shape(16, 256, 8, 4, 8, 4), Shape(16, 64, 8, 2, 4, 4), Shape(64, 16, 8, 4, 2, 4),
        Shape(16, 16, 8, 2, 2, 2), Shape(64, 64, 16, 8, 8, 2), Shape(128, 64, 16, 8, 8, 4), Shape(64, 128, 16, 8, 8, 4),
    ),
    8: (
        Shape(128, 64, 4, 8, 4, 8), Shape(64, 64, 8, 4, 4, 8), Shape(64, 64, 4, 4, 4, 8), Shape(64, 64, 4, 8, 4, 4),
        Shape(64, 32, 8, 4, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4), Shape(128, 16, 8, 4, 4, 4),
        Shape(16, 128, 8, 4, 4, 4), Shape(16, 16, 8, 2, 2, 2),
    ),
}  # fmt: skip


def shapes(contraction: Contraction) -> tuple[Shape, ...]:
    """The shapes worth a thought: the usual ones, and those that fit a short dim."""
    size = max(contraction.arithmetic.accumulate.itemsize, 4)
    along_m = (_transposed(shape) for shape in fitting(contraction.m, size))
    fitted = (*fitting(contraction.n, size), *along_m)
    if max(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize) <= 2:
        fitted = tuple(shape._replace(k=2 * shape.k) for shape in fitted)  # a row of a step takes as many bytes
    return (*_SHAPES[size], *fitted)


@lru_cache
def fitting(extent: int, size: int) -> tuple[Shape, ...]:
    """Shapes whose n is this extent in subtiles, where the next power of two would waste a tenth of the lanes."""
    if extent > LONGEST_DIM:
        return ()
    found: list[Shape] = []
    for subtile in (4, 8, 16):
        count = -(-extent // subtile)
        if 1 < count <= MOST_SUBTILES and 10 * count * subtile <= 9 * power_of_two(extent):
            found += _in_subtiles(count, subtile, size)
    return tuple(found)


def _in_subtiles(count: int, subtile: int, size: int) -> Iterator[Shape]:
    """128 threads over each subtile."""
    for columns in (1, 2, 4):
        threads = subtile // columns
        for rows in (2, 4, 8):
            m = 128 // threads * rows
            if LEAST_HELD[size] <= rows * columns * count <= MOST_HELD[size] and m <= 512:
                yield Shape(m, subtile, 8 if size == 4 else 4, rows, columns, 4, subtiles=(1, count))


def _transposed(shape: Shape) -> Shape:
    return shape._replace(
        m=shape.n, n=shape.m, rows=shape.columns, columns=shape.rows, subtiles=(shape.subtiles[1], shape.subtiles[0])
    )


NAME = "semiring"

MOST_SUMS = 16  # in each thread, of exponentials
LEAST_STEPS = 8  # along k, of each part of a split reduction: fewer are not worth a second kernel
FILLS = (1, 2, 4, 8, 16)  # times that split reductions are to fill the device
_RUNS = (8, 16, 32)  # indices of an operand's own run where a dim needs two axes


@dataclass(frozen=True, slots=True)
class SemiringSchedule(TiledSchedule):
    """Tiles, and what a thread holds of the output tile."""

    registers: tuple[int, int]  # of each subtile
    subtiles: tuple[int, int] = (1, 1)  # of the tile along m and n that are computed
    splits: int = 1
    workspace_bytes: int = 0
    group: int = 8
    family: str = NAME

    @property
    def computed(self) -> tuple[int, int]:
        """The part of the tile that is computed, along m and n."""
        m, n = (at // power_of_two(count) * count for at, count in zip(self.tile, self.subtiles, strict=False))
        return m, n

    def __str__(self) -> str:
        m, n = self.computed
        of_m, of_n = subtile_axes(self.m, self.subtiles[0]), subtile_axes(self.n, self.subtiles[1])
        dims = f"m[{tiling.axes_text(of_m)}] n[{tiling.axes_text(of_n)}] k[{tiling.axes_text(self.k)}]"
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        held = "x".join(str(held * count) for held, count in zip(self.registers, self.subtiles, strict=True))
        subtiles = f" subtiles={self.subtiles[0]}x{self.subtiles[1]}" if max(self.subtiles) > 1 else ""
        threads = f"threads of {held}{subtiles} warps={self.warps} stages={self.stages}"
        return f"semiring {m}x{n}x{self.tile[2]} {dims} {threads}{split}"


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates.of(dict.fromkeys(_proposals(contraction, target)))


def _proposals(contraction: Contraction, target: Target) -> Iterator[SemiringSchedule | str]:
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    for shape in shapes(contraction):
        reason = _misfit(contraction, shape)
        if reason is not None:
            yield reason
            continue
        depth = min(shape.k, power_of_two(contraction.k))
        tile_m, tile_n = shape.m * power_of_two(shape.subtiles[0]), shape.n * power_of_two(shape.subtiles[1])
        held, (runs_m, runs_n) = (shape.rows, shape.columns), (_RUNS if count == 1 else () for count in shape.subtiles)
        sides = tiling.outer_axes(m_modes, A, tile_m, runs_m, 8), tiling.outer_axes(n_modes, B, tile_n, runs_n, 8)
        for m, n, k in product(*sides, tiling.run_orders(k_modes, A, B)):
            depths = (TiledAxis(k, depth),)
            schedule = SemiringSchedule(m, n, depths, shape.warps, shape.stages, held, shape.subtiles)
            tiles = output_tiles(contraction, schedule)
            yield too_many(tiles) or schedule
            yield from split_over(contraction, schedule, tiles, target, 2, FILLS, LEAST_STEPS)


def subtile_axes(axes: tuple[TiledAxis, ...], subtiles: int) -> tuple[TiledAxis, ...]:
    """The axes of one of so many subtiles of a tile."""
    return axes if subtiles == 1 else (axes[0]._replace(tile=axes[0].tile // power_of_two(subtiles)),)


def output_tiles(contraction: Contraction, schedule: SemiringSchedule) -> int:
    m, n = contraction.of_role(Role.M), contraction.of_role(Role.N)
    return contraction.batch * tiling.tile_count(m, schedule.m) * tiling.tile_count(n, schedule.n)


def _misfit(contraction: Contraction, shape: Shape) -> str | None:
    """Why an output tile should not be used here, in one sentence."""
    if (reason := overhang(contraction, shape.m, shape.n)) is not None:
        return reason
    if sums_exponentials(contraction) and math.prod(shape.subtiles) * shape.rows * shape.columns > MOST_SUMS:
        return f"a thread that holds sums beside the largest values has room for {MOST_SUMS} of each"
    tiles = (shape.m * power_of_two(shape.subtiles[0]), shape.n * power_of_two(shape.subtiles[1]))
    depth = contraction.of_role(Role.K)
    if shape.k > USUAL_DEPTH and max(shape.subtiles) == 1:
        operands = (A, contraction.a), (B, contraction.b)
        along = [layout for operand, layout in operands if tiling.nearest(depth, operand) is not None]
        if not any(layout.dtype.itemsize == 4 for layout in along):
            return f"steps of {shape.k} are for operands of 4 bytes that lie along k: they are read in longer rows"
        if contraction.algebra is None and not _a_alone_along_k(contraction):
            # Products take half the slots of other algebras, and reads of shared memory in conflict then show: a step
            # of 16 of B along k took 1.8 times one of 8 on an H200.
            return f"steps of {shape.k} of products are for A alone along k, in whole rows of {VECTOR} bytes"
    for operand, layout, rows in zip((A, B), (contraction.a, contraction.b), tiles, strict=True):
        # The compiler would spread that layout over the products: each thread would hold a row of D, not a square.
        wide = min(VECTOR // layout.dtype.itemsize, rows * shape.k // (32 * shape.warps))
        if wide >= shape.k and tiling.nearest(depth, operand) is not None:
            return f"each thread would load a whole row of a {rows}x{shape.k} tile of {dtype_name(layout.dtype)}"
    return None


def _a_alone_along_k(contraction: Contraction) -> bool:
    """Whether A is read along k in vectors, and B is not."""
    modes = contraction.of_role(Role.K)
    near = tiling.nearest(modes, A)
    if near is None or tiling.nearest(modes, B) is not None:
        return False
    vector = VECTOR // contraction.a.dtype.itemsize
    return all(mode.strides[A] % vector == 0 for mode in contraction.modes if mode is not near)

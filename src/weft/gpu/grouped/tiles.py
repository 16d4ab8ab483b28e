"""Tiles of kernels for groups: those there are, and the one that is predicted to be done first.

An SM is the busier of its matrix units and its loads, a tile's own start and the steps along k counted in. Where it has
few tiles it waits for each step's loads. Rates are those of an H100 by its data sheet, halved where no kernel comes
near. They rank tiles, and say no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from weft.gpu.common.constraints import REGISTERS, SHARED_MEMORY, WARPS
from weft.spec import Arithmetic
from weft.spec.group import GroupTable

RESIDENT = 16  # programs for each SM: so many small ones it holds at once
LATENCY = 800  # clocks from a request of memory to the data
START = 2000  # clocks that a program waits for a tile's numbers in the tables
WARP_STEP = 15  # clocks that an SM issues what each warp does in a step, besides products
LIBRARY_TILE = 128  # rows and columns of the library's tiles
LIBRARY_CALL = 12000  # clocks between two products of a loop, which the host calls one by one
LOADED = 40  # bytes for each clock of an SM, in vectors
LOADED_SINGLY = 4  # bytes for each clock where shorter than a copy to shared memory


class GroupTile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int

    def shared_memory(self, itemsize: int) -> int:
        """Bytes of the stages of A and B."""
        return (self.m + self.n) * self.k * itemsize * self.stages


HALVES = (
    GroupTile(16, 16, 32, 1, 3), GroupTile(16, 128, 64, 4, 3), GroupTile(32, 32, 64, 4, 3),
    GroupTile(64, 64, 64, 4, 3), GroupTile(64, 128, 64, 4, 3), GroupTile(128, 64, 64, 4, 3),
    GroupTile(128, 128, 64, 8, 3),
)  # fmt: skip
HALVES_SINGLY = (
    GroupTile(16, 16, 32, 1, 2), GroupTile(32, 32, 32, 4, 2), GroupTile(64, 64, 32, 4, 2),
    GroupTile(128, 128, 32, 8, 2),
)  # fmt: skip
TF32 = (
    GroupTile(16, 16, 16, 1, 3), GroupTile(32, 32, 32, 4, 3), GroupTile(64, 64, 32, 4, 3),
    GroupTile(128, 64, 32, 4, 3), GroupTile(64, 128, 32, 4, 3), GroupTile(128, 128, 32, 8, 3),
)  # fmt: skip
SINGLE = (
    GroupTile(16, 16, 16, 1, 2), GroupTile(32, 32, 32, 4, 2), GroupTile(64, 64, 16, 4, 3),
    GroupTile(128, 64, 16, 8, 3),
)  # fmt: skip
DOUBLE = (
    GroupTile(16, 16, 16, 1, 2), GroupTile(32, 32, 16, 4, 3), GroupTile(64, 64, 16, 8, 3),
    GroupTile(64, 128, 16, 8, 3),
)  # fmt: skip
COMPLEX = (GroupTile(16, 16, 16, 1, 2), GroupTile(32, 32, 16, 4, 2))
INTEGERS = (GroupTile(16, 16, 1, 1, 2), GroupTile(32, 32, 1, 4, 2), GroupTile(64, 64, 1, 4, 2))


def tiles_for(arithmetic: Arithmetic, is_complex: bool, in_vectors: bool) -> tuple[GroupTile, ...]:
    """The tiles to choose from; `in_vectors`: whether 16 bytes of A and of B are loaded at once."""
    if is_complex:
        return COMPLEX
    if not arithmetic.accumulate.is_floating_point:
        return INTEGERS
    if arithmetic.accumulate == torch.float64:
        return DOUBLE
    if arithmetic.product.itemsize < 4:
        return HALVES if in_vectors else HALVES_SINGLY
    return SINGLE if arithmetic.precision == "ieee" else TF32


def choose_tile(
    table: GroupTable, tiles: Sequence[GroupTile], arithmetic: Arithmetic, itemsize: int, in_vectors: bool, sms: int
) -> GroupTile:
    """The tile by which a device of so many SMs is done with the group first."""
    return min(tiles, key=lambda tile: group_clocks(table, tile, arithmetic, itemsize, in_vectors, sms))


def group_clocks(
    table: GroupTable, tile: GroupTile, arithmetic: Arithmetic, itemsize: int, in_vectors: bool, sms: int
) -> float:
    """Clocks that a device of so many SMs takes for the group by a tile."""
    batch, m, n, _ = table.sizes[table.outputs[:, 1]].T
    sums = np.concatenate([[0], np.cumsum(table.sizes[:, 3])])
    depths = sums[table.outputs[:, 2]] - sums[table.outputs[:, 1]]
    counts = batch * np.ceil(m / tile.m) * np.ceil(n / tile.n)
    steps = np.ceil(depths / tile.k)
    many, long = float(counts.sum()), float((counts * steps).sum())
    busy = long * step_clocks(tile, arithmetic, itemsize, in_vectors) + many * 2 * WARP_STEP * tile.warps
    waiting = long * LATENCY / (tile.stages - 1) + many * START
    held = resident(tile, arithmetic, itemsize)
    return max(busy * uneven(many, sms) / sms, waiting * uneven(many, sms * held) / (sms * held))


def loop_clocks(table: GroupTable, arithmetic: Arithmetic, sms: int) -> float:
    """Clocks that a loop over the library's products of the group takes, one after the other."""
    batch, m, n, k = table.sizes.astype(float).T
    tiles = np.maximum(1, batch * np.ceil(m / LIBRARY_TILE) * np.ceil(n / LIBRARY_TILE))
    work = batch * m * n * k / (library_rate(arithmetic) * sms) * np.ceil(tiles / sms) * sms / tiles
    return float(np.maximum(work + START, LIBRARY_CALL).sum())


def library_rate(arithmetic: Arithmetic) -> float:
    """Products for each clock of an SM in the library's kernels."""
    if arithmetic.accumulate.itemsize == 8:
        return 120
    if arithmetic.product.itemsize < 4:
        return 1500
    return 110 if arithmetic.precision == "ieee" else 760


def uneven(tiles: float, places: int) -> float:
    """How much busier the busiest of some places is than the average, where tiles are alike."""
    return math.ceil(tiles / places) * places / tiles if tiles else 1.0


def step_clocks(tile: GroupTile, arithmetic: Arithmetic, itemsize: int, in_vectors: bool) -> float:
    """Clocks of an SM that a step along k keeps busy."""
    products = tile.m * tile.n * tile.k / products_at_once(tile, arithmetic)
    loaded = (tile.m + tile.n) * tile.k * itemsize
    return max(products, loaded / (LOADED if in_vectors or itemsize >= 4 else LOADED_SINGLY)) + WARP_STEP * tile.warps


def products_at_once(tile: GroupTile, arithmetic: Arithmetic) -> float:
    """Products for each clock of an SM."""
    if not arithmetic.accumulate.is_floating_point:
        return 64
    if arithmetic.accumulate.itemsize == 8:
        return 100
    if arithmetic.product.itemsize < 4:
        return 900
    if arithmetic.precision != "ieee":
        return 256 if arithmetic.precision == "tf32" else 85
    sums = tile.m * tile.n / (32 * tile.warps)  # of each thread: the fewer, the more is read for each
    return 64 * min(1.0, math.sqrt(sums / 16))


def resident(tile: GroupTile, arithmetic: Arithmetic, itemsize: int) -> int:
    """Programs that an SM holds at once."""
    threads = 32 * tile.warps
    registers = min(tile.m * tile.n // threads * arithmetic.accumulate.itemsize // 4 + 72, 255) * threads
    memory = SHARED_MEMORY // max(tile.shared_memory(itemsize), 1)
    return max(1, min(RESIDENT, REGISTERS // registers, memory, WARPS // tile.warps))

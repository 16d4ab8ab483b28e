"""Split sums: how blocks are cut into strips when their shares are added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.kernels.combining import LEAST_ELEMENTS, MOST_ELEMENTS, RESIDENT, strip_columns, strip_rows
from weft.plan.schedule import Target

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


@pytest.mark.parametrize("tile", [(16, 16), (64, 32), (128, 80), (128, 160), (128, 256), (256, 320), (8, 1024)])
@pytest.mark.parametrize("blocks", [1, 6, 72, 1000, 100_000])
def test_strips_cover_blocks_and_are_many_or_small(tile: tuple[int, int], blocks: int) -> None:
    tile_m, tile_n = tile
    rows, columns = strip_rows(tile_m, tile_n, blocks, H200), strip_columns(tile_n)
    assert tile_m % rows == tile_n % columns == 0
    assert rows * columns <= max(MOST_ELEMENTS, columns)
    strips = blocks * (tile_m // rows) * (tile_n // columns)
    assert strips >= RESIDENT * 132 or rows * columns <= LEAST_ELEMENTS or rows == 1


def test_few_blocks_give_small_strips_and_small_devices_large_ones() -> None:
    few, many = (strip_rows(128, 80, blocks, H200) for blocks in (2, 10_000))
    assert few < many == 128
    assert strip_rows(128, 80, 72, replace(H200, processors=16)) > strip_rows(128, 80, 72, H200)


def test_the_interpreter_takes_whole_blocks() -> None:
    assert strip_rows(64, 64, 1, Target("interpreter", 0, "Triton interpreter", 90, 1, 232448)) == 64
